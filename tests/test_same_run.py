"""Which commands are the same run, and which another."""

import pytest

from utils.config.parser import parse
from utils.config.resolve import resolve
from utils.run.build import StreamBuilder
from utils.run.identity import run_name


def name_of(flags=""):
    config = resolve(parse(f"--model derpp --dataset seq-digits {flags}".split()))
    return run_name(config, StreamBuilder(config).spec)


@pytest.mark.parametrize(
    ("flags", "same_as"),
    [
        ("--log_every 7 --notes remark --num_threads 2 --device cpu --save_model --rerun --wandb_project p", ""),
        ("--norm bn --backbone resnet18 --lr 0.01 --batch_size 10 --minibatch_size 10 --class_order_seed 0", ""),
        ("--replay_forward separate", ""),
        ("--norm adab2n --replay_forward joint", "--norm adab2n"),  # what auto means
        ("--fidelity paper", "--replay_forward joint"),  # a preset counts only through the switches it sets
        ("--fidelity paper --replay_forward separate", ""),
    ],
)
def test_flags_that_change_no_number_are_the_same_run(flags, same_as):
    assert name_of(flags) == name_of(same_as)


def test_flags_that_change_numbers_are_other_runs():
    others = """lr 0.04, seed 1, class_order_seed 1, norm adab2n, n_tasks 2, alpha 0.2, minibatch_size 11,
        buffer_size 100, buffer_mode ring, num_filters 8, validation 0.1, debug_mode, dtype float64, optim_mom 0.9,
        scenario offline, replay_forward joint, norm adab2n --replay_forward separate, amp bfloat16, classifier seen,
        hold_out 0.1, optimizer adam --optim_mom 0, optim_mom 0.9 --nesterov, drop_last, n_iters 5, stop_after 2"""
    names = [name_of(), *(name_of(f"--{flags.strip()}") for flags in others.split(","))]
    assert len(set(names)) == len(names) == 26
