"""How much a step replays and how often: `--current_share`, `--balance_replay` and `--replay_iters`."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models.replay import draw_sizes
from tests.helpers import build_run, make_spec, make_stream, record_steps, run_config
from tests.models.cut_off import assert_a_cut_off_run_ends_the_same
from utils.config.options import share
from utils.config.resolve import resolve
from utils.data.augment import Crop, Flip
from utils.data.random import generator
from utils.errors import UsageError
from utils.run.identity import run_identity
from utils.step import StepIndex

SPEC = make_spec(n_tasks=3, n_classes=6, augmentation=(Crop(2), Flip()))  # ten images and three batches a task


def look(step) -> SimpleNamespace:
    return SimpleNamespace(
        index=(step.index.step, step.index.iteration, step.index.last),
        sizes={name: len(batch) for name, batch in step.batches.items() if name != "current"},
        inputs=step.batches["current"].inputs,
        images={name: batch.images[:, 0, 0, 0].tolist() for name, batch in step.batches.items()},
        tasks=sorted(step.batches["replay"].tasks_host) if "replay" in step.batches else None,
        logits=step.outputs["current"].logits.detach(),
        loss=step.loss.item(),
    )


def steps_of(model: str = "er", norm: str = "bn", spec=SPEC, **changes):
    """Return what was seen of the steps, the method and the outcome."""
    return record_steps(run_config(model, norm, **changes), make_stream(spec), look)


@pytest.mark.parametrize(
    ("text", "value"), [("1/5", "1/5"), ("0.2", "1/5"), (".5", "1/2"), ("4/6", "2/3"), ("1", "1"), ("1/T", "1/T")]
)
def test_a_share_is_a_fraction(text, value):
    assert share(text) == value
    assert share(value) == value


@pytest.mark.parametrize("text", ["0", "2", "-1/2", "1/0", "1/t", "1e-3", "", "nan", "1/2/3"])
def test_anything_else_is_refused(run_main, text):
    ended = run_main("--model", "er", "--dataset", "seq-digits", f"--current_share={text}")
    assert (ended.code, ended.stderr.count("\n")) == (2, 1)
    assert "--current_share" in ended.stderr


@pytest.mark.parametrize(
    ("current_share", "tasks_seen", "sizes"),
    [  # of one draw or several, beside a batch of 10
        ("1", 1, [0]),
        ("1/2", 1, [10]),
        ("1/5", 1, [40]),
        ("1/12", 1, [110]),
        ("1/20", 1, [190]),
        ("2/3", 1, [5]),
        ("3/7", 1, [13]),  # 13.3
        ("1/5", 1, [20, 20]),
        ("2/3", 1, [3, 2]),  # the first get the remainder
        ("1/2", 1, [3, 3, 2, 2]),
        ("0.9", 1, [1, 0]),  # 1.11, rounded
        ("1/T", 1, [0]),
        ("1/T", 2, [10]),
        ("1/T", 3, [20]),
        ("1/T", 20, [190]),
    ],
)
def test_sizes_of_draws(current_share, tasks_seen, sizes):
    config = SimpleNamespace(current_share=current_share, batch_size=10)
    assert draw_sizes(config, len(sizes), tasks_seen) == sizes


def drawn_in(model: str, **changes) -> list[dict[str, int]]:
    """Return sizes of the draws of every step; three steps a task, and the buffer has four samples after the first."""
    return [step.sizes for step in steps_of(model, **changes)[0]]


def drawn_in_step(model: str, task: int, **changes) -> dict[str, int]:
    """Return sizes of the draws of one step of this task, with five samples in the buffer."""
    stream = make_stream(make_spec(n_tasks=3, n_classes=6, image_shape=(3, 16, 16)))
    net, method = build_run(run_config(model, **changes), stream)
    for _ in range(task + 1):
        method.grow()
    net.train()
    method.buffer.add(replace(next(stream.in_order(0, 5)), logits=torch.zeros(5, 6)), generator(0, "fill"))
    step = method.step(next(stream.batches(task, 0, 0)), StepIndex(task, 1))
    assert step.loss_terms.keys() == step.batches.keys()
    return {name: len(batch) for name, batch in step.batches.items() if name != "current"}


def test_steps_of_a_run_draw_as_the_share_says():
    assert drawn_in("er", current_share="1")[1:] == [{}] * 8
    sizes = drawn_in("er", current_share="1/3", buffer_size=12)
    assert sizes == [{}, {"replay": 4}, *[{"replay": 8}] * 7]  # no more than there are
    assert drawn_in("er", current_share="1/T") == [{}] * 3 + [{"replay": 4}] * 3 + [{"replay": 8}] * 3
    sizes = drawn_in("derpp", current_share="1/T")
    assert sizes[3:] == [{"logits": 2, "labels": 2}] * 3 + [{"logits": 4, "labels": 4}] * 3


def test_a_draw_that_a_step_does_not_have_or_that_has_no_image_is_left_out():
    """4 (1/r - 1) is 1, 3 and 6. ER-ACE replays from the second task on, LiDER from the second batch."""
    lider = {"norm": "gn", "backbone": "resnet18"}
    assert drawn_in_step("derpp", 1, norm="gn", current_share="4/5") == {"logits": 1}
    sizes = drawn_in_step("derpp_lider", 1, **lider, current_share="4/7")
    assert sizes == {"logits": 1, "labels": 1, "lip_mean": 1}
    assert drawn_in_step("er_ace_lider", 0, **lider, current_share="2/5") == {"lip_mean": 3, "lip_target": 3}
    sizes = drawn_in_step("er_ace_lider", 1, **lider, current_share="2/5")
    assert sizes == {"replay": 2, "lip_mean": 2, "lip_target": 2}


def test_the_size_of_a_draw_and_the_share_contradict_each_other():
    with pytest.raises(UsageError, match="--minibatch_size and --current_share"):
        run_config("er", current_share="1/2", minibatch_size=3)


def test_a_share_replaces_the_size_of_draws_in_the_identity():
    def identity(**flags):
        return run_identity(resolve({"model": "er", "dataset": "seq-digits"} | flags), SPEC)

    plain = identity()
    assert not {"current_share", "balance_replay", "replay_iters", "final_probes", "eval_statistics"} & plain.keys()
    assert identity(current_share="1/5") == plain | {"current_share": "1/5", "minibatch_size": None}
    assert identity(balance_replay=True, replay_iters=3) == plain | {"balance_replay": True, "replay_iters": 3}


def test_balanced_replay_draws_of_every_task():
    """Twelve slots in rings of four: in the last task, before it has any, four samples of two tasks."""
    tasks = [step.tasks for step in steps_of(balance_replay=True, buffer_mode="ring")[0]]
    assert tasks[:6] == [None, [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert tasks[6] == [0, 0, 1, 1]
    assert {tuple(np.bincount(each)) for each in tasks[7:]} <= {(2, 1, 1), (1, 2, 1), (1, 1, 2)}


def test_every_batch_makes_so_many_steps_with_draws_and_augmentation_of_their_own():
    steps, method, outcome = steps_of(replay_iters=3)
    assert [step.index for step in steps] == [(step, i, i == 2) for step in range(9) for i in range(3)]
    assert outcome["steps"] == 9
    first, second, third = (step.images for step in steps[12:15])
    assert first["current"] == second["current"] == third["current"]
    assert len({tuple(images["replay"]) for images in (first, second, third)}) == 3
    assert not steps[12].inputs.equal(steps[13].inputs)
    assert method.buffer.policy.seen == 30  # each image once
    assert all("replay" not in step.images for step in steps[:3])  # the buffer gets a batch after its last step
    once = steps_of()[0]  # whose draws are those of the first iterations
    assert [step.images for step in steps[::3]] == [step.images for step in once]
    assert all(a.inputs.equal(b.inputs) for a, b in zip(steps[::3], once, strict=True))


def test_stored_logits_are_those_of_the_last_step():
    steps, method, _ = steps_of("derpp", "gn", spec=make_spec(), replay_iters=2, buffer_size=30)
    assert method.buffer.logits[:4].equal(steps[1].logits)
    assert not method.buffer.logits[:4].equal(steps[0].logits)


def test_a_command_that_is_cut_off_between_iterations_ends_the_same(tmp_path):
    words = ["--model", "derpp", "--norm", "adab2n", "--buffer_size", "50", "--replay_iters", "3"]
    words += ["--current_share", "1/T", "--balance_replay"]
    identity = assert_a_cut_off_run_ends_the_same(tmp_path, *words, at=(5, 8, 19))["record"]["identity"]
    assert {"replay_iters": 3, "current_share": "1/T", "balance_replay": True}.items() <= identity.items()
