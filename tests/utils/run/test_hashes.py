"""The hashes of ten runs. An option that comes later, with what runs did before as its neutral value, changes none of
them; a change that does would make every run of that kind start over."""

from dataclasses import replace

import pytest

from utils.config.options import Option
from utils.config.parser import parse
from utils.config.registry import MODELS
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.run.build import StreamBuilder
from utils.run.identity import run_name

ADAB2N = "--norm adab2n --kappa 0.7 --lambd 1 --ada_t0 0"  # named: defaults may be chosen again
RUNS = {
    "--model derpp --norm bn --dataset seq-digits": "eb5728604548",
    f"--model derpp {ADAB2N} --dataset seq-digits": "027d00eaac5f",
    f"--model er_ace {ADAB2N} --dataset seq-cifar10 --seed 3": "b085340926da",
    f"--model derpp {ADAB2N} --dataset seq-cifar100 --fidelity paper": "7eab2d7c6582",
    "--model er --norm gn --dataset seq-cifar100 --n_tasks 10 --buffer_size 5000 --buffer_mode ring": "1f9edca4d904",
    "--model sgd --norm ln --dataset seq-cifar10 --scenario offline": "72d034edccaa",
    "--model joint --norm in --dataset seq-cifar100": "be7b8c9567fb",
    "--model er_ace_lider --norm cn --dataset seq-cifar10 --validation 0.1": "60067bbdbd43",
    "--model gdumb --norm cma --dataset seq-digits --backbone mlp --dtype float64": "a888637f37b8",
    "--model icarl --norm tbbn --dataset seq-cifar100 --backbone torchvision --arch resnet18": "76871ec001d4",
}


def hash_of(flags: str) -> str:
    config = resolve(parse(flags.split()))
    return run_name(config, StreamBuilder(config).spec).rsplit("-", 1)[1]


@pytest.mark.parametrize("flags", RUNS)
def test_hash_of_a_run(flags):
    assert hash_of(flags) == RUNS[flags]


@pytest.mark.parametrize("default", [float("nan"), {1, 2}])
def test_a_value_that_no_record_can_hold_is_rejected_before_the_run(monkeypatch, default):
    entry = MODELS.get("sgd")
    monkeypatch.setitem(MODELS.entries(), "sgd", replace(entry, options=(Option("odd", str, "", default=default),)))
    config = resolve({"model": "sgd", "dataset": "seq-digits"})
    with pytest.raises(UsageError, match="option"):
        run_name(config, StreamBuilder(config).spec)
