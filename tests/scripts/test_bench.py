"""Every benchmark runs once at a tiny size; files of numbers are compared by name."""

import json
import socket

import pytest
import torch

from scripts.bench.__main__ import SUBJECTS, main
from scripts.bench.common import interleaved, ratio
from scripts.bench.compare import rows
from scripts.bench.kernels import KERNEL, LIBRARY, Operations

NUMBERS = {"ms": {"bn": 2.0, "gn": 3}, "bn / gn": {"ratio": 1.0, "low": 0.9, "high": 1.1}}
TINY = {
    "norms": ["--width", "2", "--batch", "4"],
    "run": ["--widths", "2", "--steps", "2", "--norms", "adab2n"],
    "compile": ["--widths", "2", "--amp", "none"],
    "kernels": ["--width", "2", "--models", "er_ace", "--norms", "bn"],
}
GENERATED = """
def call(args):
    with torch.cuda._DeviceGuard(0):
        buf0 = extern_kernels.convolution(primals_1, primals_2)
        assert_size_stride(buf0, (20, 16), (16, 1))
        cpp_fused_add_0(buf0, buf1)
        buf3 = torch.ops.aten.convolution_backward.default(buf2, buf1)
        triton_poi_fused_relu_1.run(buf0, 64, stream=stream0)
        extern_kernels.addmm(buf4, buf5, out=buf6)
"""


def write_numbers(path, numbers, **about) -> str:
    path.write_text(json.dumps({"about": {"subject": "norms", "cpu": "one"} | about, "numbers": numbers}))
    return str(path)


def check_subject(subject, folder, capsys):
    """A tiny benchmark writes numbers that can be compared with themselves."""
    file = folder / "numbers.json"
    assert main([subject, *TINY[subject], "--repetitions", "1", "--threads", "1", "--json", str(file)]) == 0
    assert capsys.readouterr().out
    about = json.loads(file.read_text())["about"]
    assert about["subject"] == subject
    assert socket.gethostname() not in json.dumps(about)
    assert main(["compare", str(file), str(file)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines()[1:] if line]
    assert lines
    assert all(line.endswith("1.000") for line in lines)


@pytest.mark.parametrize("subject", ["norms", "run"])  # tests/compiled runs the others, which take minutes
def test_subject_at_a_tiny_size(subject, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check_subject(subject, tmp_path, capsys)


def test_every_subject_has_a_tiny_size():
    assert SUBJECTS.keys() == TINY.keys()


def test_repetitions_are_interleaved_in_rotating_order():
    order = []
    seconds = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, repetitions=2, warmup=1)
    assert "".join(order) == "ab" + "ab" + "ba"
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}


def test_ratio_is_the_median_of_pairs():
    entry = ratio(torch.tensor([2.0, 4.0, 30.0]).numpy(), torch.tensor([1.0, 2.0, 3.0]).numpy())
    assert entry["low"] <= entry["ratio"] == 2 <= entry["high"]


def test_numbers_are_compared_by_name():
    new = {"ms": {"bn": 3.0, "sn": 1.0}, "bn / gn": {"ratio": 1.3, "low": 1.2, "high": 1.4}}
    assert rows(NUMBERS, new) == [
        ["ms / bn", "2", "3", "1.500", ""],
        ["bn / gn / ratio", "1", "1.3", "1.300", "differs"],
    ]
    overlapping = {"bn / gn": {"ratio": 1.2, "low": 1.1, "high": 1.4}}
    assert rows(NUMBERS, overlapping) == [["bn / gn / ratio", "1", "1.2", "1.200", ""]]


def test_another_machine_is_noted_but_not_another_commit(tmp_path, capsys):
    old = write_numbers(tmp_path / "old", NUMBERS, commit="a", load=1.0)
    assert main(["compare", old, write_numbers(tmp_path / "new", NUMBERS, commit="b", load=3.0)]) == 0
    assert "note" not in capsys.readouterr().out
    assert main(["compare", old, write_numbers(tmp_path / "new", NUMBERS, cpu="two", commit="b", load=3.0)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "note" in line] == ["note: cpu was one, is two"]


@pytest.mark.parametrize(("name", "keyword"), [("none", "cannot read"), ("list", "--json"), ("other", "compile")])
def test_compare_refuses_other_files(name, keyword, tmp_path, capsys):
    good = write_numbers(tmp_path / "good", NUMBERS)
    write_numbers(tmp_path / "other", NUMBERS, subject="compile")
    (tmp_path / "list").write_text("[]")
    assert main(["compare", str(tmp_path / name), good]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert keyword in line


def test_usage_errors_end_with_code_2(capsys):
    assert main(["run", "--norms", "nope", "--threads", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nope" in line


def test_views_are_not_counted():
    with Operations() as counted:
        torch.ones(2, 3).view(6).add(1).unsqueeze(0)
    assert counted.names == {"aten.ones.default": 1, "aten.add.Tensor": 1}


def test_calls_in_generated_code():
    assert len(KERNEL.findall(GENERATED)) == 2
    assert len(LIBRARY.findall(GENERATED)) == 3
