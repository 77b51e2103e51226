"""The figures of one run: accuracy matrix, loss, accuracy while training, and its recordings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from utils.errors import UsageError
from utils.figures import recorded, tabled
from utils.figures.style import save
from utils.run.probes import has_recording
from utils.run.records import BadRecord, read_record

RECORDED: dict[str, tuple[str, Callable[..., Any]]] = {  # the probe behind each figure
    "stability": ("stability", recorded.stability),
    "statistics": ("statistics", recorded.statistics_of_a_layer),
    "batch-statistics": ("statistics", partial(recorded.statistics_of_all_layers, kind="batch")),
    "population-statistics": ("statistics", partial(recorded.statistics_of_all_layers, kind="running")),
    "weights": ("weights", recorded.task_weights),
}


def draw_run(folder: Path, output: Path) -> list[Path]:
    """Draw everything about a run and return the light PNGs; other formats and the dark theme lie beside them."""
    try:
        record = read_record(folder / "record.json")
    except BadRecord as error:
        raise UsageError(f"{folder / 'record.json'} cannot be trusted: {error}") from None
    if record is None or record["status"] != "finished":
        raise UsageError(f"{folder} holds no finished run; give a folder such as results/runs/NAME")
    name = "joint" if record["config"]["model"] == "joint" else record["config"]["norm"]
    drawings: dict[str, Callable[[], Any]] = {"matrix": partial(tabled.accuracy_matrix, record)}
    if (folder / "metrics.jsonl").exists():
        drawings["loss"] = partial(tabled.loss_curve, folder)
    if record["config"].get("eval_every") and "class_il" in record["results"]:
        drawings["anytime"] = partial(tabled.while_training, {name: record})
    for figure, (probe, draw) in RECORDED.items():
        if has_recording(folder, probe, record):
            drawings[figure] = partial(draw, {name: folder})
    return [output / f"{figure}.png" for figure, draw in drawings.items() if save(draw, output, figure)]
