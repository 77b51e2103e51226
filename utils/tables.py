"""The tables that people read at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean, stdev
from typing import Any

TITLES = {"class_il": "Class-IL", "task_il": "Task-IL", "domain_il": "Domain-IL"}
METRICS = {
    "faa": "final average accuracy (FAA)",
    "caa": "average over the run (CAA)",
    "aaa": "average anytime accuracy (AAA)",
    "wc_acc": "worst-case accuracy (WC-ACC)",
    "learning_accuracy": "learning accuracy",
    "ncm": "nearest class mean (NCM)",
    "linear_probe": "linear probe",
    "forgetting": "forgetting",
    "forgetting_as_published": "forgetting, as in the paper's table",
    "bwt": "backward transfer (BWT)",
    "fwt": "forward transfer (FWT)",
}


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def aligned(rows: list[list[str]]) -> str:
    """Columns padded to their widest cell: the first to the left, the others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        numbers = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(lines)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def reservations(options: dict) -> dict[str, str]:
    """Why a run with these options gives no test results: a word for the head of a table, and what it stands for."""
    found = {}
    if options.get("validation"):
        found["validation"] = f"measured on {options['validation']:g} of the training data, held out (--validation)"
    if options.get("debug_mode"):
        found["debug"] = "trained on three batches an epoch (--debug_mode)"
    return found


def marked(title: str, options: dict) -> str:
    words = ", ".join(reservations(options))
    return f"{title} [{words}]" if words else title


def reservation_lines(options: dict) -> list[str]:
    found = reservations(options)
    return [f"no test results: {'; '.join(found.values())}"] if found else []


def accuracy_table(setting: str, matrix: list[list[float | None]], options: dict) -> str:
    """Accuracy (%) on every task (columns) after every task (rows), and the mean over the tasks trained so far."""
    n_tasks = len(matrix[-1])
    rows = [[marked(f"{TITLES[setting]} accuracy, %", options), *(f"task {j + 1}" for j in range(n_tasks)), "mean"]]
    for i, row in enumerate(matrix):
        trained = row if len(matrix) == 1 else row[: i + 1]
        label = "after all tasks" if len(matrix) == 1 else f"after task {i + 1}"
        cells = [percent(value) if j < len(trained) else "" for j, value in enumerate(row)]
        rows.append([label, *cells, *[""] * (n_tasks - len(row)), percent(sum(trained) / len(trained))])
    return aligned(rows)


def metrics_table(metrics: dict[str, dict[str, Any]], title: str, shown: Callable[[Any], str] = percent) -> str:
    """`shown` makes text of what there is of a metric."""
    settings = list(metrics)
    rows = [[title, *(TITLES[setting] for setting in settings)]]
    known = {name: words for name, words in METRICS.items() if any(name in metrics[s] for s in settings)}
    rows += [[words, *(shown(metrics[s][name]) for s in settings)] for name, words in known.items()]
    return aligned(rows)


LITTLE_SAID = "FWT in Class-IL says little: a class that is still to come is hardly ever predicted."


def run_report(record: dict) -> str:
    """Everything a finished run prints, but for the last line."""
    options, results = record["config"], record["results"]
    metrics = {setting: result["metrics"] for setting, result in results.items()}
    tables = [accuracy_table(setting, result["matrix"], options) for setting, result in results.items()]
    tables.append(metrics_table(metrics, marked("summary, %", options)))
    if metrics.get("class_il", {}).get("fwt") is not None:
        tables[-1] += f"\n{LITTLE_SAID}"
    speed = (
        f"{record['steps']} steps in {record['seconds']:.1f} s of training ({record['steps_per_second']:.1f} steps/s)"
    )
    return "\n\n".join(["\n".join([record["run"], *reservation_lines(options)]), *tables, speed])


def report_over_seeds(records: list[dict], asked_for: int) -> str:
    """Mean and standard deviation (n - 1) of every metric."""
    settings = records[0]["results"]
    values = {
        setting: {
            name: [record["results"][setting]["metrics"][name] for record in records] for name in first["metrics"]
        }
        for setting, first in settings.items()
    }
    of = "" if len(records) == asked_for else f" of {asked_for}"
    seeds = f"{len(records)}{of} seed{'s' if asked_for > 1 else ''}"
    title = marked(f"mean ± std over {seeds}, %", records[0]["config"])
    return metrics_table(values, title, mean_and_deviation)


def mean_and_deviation(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    deviation = f" ± {percent(stdev(known))}" if len(known) > 1 else ""
    return percent(mean(known) if known else None) + deviation
