"""Every benchmark runs once at a tiny size; files of numbers are compared by name."""

import json

import pytest
import torch

from scripts.bench.__main__ import SUBJECTS, main
from scripts.bench.common import interleaved, ratio

TINY = {
    "norms": ["--width", "2", "--batch", "4"],
    "run": ["--widths", "2", "--steps", "2", "--norms", "adab2n"],
    "compile": ["--widths", "2", "--amp", "none"],
    "official": ["--widths", "2", "--steps", "1", "--path", "released"],
}
STAND_IN = """
import json, sys, torch
from backbone.ResNet18 import resnet18
from torchvision.datasets import CIFAR10
torch.set_num_threads(4)
sizes = [len(CIFAR10("", train=train).targets) for train in (True, False)]
json.dump([sizes, resnet18(10), torch.get_num_threads(), sys.argv], open("seen.json", "w"))
"""


def check_subject(subject, folder, capsys):
    """A tiny benchmark writes numbers that can be compared with themselves."""
    file = folder / "numbers.json"
    assert main([subject, *TINY[subject], "--repetitions", "1", "--threads", "1", "--json", str(file)]) == 0
    assert capsys.readouterr().out
    assert json.loads(file.read_text())["about"]["subject"] == subject
    assert main(["compare", str(file), str(file)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines()[1:] if line]
    assert lines
    assert all(line.endswith("1.000") for line in lines)


def write_released_code(folder):
    network = "def resnet18(n, nf=64): return nf"
    for name, text in {"utils/main.py": STAND_IN, "backbone/__init__.py": "", "backbone/ResNet18.py": network}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_released_code_gets_the_same_images_and_settings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_released_code(tmp_path / "released")
    check_subject("official", tmp_path, capsys)
    sizes, width, threads, flags = json.loads((tmp_path / "released" / "seen.json").read_text())
    assert (sizes, width, threads) == ([50, 10], 2, 1)
    assert {"--model", "derpp", "--nl", "AdaB2N", "--batch_size", "10"} <= set(flags)


def test_released_code_that_is_missing_or_fails_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["official", *TINY["official"]]) == 2
    assert "--path" in capsys.readouterr().err
    write_released_code(tmp_path / "released")
    (tmp_path / "released" / "utils" / "main.py").write_text("raise SystemExit('no setproctitle')")
    assert main(["official", *TINY["official"], "--repetitions", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no setproctitle" in line


@pytest.mark.parametrize("subject", ["norms", "run"])  # tests/compiled runs the other, which takes minutes
def test_subject_at_a_tiny_size(subject, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check_subject(subject, tmp_path, capsys)
    assert SUBJECTS.keys() == TINY.keys()


def test_repetitions_are_interleaved_in_rotating_order():
    order = []
    seconds = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, repetitions=2, warmup=1)
    assert "".join(order) == "ab" + "ab" + "ba"
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}


def test_ratio_is_the_median_of_pairs():
    entry = ratio(torch.tensor([2.0, 4.0, 30.0]).numpy(), torch.tensor([1.0, 2.0, 3.0]).numpy())
    assert entry["low"] <= entry["ratio"] == 2 <= entry["high"]


def test_numbers_are_compared_by_name_and_machines_too(tmp_path, capsys):
    def compare(numbers, **about):
        content = {"about": {"subject": "norms", "cpu": "one", "commit": "a"} | about, "numbers": numbers}
        (tmp_path / "new").write_text(json.dumps(content))
        code = main(["compare", str(tmp_path / "old"), str(tmp_path / "new")])
        (tmp_path / "old").write_text(json.dumps(content))
        return code, [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]

    compare({"ms": {"bn": 2.0, "gn": 3}, "gain": {"ratio": 1.0, "low": 0.9, "high": 1.1}})
    code, lines = compare({"ms": {"bn": 3.0, "sn": 1}, "gain": {"ratio": 1.3, "low": 1.2, "high": 1.4}}, commit="b")
    assert code == 0
    assert lines[1:] == [["ms", "/", "bn", "2", "3", "1.500"], ["gain", "1", "1.3", "1.300", "differs"]]
    code, lines = compare({"gain": {"ratio": 1.17, "low": 1.1, "high": 1.25}}, cpu="two")
    assert lines[0] == ["note:", "cpu", "was", "one,", "is", "two"]
    assert lines[2] == ["gain", "1.3", "1.17", "0.900"]
    assert compare({}, subject="compile")[0] == 2


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        (["compare", "none", "none"], "none"),
        (["compare", "list", "list"], "--json"),
        (["run", "--norms", "nope"], "nope"),
    ],
)
def test_mistakes_are_one_line(words, keyword, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list").write_text("[]")
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert keyword in line
