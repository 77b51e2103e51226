"""Options of the loop that came later: optimizers, steps instead of epochs, full batches, parts of a stream."""

import pytest

from tests.helpers import assert_close, build_run, make_spec, make_stream, record_steps, run_config, weights_of
from tests.utils.run.test_training import Notebook
from utils.run.training import Cursor, Training
from utils.step import StepIndex

DIGITS = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8", "--batch_size", "40"]


# --- optimizers -------------------------------------------------------------------------------------------------------


def moved_by(**flags) -> tuple[dict, dict]:
    """Weights before and after one step on the same batch."""
    config, stream = run_config("sgd", dtype="float64", **flags), make_stream(make_spec())
    net, method = build_run(config, stream)
    before = weights_of(net)
    net.train()
    method.grow()
    method.step(next(stream.batches(0, 0, 0)), StepIndex(0, 0))
    return before, weights_of(net)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"optimizer": "sgd"}, lambda w, g: w - 0.05 * g),
        ({"optim_mom": 0.9}, lambda w, g: w - 0.05 * g),  # the first step has no past
        ({"optim_mom": 0.9, "nesterov": True}, lambda w, g: w - 0.05 * 1.9 * g),
        ({"optim_wd": 0.1, "optim_mom": 0.5, "nesterov": True}, lambda w, g: w - 0.05 * 1.5 * (g + 0.1 * w)),
        ({"optimizer": "adam"}, lambda w, g: w - 0.05 * g / (g.abs() + 1e-8)),
        ({"optimizer": "adam", "optim_wd": 0.1},
         lambda w, g: w - 0.05 * (g + 0.1 * w) / ((g + 0.1 * w).abs() + 1e-8)),
        ({"optimizer": "adamw", "optim_wd": 0.1}, lambda w, g: w * (1 - 0.05 * 0.1) - 0.05 * g / (g.abs() + 1e-8)),
    ],
)  # fmt: skip
def test_first_step_of_every_optimizer(flags, expected):
    before, after = moved_by(lr=1.0)
    parameters = [name for name in before if "running" not in name and "batches" not in name]
    gradients = {name: before[name] - after[name] for name in parameters}
    _, positions = moved_by(**flags)
    for name in parameters:
        assert_close(positions[name], expected(before[name], gradients[name]), rtol=1e-6, atol=1e-9)


# --- steps instead of epochs, full batches ----------------------------------------------------------------------------


def places(config, stream):
    """(task, epoch) of every step, the events of a run, and its outcome."""
    notebook = Notebook()
    _, method = build_run(config, stream)
    outcome = Training(config, stream, method, [notebook]).run()
    return [(event[1], event[3]) for event in notebook.events if event[0] == "step"], notebook, outcome


def test_steps_per_task_go_through_epochs_and_stop_in_one():
    config = run_config("sgd", n_iters=7, eval_every=7)
    positions, notebook, outcome = places(config, make_stream(make_spec()))  # 10 images, batches of 4: three an epoch
    epochs = [0, 0, 0, 1, 1, 1, 2]
    assert positions == [(task, epoch) for task in (0, 1) for epoch in epochs]
    assert notebook.events[0] == ("start", 14, 0)
    assert [event["step"] for event in notebook.of_kind("evaluation")] == [7, 14]
    assert outcome["results"]["class_il"]["points"] == []  # the last step of a task is evaluated once
    assert [event["step"] for event in notebook.of_kind("log")] == [3, 6, 7, 10, 13, 14]


def test_a_task_that_had_ended_is_not_trained_further():
    """Its end may have changed what joins it, and so how many steps its epochs seem to have had."""
    config, stream = run_config("sgd", n_iters=7), make_stream(make_spec())
    training = Training(config, stream, build_run(config, stream)[1])
    training.cursor = Cursor(task=0, epoch=1, step=7, ended=True)
    training._train_task()
    assert training.cursor.step == 7


def test_samples_that_join_a_task_make_no_more_steps_of_it():
    positions, *_ = places(run_config("icarl", n_iters=5), make_stream(make_spec()))
    assert [task for task, _ in positions] == [0] * 5 + [1] * 5


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 2] * 4), (True, [4, 4] * 4)])
def test_a_last_batch_that_is_not_full_may_be_left_out(drop_last, sizes):
    config = run_config("sgd", drop_last=drop_last, n_epochs=2)
    seen, _, outcome = record_steps(config, make_stream(make_spec()), lambda step: len(step.batches["current"]))
    assert seen == sizes
    assert outcome["steps"] == len(sizes)


# --- runs that stop early ---------------------------------------------------------------------------------------------


def test_a_run_that_stops_early_has_the_first_rows_of_the_whole(run_main):
    words = ["--model", "derpp", "--norm", "adab2n", *DIGITS]
    whole, part = run_main(*words), run_main(*words, "--stop_after", "3")
    assert whole.folder != part.folder
    assert part.record["data"]["n_tasks"] == 3
    for setting in ("class_il", "task_il"):
        rows = [result.record["results"][setting]["matrix"] for result in (whole, part)]
        assert [row[:3] for row in rows[0][:3]] == rows[1]
        assert part.record["results"][setting]["metrics"]["faa"] == pytest.approx(sum(rows[1][2]) / 3)
    assert "task 4" not in part.stdout
