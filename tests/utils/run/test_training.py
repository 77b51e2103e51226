"""The training loop on streams made by hand: schedules, what is seen, evaluated, told and stored."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from models.method import Method
from models.sgd import Sgd
from tests.helpers import build_run, make_spec, make_stream, record_steps, run_config, sample_numbers
from tests.models.cut_off import with_checkpoints
from utils.errors import RunFailed
from utils.run.evaluation import accuracies
from utils.run.observers import Observer
from utils.run.training import Training
from utils.step import CURRENT


def scheduled(**changes) -> Method:
    config = {"lr": 0.1, "lr_factor": 0.2, "lr_restart": "task", "n_epochs": 50} | changes
    return Method(None, SimpleNamespace(**config), make_spec(), None, None)


# --- learning rate and sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "starts", "ends"),
    [
        ({"lr_milestones": ()}, [0.1, 0.1, 0.1], [0.1, 0.1, 0.1]),
        ({"lr_milestones": (35, 45), "lr_factor": 0.1}, [0.1, 0.1, 0.1], [0.001, 0.001, 0.001]),
        ({"lr_milestones": (35, 60, 75), "lr_restart": "never"}, [0.1, 0.02, 0.004], [0.02, 0.004, 0.0008]),
    ],
)
def test_learning_rate_at_the_ends_of_three_tasks(changes, starts, ends):
    method = scheduled(**changes)
    assert [method.learning_rate(task, 0) for task in range(3)] == pytest.approx(starts)
    assert [method.learning_rate(task, 34) for task in range(3)] == pytest.approx(starts)
    assert [method.learning_rate(task, 49) for task in range(3)] == pytest.approx(ends)


# --- a run -------------------------------------------------------------------------------------------------------


class Notebook(Observer):
    """Writes down everything it is told."""

    def __init__(self):
        self.events = []

    def on_start(self, total_steps, done_steps):
        self.events.append(("start", total_steps, done_steps))

    def on_step(self, step):
        self.events.append(("step", step.index.task, step.index.step, step.index.epoch))

    def on_log(self, event):
        self.events.append(("log", event))

    def on_evaluation(self, event):
        self.events.append(("evaluation", event))

    def of_kind(self, kind: str) -> list:
        return [event[1] for event in self.events if event[0] == kind]


def class_stream(sizes: tuple[int, ...] = (10, 8, 11)):
    return make_stream(make_spec(n_tasks=3, n_classes=6, train_sizes=sizes))


def run(config, stream, observers=()):
    net, method = build_run(config, stream)
    return Training(config, stream, method, observers).run(), net, method


def test_after_task_i_the_tasks_up_to_the_next_are_evaluated():
    notebook, stream = Notebook(), class_stream()
    outcome, _, method = run(run_config("er"), stream, [notebook])
    evaluations = notebook.of_kind("evaluation")
    assert [event["task"] for event in evaluations] == [0, 1, 2]
    assert list(outcome["results"]) == ["class_il", "task_il"]
    for setting, result in outcome["results"].items():
        rows = [event["accuracy"][setting] for event in evaluations]
        assert [len(row) for row in rows] == [2, 3, 3]
        assert result["matrix"] == [[*rows[0], None], rows[1], rows[2]]
        assert len(result["untrained"]) == 3
        for index, event in enumerate(evaluations):
            assert event["mean"][setting] == pytest.approx(np.mean(rows[index][: index + 1]))
    final = accuracies(method, stream, range(3))
    assert {setting: result["matrix"][-1] for setting, result in outcome["results"].items()} == final


def test_joint_training_has_one_row_over_all_tasks():
    notebook = Notebook()
    outcome, *_ = run(run_config("joint"), class_stream(sizes=(10, 8, 10)).as_single_task(), [notebook])
    [event] = notebook.of_kind("evaluation")
    for setting, result in outcome["results"].items():
        assert result["matrix"] == [event["accuracy"][setting]]
        assert len(result["matrix"][0]) == 3
        assert event["mean"][setting] == pytest.approx(np.mean(result["matrix"][0]))
        assert result["metrics"]["forgetting"] is None


def test_order_of_events():
    """Ten, eight and eleven samples in batches of four, two epochs, a log line at least every second step."""
    notebook = Notebook()
    outcome, *_ = run(run_config("sgd", n_epochs=2, log_every=2), class_stream(), [notebook])
    kinds = [event[0] for event in notebook.events]
    three, two = ["step", "step", "log", "step", "log"], ["step", "step", "log"]
    assert kinds == ["start", *three * 2, "evaluation", *two * 2, "evaluation", *three * 2, "evaluation"]
    assert notebook.events[0] == ("start", 16, 0)
    steps = [event[1:] for event in notebook.events if event[0] == "step"]
    assert [place[:2] for place in steps] == list(zip([0] * 6 + [1] * 4 + [2] * 6, range(16), strict=True))
    assert [epoch for _, _, epoch in steps] == [0] * 3 + [1] * 3 + [0] * 2 + [1] * 2 + [0] * 3 + [1] * 3
    logs = notebook.of_kind("log")
    assert [event["step"] for event in logs] == [2, 3, 5, 6, 8, 10, 12, 13, 15, 16]
    assert [event["epoch"] for event in logs] == [0, 0, 1, 1, 0, 1, 0, 0, 1, 1]
    assert [event["step"] for event in notebook.of_kind("evaluation")] == [6, 10, 16]
    assert outcome["steps"] == 16


def test_the_logged_learning_rate_follows_the_schedule():
    notebook = Notebook()
    config = run_config("sgd", n_epochs=2, lr=0.1, lr_milestones=(1,), lr_factor=0.2, lr_restart="never", log_every=9)
    run(config, class_stream(), [notebook])
    rates = [event["lr"] for event in notebook.of_kind("log")]
    assert rates == pytest.approx([0.1, 0.02, 0.02, 0.004, 0.004, 0.0008])


def recorded_batches() -> list[tuple[int, int, list[int]]]:
    """Return task, step and numbers of the samples of every batch."""
    config, stream = run_config("sgd", n_epochs=3), class_stream()

    def look(step):
        return step.index.task, step.index.step, sample_numbers(step.batches[CURRENT].images).tolist()

    return record_steps(config, stream, look)[0]


def test_every_sample_of_a_task_is_seen_once_in_every_epoch():
    batches = recorded_batches()
    assert [step for _, step, _ in batches] == list(range(3 * (3 + 2 + 3)))
    for task, (start, stop) in enumerate([(0, 10), (10, 18), (18, 29)]):
        mine = [numbers for owner, _, numbers in batches if owner == task]
        per_epoch = len(mine) // 3
        epochs = [np.concatenate(mine[k * per_epoch : (k + 1) * per_epoch]).tolist() for k in range(3)]
        for epoch in epochs:
            assert sorted(epoch) == list(range(start, stop))
        assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("log_every", [1, 3, 100])
def test_a_loss_that_is_no_number_fails_the_run_and_names_the_step(value, log_every):
    class Breaking(Sgd):
        def loss(self, batches, outputs, index):
            losses = super().loss(batches, outputs, index)
            return losses | {"labels": losses["labels"] * (value if index.step == 4 else 1.0)}

    config, stream = run_config("sgd", n_epochs=2, log_every=log_every), class_stream()
    net, method = build_run(config, stream)
    training = Training(config, stream, Breaking(net, config, stream.spec, method.augment, None))
    with pytest.raises(RunFailed, match=rf"in task 1: .* {value} at step 5"):
        training.run()


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_batches_of_one_that_cannot_be_normalized_fail_the_run_that_asks_for_them(norm):
    with pytest.raises(RunFailed, match="--batch_size"):
        run(run_config("sgd", norm, batch_size=1), replace(class_stream(), batch_size=1))


# --- tasks that share their classes ------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
@pytest.mark.parametrize("model", ["er", "derpp"])
@pytest.mark.parametrize("mode", ["reservoir", "ring"])
def test_domain_incremental_run(model, norm, mode):
    notebook = Notebook()
    stream = make_stream(make_spec("domain", n_tasks=3, train_sizes=(10, 8, 11)))
    outcome, _, method = run(run_config(model, norm, buffer_mode=mode), stream, [notebook])
    assert list(outcome["results"]) == ["domain_il"]
    assert [len(event["accuracy"]["domain_il"]) for event in notebook.of_kind("evaluation")] == [2, 3, 3]
    assert len(method.buffer) == 12
    numbers = sample_numbers(method.buffer.images)
    assert len(set(numbers)) == 12
    assert method.buffer.tasks.tolist() == np.searchsorted([10, 18], numbers, side="right").tolist()
    assert set(method.buffer.tasks_host) == {0, 1, 2}
    assert method.buffer.tasks_host.tolist() == method.buffer.tasks.tolist()
    assert method.buffer.labels.tolist() == stream.train_data.labels_host[numbers].tolist()
    assert method.buffer.labels_host.tolist() == method.buffer.labels.tolist()


def test_a_checkpoint_from_before_prequential_accuracy_is_resumed():
    def build() -> Training:
        stream, config = make_stream(make_spec()), run_config("er")
        return with_checkpoints(Training(config, stream, build_run(config, stream)[1]))

    results = (straight := build()).run()["results"]
    _, state = straight.checkpoints.states[0]
    del state["n_samples"], state["n_predicted"]
    assert build().run(state)["results"] == results
