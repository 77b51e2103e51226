"""Metrics of accuracy matrices small enough to work out by hand."""

import pytest

from utils.run import metrics

PLAIN = [[80.0, 10.0, None], [60.0, 70.0, 20.0], [50.0, 40.0, 90.0]]
# Task 0 gains after all, and task 1 was best just before it was trained.
ODD = [[80.0, 75.0, None], [85.0, 70.0, 20.0], [90.0, 40.0, 95.0]]
UNTRAINED = [12.0, 8.0, 15.0]


def test_measures_of_a_whole_run():
    """Two tasks; measured twice within the first and once within the second, before their ends."""
    points = [[[30.0], [50.0], [90.0]], [[20.0, 40.0], [60.0, 80.0]]]
    summary = metrics.summary(metrics.Measured([[90.0, 10.0], [60.0, 80.0]], points))
    assert summary["aaa"] == pytest.approx((30 + 50 + 90 + 30 + 70) / 5)
    assert summary["min_acc"] == 20.0  # not 30: that was before the first task's end
    assert summary["wc_acc"] == pytest.approx(80 / 2 + 20 / 2)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (
            PLAIN,
            {"faa": 60, "caa": (80 + 65 + 60) / 3, "aaa": (80 + 65 + 60) / 3, "learning_accuracy": 80}
            | {"min_acc": (50 + 40) / 2, "wc_acc": 90 / 3 + 2 / 3 * 45, "forgetting": 30, "forgetting_as_published": 30}
            | {"bwt": -30, "fwt": (2 + 5) / 2},
        ),
        (
            ODD,
            {"faa": 75, "caa": (80 + 77.5 + 75) / 3, "aaa": (80 + 77.5 + 75) / 3, "learning_accuracy": 245 / 3}
            | {"min_acc": (85 + 40) / 2, "wc_acc": 95 / 3 + 2 / 3 * 62.5, "forgetting": (-5 + 30) / 2}
            | {"forgetting_as_published": (0 + 35) / 2, "bwt": (10 - 30) / 2, "fwt": (67 + 5) / 2},
        ),
    ],
)
def test_summary_of_a_run(matrix, expected):
    assert metrics.summary(metrics.measured(matrix, UNTRAINED)) == pytest.approx(expected)


def test_summary_of_joint_training():
    summary = metrics.summary(metrics.measured([[30.0, 60.0, 90.0]], UNTRAINED))
    assert {name: value for name, value in summary.items() if value is not None} == dict.fromkeys(
        ("aaa", "faa", "caa"), 60.0
    )
