"""Tables as text, and those that a run prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean, stdev
from typing import Any

import tabulate

from utils.config.registry import METRICS

TITLES = {"class_il": "Class-IL", "task_il": "Task-IL", "domain_il": "Domain-IL"}
# Measured by the loop, not computed from accuracies: with --embedding_eval, and without known task boundaries.
EMBEDDING_METRICS = {"ncm": "nearest class mean (NCM)", "linear_probe": "linear probe"}
MEASURED_METRICS = {"prequential": "prequential accuracy"} | EMBEDDING_METRICS
# In tables; the others follow.
FIRST_METRICS = ("faa", "caa", "aaa", "prequential", "wc_acc", "learning_accuracy", *EMBEDDING_METRICS)
FWT_NOTE = "FWT in Class-IL says little: a class that is still to come is hardly ever predicted."


def metric_titles() -> dict[str, str]:
    """Return the titles of all metrics by name, in the order of tables."""
    titles = {entry.name: entry.help or entry.name for entry in METRICS.entries().values()} | MEASURED_METRICS
    return {name: titles[name] for name in (*FIRST_METRICS, *titles)}


def aligned(rows: list[list[str]], others: str = "right") -> str:
    """Return rows of cells as text. The first column is aligned to the left, the others as given."""
    alignment = ["left", *[others] * (len(rows[0]) - 1)]
    return tabulate.tabulate(rows, tablefmt="plain", colalign=alignment, disable_numparse=True)


_MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_[]<>|&~$"})


def markdown_text(text: str) -> str:
    """Return a text, such as a name that a user has chosen, as Markdown shows it letter by letter."""
    return text.translate(_MARKDOWN)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, its first column to the left, the others to the right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def count_of(number: int, noun: str) -> str:
    """Return such as `1 run` or `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def caveats(options: dict[str, Any]) -> dict[str, str]:
    """Return why a run with these options gives no test results: a word for table titles, and its explanation."""
    reasons = {}
    if options.get("validation"):
        reasons["validation"] = f"measured on {options['validation']:g} of the training data, held out (--validation)"
    if options.get("debug_mode"):
        reasons["debug"] = "trained on three batches per epoch (--debug_mode)"
    return reasons


def title_with_caveats(title: str, options: dict[str, Any]) -> str:
    return f"{title} [{', '.join(reasons)}]" if (reasons := caveats(options)) else title


def caveat_lines(options: dict[str, Any]) -> list[str]:
    return [f"no test results: {'; '.join(reasons.values())}"] if (reasons := caveats(options)) else []


def accuracy_table(setting: str, matrix: list[list[float | None]], options: dict[str, Any]) -> str:
    """Return accuracy (%) on every task (columns) after every task (rows), and the mean over the tasks trained."""
    n_tasks = len(matrix[-1])
    title = title_with_caveats(f"{TITLES[setting]} accuracy, %", options)
    rows = [[title, *(f"task {j + 1}" for j in range(n_tasks)), "mean"]]
    for i, row in enumerate(matrix):
        trained = row if len(matrix) == 1 else row[: i + 1]
        label = "after all tasks" if len(matrix) == 1 else f"after task {i + 1}"
        cells = [percent(value) for value in trained] + [""] * (n_tasks - len(trained))
        known = [value for value in trained if value is not None]
        rows.append([label, *cells, percent(sum(known) / len(known))])
    return aligned(rows)


def metrics_table(metrics: dict[str, dict[str, Any]], title: str, text: Callable[[Any], str] = percent) -> str:
    """Return one row per metric and one column per setting; `text` formats a value."""
    rows = [[title, *(TITLES[setting] for setting in metrics)]]
    for name, label in metric_titles().items():
        if any(values.get(name) is not None for values in metrics.values()):
            rows.append([label, *(text(values[name]) for values in metrics.values())])
    return aligned(rows)


def run_report(record: dict[str, Any]) -> str:
    """Return what a finished run prints, except for the last line."""
    options, results = record["config"], record["results"]
    metrics = {setting: result["metrics"] for setting, result in results.items()}
    tables = [accuracy_table(setting, result["matrix"], options) for setting, result in results.items()
              if len(result["matrix"][-1]) > 1]  # fmt: skip
    tables.append(metrics_table(metrics, title_with_caveats("summary, %", options)))
    if metrics.get("class_il", {}).get("fwt") is not None:
        tables[-1] += f"\n{FWT_NOTE}"
    speed = f"{record['steps_per_second']:.1f} steps/s"
    training = f"{record['steps']} steps in {record['seconds']:.1f} s of training ({speed})"
    return "\n\n".join(["\n".join([record["run"], *caveat_lines(options)]), *tables, training])


def report_over_seeds(records: list[dict[str, Any]], n_seeds: int) -> str:
    """Return mean and standard deviation (n - 1) of every metric."""
    metrics = [{setting: result["metrics"] for setting, result in record["results"].items()} for record in records]
    values = {setting: {name: [of_run[setting].get(name) for of_run in metrics] for name in names}
              for setting, names in metrics[0].items()}  # fmt: skip
    part = "" if len(records) == n_seeds else f"{len(records)} of "
    title = f"mean ± std over {part}{count_of(n_seeds, 'seed')}, %"
    return metrics_table(values, title_with_caveats(title, records[0]["config"]), mean_and_deviation)


def mean_and_deviation(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    deviation = f" ± {percent(stdev(known))}" if len(known) > 1 else ""
    return percent(mean(known) if known else None) + deviation
