"""Metrics of accuracy matrices small enough to work out by hand."""

import pytest

from utils.run import metrics

PLAIN = [[80.0, 10.0, None], [60.0, 70.0, 20.0], [50.0, 40.0, 90.0]]
# Task 0 gains after all, and task 1 was best just before it was trained.
ODD = [[80.0, 75.0, None], [85.0, 70.0, 20.0], [90.0, 40.0, 95.0]]
UNTRAINED = [12.0, 8.0, 15.0]


def test_final_average_accuracy():
    assert metrics.final_average_accuracy(PLAIN) == pytest.approx(60.0)


def test_cumulative_average_accuracy_counts_trained_tasks_only():
    assert metrics.cumulative_average_accuracy(PLAIN) == pytest.approx((80 + 65 + 60) / 3)


@pytest.mark.parametrize(
    ("matrix", "forgetting", "published"),
    [(PLAIN, (30 + 30) / 2, (30 + 30) / 2), (ODD, (-5 + 30) / 2, (0 + 35) / 2)],
)
def test_both_kinds_of_forgetting(matrix, forgetting, published):
    assert metrics.forgetting(matrix) == pytest.approx(forgetting)
    assert metrics.forgetting_as_published(matrix) == pytest.approx(published)


def test_published_forgetting_is_never_negative():
    improving = [[10.0, 5.0, None], [20.0, 30.0, 5.0], [40.0, 50.0, 60.0]]
    assert metrics.forgetting(improving) == pytest.approx((-20 - 20) / 2)
    assert metrics.forgetting_as_published(improving) == 0


def test_backward_transfer():
    assert metrics.backward_transfer(PLAIN) == pytest.approx((-30 - 30) / 2)
    assert metrics.backward_transfer(ODD) == pytest.approx((10 - 30) / 2)


def test_forward_transfer():
    assert metrics.forward_transfer(PLAIN, UNTRAINED) == pytest.approx((2 + 5) / 2)
    assert metrics.forward_transfer(ODD, UNTRAINED) == pytest.approx((67 + 5) / 2)


def test_measures_of_a_whole_run():
    """Two tasks; measured twice within the first and once within the second, before their ends."""
    points = [[[30.0], [50.0], [90.0]], [[20.0, 40.0], [60.0, 80.0]]]
    assert metrics.average_anytime_accuracy(points) == pytest.approx((30 + 50 + 90 + 30 + 70) / 5)
    assert metrics.minimum_accuracy(points) == 20.0  # not 30: that was before the first task's end
    assert metrics.worst_case_accuracy(points) == pytest.approx(80 / 2 + 20 / 2)


def test_summary_of_a_run():
    assert metrics.summary(ODD, UNTRAINED) == pytest.approx(
        {
            "faa": 75.0,
            "caa": (80 + 77.5 + 75) / 3,
            "aaa": (80 + 77.5 + 75) / 3,
            "learning_accuracy": (80 + 70 + 95) / 3,
            "min_acc": (85 + 40) / 2,
            "wc_acc": 95 / 3 + 2 / 3 * 62.5,
            "forgetting": 12.5,
            "forgetting_as_published": 17.5,
            "bwt": -10.0,
            "fwt": 36.0,
        }
    )


def test_summary_of_joint_training():
    assert metrics.summary([[30.0, 60.0, 90.0]], UNTRAINED) == {
        "faa": 60.0,
        "caa": 60.0,
        "aaa": 60.0,
        "learning_accuracy": None,
        "min_acc": None,
        "wc_acc": None,
        "forgetting": None,
        "forgetting_as_published": None,
        "bwt": None,
        "fwt": None,
    }
