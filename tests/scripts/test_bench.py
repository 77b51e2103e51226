"""Benchmarks' own parts: what is counted, what a file of numbers says of the machine, and how two are compared."""

import json

import torch

from scripts.bench.__main__ import main
from scripts.bench.compare import compared, differences
from scripts.bench.kernels import LIBRARY, OWN, Operations
from scripts.bench.machine import description

NUMBERS = {"ms": {"bn": 2.0, "gn": 3}, "bn / gn": {"ratio": 1.0, "low": 0.9, "high": 1.1}, "is_fast": True}
WRITTEN = """
def call(args):
    with torch.cuda._DeviceGuard(0):
        buf0 = extern_kernels.convolution(primals_1, primals_2)
        assert_size_stride(buf0, (20, 16), (16, 1))
        cpp_fused_add_0(buf0, buf1)
        buf3 = torch.ops.aten.convolution_backward.default(buf2, buf1)
        triton_poi_fused_relu_1.run(buf0, 64, stream=stream0)
        extern_kernels.addmm(buf4, buf5, out=buf6)
"""


def file_of(path, numbers, **about) -> str:
    path.write_text(json.dumps({"about": {"subject": "norms", "cpu": "one"} | about, "numbers": numbers}))
    return str(path)


def test_numbers_are_compared_by_name():
    new = {"ms": {"bn": 3.0, "sn": 1.0}, "bn / gn": {"ratio": 1.3, "low": 1.2, "high": 1.4}, "is_fast": False}
    assert compared(NUMBERS, new) == [
        ["ms / bn", "2", "3", "1.500", ""],
        ["bn / gn", "1", "1.3", "1.300", "differs"],
    ]


def test_intervals_that_meet_do_not_differ():
    new = {"bn / gn": {"ratio": 1.2, "low": 1.1, "high": 1.4}}
    assert compared(NUMBERS, new) == [["bn / gn", "1", "1.2", "1.200", ""]]


def test_another_machine_is_told_and_another_commit_is_not():
    old = {"cpu": "one", "torch": "2", "commit": "a", "load": 1.0}
    assert differences(old, old | {"commit": "b", "load": 3.0}) == []
    assert differences(old, old | {"cpu": "two"}) == ["cpu was one, is two"]


def test_the_command(tmp_path, capsys):
    old, new = file_of(tmp_path / "old", NUMBERS), file_of(tmp_path / "new", NUMBERS, cpu="two")
    assert main(["compare", old, new]) == 0
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first == "note: cpu was one, is two"
    assert [row.split()[-1] for row in rows] == ["1.000"] * 3


def test_what_is_no_file_of_numbers_is_refused_in_a_line(tmp_path, capsys):
    good, other = file_of(tmp_path / "good", NUMBERS), file_of(tmp_path / "other", NUMBERS, subject="step")
    (tmp_path / "list").write_text("[]")
    for word, reason in (("none", "cannot be read"), ("list", "is no file of"), ("other", "is of step")):
        assert main(["compare", str(tmp_path / word), good]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line
    assert other


def test_what_cannot_be_measured_is_refused_in_a_line(capsys):
    assert main(["probes", "--width", "8", "--norms", "cn", "--threads", "1"]) == 2
    assert capsys.readouterr().err.startswith("error: 32 groups do not divide 8 channels")


def test_a_machine_is_described_without_its_name(monkeypatch):
    found = description(2)
    assert {"cpu", "cores", "torch", "python", "threads"} <= found.keys()
    assert found["cores"] >= 1
    import socket

    assert socket.gethostname() not in json.dumps(found)


def test_views_are_no_operations():
    with Operations() as counted:
        torch.ones(2, 3).view(6).add(1).unsqueeze(0)
    assert (counted.count, set(counted.names)) == (2, {"aten.ones.default", "aten.add.Tensor"})


def test_calls_in_written_code():
    assert len(OWN.findall(WRITTEN)) == 2
    assert len(LIBRARY.findall(WRITTEN)) == 3
