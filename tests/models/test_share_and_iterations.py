"""How much a step replays and how often: `--current_share`, `--balance_replay` and `--replay_iters`."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import runner

from models.replay import draw_sizes
from tests.helpers import assert_close, build_run, make_spec, make_stream, run_config, weights_of
from tests.models.cut_off import assert_a_cut_off_run_ends_the_same
from utils.config.options import share
from utils.config.resolve import resolve
from utils.data.augment import Crop, Flip
from utils.data.random import generator
from utils.errors import UsageError
from utils.run.build import StreamBuilder
from utils.run.estimate import memory_estimate
from utils.run.identity import run_identity
from utils.run.observers import Observer
from utils.run.training import Training
from utils.step import StepIndex

SPEC = make_spec(n_tasks=3, n_classes=6, augmentation=(Crop(2), Flip()))  # ten images and three batches a task


class Steps(Observer):
    def __init__(self):
        self.found, self.sizes, self.images, self.slots, self.logs = [], [], [], [], []

    def on_step(self, step):
        self.found.append((step.index.step, step.index.iteration, step.index.last))
        self.sizes.append({name: len(batch) for name, batch in step.batches.items()})
        self.images.append(step.batches["current"].inputs)
        self.slots.append({name: batch.images[:, 0, 0, 0].tolist() for name, batch in step.batches.items()})

    def on_log(self, event):
        self.logs.append((event["step"], event["loss"]))


def trained(model: str = "er", norm: str = "bn", spec=SPEC, **changes):
    """(what was seen of its steps, method, outcome)."""
    config, stream, steps = run_config(model, norm, **changes), make_stream(spec), Steps()
    _, method = build_run(config, stream)
    return steps, method, Training(config, stream, method, observers=[steps]).run()


# --- the share of the current batch -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"), [("1/5", "1/5"), ("0.2", "1/5"), (".5", "1/2"), ("4/6", "2/3"), ("1", "1"), ("1/T", "1/T")]
)
def test_a_share_is_a_fraction(text, value):
    assert share(text) == value
    assert share(value) == value


@pytest.mark.parametrize("text", ["0", "2", "-1/2", "1/0", "0/5", "1/t", "T", "1e-3", "", "nan", "1/2/3", "9" * 30])
def test_anything_else_is_none(run_main, text):
    ended = run_main("--model", "er", "--dataset", "seq-digits", f"--current_share={text}")
    assert (ended.code, ended.stderr.count("\n")) == (2, 1)
    assert "--current_share: must be a share above 0 and up to 1 such as 1/5" in ended.stderr


def sizes(current_share: str, n_draws: int, tasks_seen: int = 1, batch_size: int = 10) -> list[int]:
    return draw_sizes(SimpleNamespace(current_share=current_share, batch_size=batch_size), n_draws, tasks_seen)


@pytest.mark.parametrize(
    ("current_share", "drawn"),
    [("1", 0), ("1/2", 10), ("1/5", 40), ("1/10", 90), ("1/12", 110), ("1/15", 140), ("1/20", 190), ("2/3", 5)],
)
def test_the_draws_have_what_is_missing_to_the_share(current_share, drawn):
    assert sizes(current_share, 1) == [drawn]
    assert sum(sizes(current_share, 2)) == sum(sizes(current_share, 4)) == drawn


def test_several_draws_share_it_evenly_and_the_first_get_what_is_left():
    assert sizes("1/5", 2) == [20, 20]
    assert sizes("2/3", 2) == [3, 2]
    assert sizes("1/2", 4) == [3, 3, 2, 2]
    assert sizes("0.9", 2) == [1, 0]  # 1.11, rounded
    assert sizes("3/7", 1) == [13]  # 13.3


def test_a_share_of_one_task_falls_with_the_tasks_seen():
    assert [sizes("1/T", 1, tasks) for tasks in (1, 2, 3, 20)] == [[0], [10], [20], [190]]


def drawn_in(model: str, **changes) -> list[dict[str, int]]:
    """Sizes of the draws of every step; three steps a task, and the buffer has four samples after the first."""
    return [draws_among(step) for step in trained(model, **changes)[0].sizes]


def drawn_in_step(model: str, task: int, **changes) -> dict[str, int]:
    """Sizes of the draws of one step of this task, with five samples in the buffer."""
    stream = make_stream(make_spec(n_tasks=3, n_classes=6, image_shape=(3, 16, 16)))
    net, method = build_run(run_config(model, **changes), stream)
    for _ in range(task + 1):
        method.grow()
    net.train()
    method.buffer.add(replace(next(stream.in_order(0, 5)), logits=torch.zeros(5, 6)), generator(0, "fill"))
    step = method.step(next(stream.batches(task, 0, 0)), StepIndex(task, 1))
    assert step.loss_terms.keys() == step.batches.keys()
    return draws_among({name: len(batch) for name, batch in step.batches.items()})


def draws_among(sizes: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if name != "current"}


def test_steps_of_a_run_draw_as_the_share_says():
    assert drawn_in("er", current_share="1")[1:] == [{}] * 8
    found = drawn_in("er", current_share="1/3", buffer_size=12)
    assert found == [{}, {"replay": 4}, *[{"replay": 8}] * 7]  # no more than there are
    assert drawn_in("er", current_share="1/T") == [{}] * 3 + [{"replay": 4}] * 3 + [{"replay": 8}] * 3
    assert (
        drawn_in("derpp", current_share="1/T")[3:]
        == [{"logits": 2, "labels": 2}] * 3 + [{"logits": 4, "labels": 4}] * 3
    )


def test_a_draw_without_an_image_is_left_out():
    """4 (1/r - 1) is 1, and then 3."""
    assert drawn_in_step("derpp", 1, norm="gn", current_share="4/5") == {"logits": 1}
    found = drawn_in_step("derpp_lider", 1, norm="gn", backbone="resnet18", current_share="4/7")
    assert found == {"logits": 1, "labels": 1, "lip_mean": 1}


def test_draws_that_a_step_does_not_have_get_nothing():
    """ER-ACE replays from the second task on, LiDER from the second batch."""
    lider = {"norm": "gn", "backbone": "resnet18", "current_share": "2/5"}
    assert drawn_in_step("er_ace_lider", 0, **lider) == {"lip_mean": 3, "lip_target": 3}
    assert drawn_in_step("er_ace_lider", 1, **lider) == {"replay": 2, "lip_mean": 2, "lip_target": 2}


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


def test_half_is_what_one_draw_of_the_batch_size_is():
    assert trained(current_share="1/2")[2]["results"] == trained(minibatch_size=4)[2]["results"]


def test_dry_run_counts_the_largest_draws():
    def activations(**flags):
        facts = {"model": "derpp", "dataset": "seq-cifar10", "num_filters": 4, "device": "cpu"}
        config = resolve(facts | flags)
        return memory_estimate(config, StreamBuilder(config).spec)["activations"]

    one = activations(current_share="1")  # ten images
    assert activations(current_share="1/5") / one == 5
    assert activations(current_share="1/T") / one == 5  # in the last of five tasks
    assert activations(current_share="1/1000", buffer_size=20) / one == 5  # both draws have the whole buffer


def test_balanced_replay_draws_of_every_task():
    """Twelve slots in rings of four: in the last task, before it has any, four samples of two tasks."""

    class Tasks(Observer):
        found = []

        def on_step(self, step):
            self.found.append(sorted(step.batches["replay"].tasks_host) if "replay" in step.batches else None)

    config, stream = run_config("er", balance_replay=True, buffer_mode="ring"), make_stream(SPEC)
    _, method = build_run(config, stream)
    Training(config, stream, method, observers=[Tasks()]).run()
    assert Tasks.found[:6] == [None, [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert Tasks.found[6] == [0, 0, 1, 1]
    assert {tuple(np.bincount(tasks)) for tasks in Tasks.found[7:]} <= {(2, 1, 1), (1, 2, 1), (1, 1, 2)}


# --- several steps for a batch ------------------------------------------------------------------------------------


def test_every_batch_makes_so_many_steps_with_draws_and_augmentation_of_their_own():
    steps, method, outcome = trained(replay_iters=3)
    assert steps.found == [(step, i, i == 2) for step in range(9) for i in range(3)]
    assert outcome["steps"] == 9
    first, second, third = steps.slots[12:15]
    assert first["current"] == second["current"] == third["current"]
    assert len({tuple(step["replay"]) for step in (first, second, third)}) == 3
    assert not steps.images[12].equal(steps.images[13])
    assert method.buffer.policy.seen == 30  # each image once
    assert all("replay" not in step for step in steps.slots[:3])  # the buffer gets a batch after its last step


def test_the_first_iteration_has_the_draws_of_a_run_with_one():
    once, _, _ = trained()
    thrice, _, _ = trained(replay_iters=3)
    assert thrice.slots[::3] == once.slots
    assert all(a.equal(b) for a, b in zip(thrice.images[::3], once.images, strict=True))


def test_the_log_has_the_mean_over_all_steps():
    class Losses(Observer):
        found = []

        def on_step(self, step):
            self.found.append(step.loss.item())

    config, stream, steps = run_config("derpp", replay_iters=2, log_every=2), make_stream(SPEC), Steps()
    _, method = build_run(config, stream)
    Training(config, stream, method, observers=[steps, Losses()]).run()
    assert len(Losses.found) == 18
    expected = [(2, 0, 4), (3, 4, 6), (5, 6, 10), (6, 10, 12), (8, 12, 16), (9, 16, 18)]
    assert steps.logs == [(step, pytest.approx(np.mean(Losses.found[a:b]))) for step, a, b in expected]


def test_stored_logits_are_those_of_the_last_step():
    kept = []

    class Logits(Observer):
        def on_step(self, step):
            kept.append(step.outputs["current"].logits.detach())

    config, stream = run_config("derpp", "gn", replay_iters=2, buffer_size=30), make_stream(make_spec())
    _, method = build_run(config, stream)
    Training(config, stream, method, observers=[Logits()]).run()
    assert method.buffer.logits[:4].equal(kept[1])
    assert not method.buffer.logits[:4].equal(kept[0])


def test_a_batch_of_one_image_is_left_out_once(capsys):
    """The sixth, the last of nine images."""
    places = []

    class Places(Observer):
        def on_step(self, step):
            places.append((step.index.step, step.index.iteration, step.index.last))

    config = run_config("er_ace", replay_iters=3)
    stream = make_stream(make_spec(n_tasks=3, n_classes=6, train_sizes=(10, 9, 8)))
    _, method = build_run(config, stream)
    outcome = Training(config, stream, method, observers=[Places()]).run()
    assert outcome["batches_left_out"] == 1
    assert [place for place in places if place[0] == 5] == [(5, 0, True)]
    assert capsys.readouterr().err.count("left out") == 1


def test_two_iterations_are_two_steps_of_gradient_descent():
    """Without replay and augmentation as good as two epochs of one batch."""
    one_batch = make_spec(n_tasks=1, n_classes=2, train_sizes=(4,), test_sizes=(4,))
    ways = [{"replay_iters": 2}, {"n_epochs": 2}, {}]
    found = []
    for way in ways:
        config, stream = run_config("er", "gn", current_share="1", **way), make_stream(one_batch)
        net, method = build_run(config, stream)
        Training(config, stream, method).run()
        found.append(weights_of(net)["classifier.weight"])
    assert_close(found[0], found[1], atol=1e-6)
    assert (found[0] - found[2]).abs().max() > 1e-4


# --- whole commands -----------------------------------------------------------------------------------------------


def test_one_iteration_is_the_run_that_there_was(tmp_path):
    words = ["--model", "derpp", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8"]
    words += ["--batch_size", "60", "--debug_mode"]
    plain = runner(tmp_path / "plain")(*words)
    named = runner(tmp_path / "named")(*words, "--replay_iters", "1", "--eval_statistics", "running")
    assert named.record["run"] == plain.record["run"]
    assert named.record["results"] == plain.record["results"]


def test_a_command_that_is_cut_off_between_iterations_ends_the_same(tmp_path):
    words = ["--model", "derpp", "--norm", "adab2n", "--buffer_size", "50", "--replay_iters", "3"]
    words += ["--current_share", "1/T", "--balance_replay"]
    record = assert_a_cut_off_run_ends_the_same(tmp_path, *words, at=(5, 8, 19))["record"]
    assert (
        record["identity"] | {"replay_iters": 3, "current_share": "1/T", "balance_replay": True} == record["identity"]
    )


def test_probes_record_every_iteration(run_main):
    words = ["--model", "derpp", "--norm", "bn", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8"]
    ended = run_main(*words, "--batch_size", "100", "--replay_iters", "2", "--probe", "weights,statistics")
    assert ended.code == 0
    with np.load(ended.folder / "recordings" / "weights.npz") as recorded:
        assert recorded["step"].tolist() == np.repeat(np.arange(ended.record["steps"]), 2).tolist()
