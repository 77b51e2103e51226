"""What people read at the end of a run."""

import pytest

from utils.tables import aligned, duration, mean_and_deviation, report_over_seeds, run_report

METRICS = {"faa": 62.5, "fwt": -10.0}


def record(faa=62.5, settings=("class_il", "task_il"), **options):
    result = {"matrix": [[80.0, None], [50.0, 75.0]], "metrics": METRICS | {"faa": faa}}
    results = dict.fromkeys(settings, result)
    return {"run": "a-run", "config": options, "results": results, "steps": 30, "seconds": 2.0, "steps_per_second": 15}


def test_a_report():
    assert run_report(record(settings=("domain_il",), validation=None, debug_mode=False)).splitlines() == [
        "a-run",
        "",
        "Domain-IL accuracy, %  task 1  task 2   mean",
        "after task 1            80.00          80.00",
        "after task 2            50.00   75.00  62.50",
        "",
        "summary, %                    Domain-IL",
        "final average accuracy (FAA)      62.50",
        "forward transfer (FWT)           -10.00",
        "",
        "30 steps in 2.0 s of training (15.0 steps/s)",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"validation": 0.1}, "validation"),
        ({"debug_mode": True}, "debug"),
        ({"debug_mode": True, "validation": 0.25}, "validation, debug"),
    ],
)
def test_every_table_says_that_it_has_no_test_results(options, words):
    lines = run_report(record(**options)).splitlines()
    assert lines[0] == "a-run"
    assert lines[1].startswith("no test results: ")
    for title in ("Class-IL accuracy, %", "Task-IL accuracy, %", "summary, %"):
        assert any(line.startswith(f"{title} [{words}]  ") for line in lines)
    assert report_over_seeds([record(**options)], 1).startswith(f"mean ± std over 1 seed, % [{words}]  ")


def test_forward_transfer_in_class_il_has_its_caveat_and_nothing_else_has():
    assert "FWT in Class-IL says little" in run_report(record())
    assert "says little" not in run_report(record(settings=("domain_il",)))
    without = record()
    for result in without["results"].values():
        result["metrics"]["fwt"] = None
    assert "says little" not in run_report(without)


def test_mean_and_deviation_over_seeds():
    """Of 60, 62 and 67: mean 63, squared distances 9, 1 and 16, over two: 13."""
    text = report_over_seeds([record(faa) for faa in (60.0, 62.0, 67.0)], 4)
    assert text.splitlines() == [
        "mean ± std over 3 of 4 seeds, %       Class-IL        Task-IL",
        "final average accuracy (FAA)      63.00 ± 3.61   63.00 ± 3.61",
        "forward transfer (FWT)           -10.00 ± 0.00  -10.00 ± 0.00",
    ]
    assert mean_and_deviation([None, None]) == "-"
    assert mean_and_deviation([12.0]) == "12.00"


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.4, "3 s"), (89, "89 s"), (600, "10 min"), (5400, "1.5 h"), (86400, "24.0 h")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_columns_are_aligned():
    assert aligned([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc   d"
