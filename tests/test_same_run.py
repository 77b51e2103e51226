"""Which commands are the same run, and which another."""

from pathlib import Path

import pytest

DIGITS = ["--dataset", "seq-digits", "--num_filters", "4"]


def run_folder(run, *flags):
    finished = run("--model", "derpp", *DIGITS, *flags, "--dry_run")
    assert finished.code == 0, finished.stderr
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("# folder: ")]
    return Path(line.removeprefix("# folder: ").removesuffix(" (not finished)")).name


@pytest.mark.parametrize(
    "flags",
    [
        "--log_every 7",
        "--notes remark",
        "--num_threads 2",
        "--device cpu",
        "--save_model",
        "--rerun",
        "--wandb_project p",
        "--norm bn --backbone resnet18",
        "--lr 0.01 --batch_size 10 --minibatch_size 10",
        "--class_order_seed 0",
        "--replay_forward separate",
    ],
)
def test_flags_that_change_no_number_are_the_same_run(run_main, flags):
    assert run_folder(run_main, *flags.split()) == run_folder(run_main)


@pytest.mark.parametrize(
    "flags",
    [
        "--lr 0.04",
        "--seed 1",
        "--class_order_seed 1",
        "--norm adab2n",
        "--n_tasks 2",
        "--alpha 0.2",
        "--minibatch_size 11",
        "--buffer_size 100",
        "--buffer_mode ring",
        "--num_filters 8",
        "--validation 0.1",
        "--debug_mode",
        "--dtype float64",
        "--optim_mom 0.9",
        "--scenario offline",
        "--replay_forward joint",
    ],
)
def test_flags_that_change_numbers_are_another_run(run_main, flags):
    assert run_folder(run_main, *flags.split()) != run_folder(run_main)


def test_joint_forward_is_what_auto_means_for_adab2n(run_main):
    ada = ["--norm", "adab2n"]
    assert run_folder(run_main, *ada, "--replay_forward", "joint") == run_folder(run_main, *ada)
    assert run_folder(run_main, *ada, "--replay_forward", "separate") != run_folder(run_main, *ada)


def test_preset_counts_only_through_the_switches_it_sets(run_main):
    paper = ["--fidelity", "paper"]
    assert run_folder(run_main, *paper) == run_folder(run_main, "--replay_forward", "joint")
    assert run_folder(run_main, *paper, "--replay_forward", "separate") == run_folder(run_main)
