"""What people read at the end of a run."""

from utils.tables import duration, mean_and_deviation, report_over_seeds, run_report

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


def test_every_table_says_that_it_has_no_test_results():
    options = {"debug_mode": True, "validation": 0.25}
    lines = run_report(record(**options)).splitlines()
    assert lines[1].startswith("no test results: ")
    for title in ("Class-IL accuracy, %", "Task-IL accuracy, %", "summary, %"):
        assert any(line.startswith(f"{title} [validation, debug]  ") for line in lines)
    assert "1 seed, % [debug]" in report_over_seeds([record(debug_mode=True)], 1)


def test_forward_transfer_in_class_il_has_its_caveat_and_nothing_else_has():
    assert "FWT in Class-IL" in run_report(record())
    without = record()
    without["results"]["class_il"]["metrics"]["fwt"] = None
    assert "FWT in Class-IL" not in run_report(without)


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


def test_durations():
    assert [duration(seconds) for seconds in (3.4, 89, 600, 5400)] == ["3 s", "89 s", "10 min", "1.5 h"]
