"""Evaluations while a task is trained, `--eval_every`: where they are, and that they change nothing else."""

import pytest

from tests.helpers import build_run, make_spec, make_stream, run_config
from utils.run.observers import Observer
from utils.run.training import Training

SPEC = make_spec(n_tasks=3, n_classes=6)  # ten images and three batches a task


class Curve(Observer):
    def __init__(self):
        self.losses, self.points, self.evaluations = [], [], []

    def on_step(self, step):
        self.losses.append(step.loss.item())

    def on_mid_task_eval(self, event):
        self.points.append((event["step"], event["task"], len(event["accuracy"]["class_il"])))

    def on_evaluation(self, event):
        self.evaluations.append(event["step"])


def trained(**changes) -> tuple[Curve, dict]:
    config, stream, curve = run_config("er", "adab2n", **changes), make_stream(SPEC), Curve()
    _, method = build_run(config, stream)
    return curve, Training(config, stream, method, observers=[curve]).run()


def test_points_are_between_the_ends_of_tasks_on_the_tasks_seen_so_far():
    curve, outcome = trained(eval_every=2)
    assert curve.evaluations == [3, 6, 9]
    assert curve.points == [(2, 0, 1), (4, 1, 2), (8, 2, 3)]  # the sixth step ends a task
    kept = outcome["results"]["class_il"]["points"]
    assert [(point["step"], point["task"]) for point in kept] == [(2, 0), (4, 1), (8, 2)]
    summary = outcome["results"]["class_il"]
    means = [sum(point["accuracy"]) / len(point["accuracy"]) for point in kept]
    ends = [sum(row[: i + 1]) / (i + 1) for i, row in enumerate(summary["matrix"])]
    assert summary["metrics"]["aaa"] == pytest.approx(sum(means + ends) / 6)


def test_points_change_no_step_and_no_accuracy():
    plain, without = trained()
    curve, outcome = trained(eval_every=1)
    assert curve.losses == plain.losses
    for setting, result in outcome["results"].items():
        assert result["matrix"] == without["results"][setting]["matrix"]
    assert plain.points == []
    assert "points" not in without["results"]["class_il"]
