"""The figures of one run: accuracy matrix, loss, accuracy while training, and its recordings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from utils.errors import UsageError
from utils.figures import recorded, tabled
from utils.figures.recorded import Recorded
from utils.figures.style import LIGHT, THEMES, Theme, drawn_in, save
from utils.run.probes import has_recording
from utils.run.records import BadRecord, read_record

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def draw_run(folder: Path, output: Path) -> list[Path]:
    """Draw everything about a run and return the light PNGs; other formats and the dark theme lie beside them."""
    try:
        record = read_record(folder / "record.json")
    except BadRecord as error:
        raise UsageError(f"{folder / 'record.json'} cannot be trusted: {error}") from None
    if record is None or record["status"] != "finished":
        raise UsageError(f"{folder} holds no finished run; give a folder such as results/runs/NAME")
    run = Recorded("joint" if record["config"]["model"] == "joint" else record["config"]["norm"], folder)
    drawings: dict[str, Callable[[Theme], Drawing | None]] = {"matrix": partial(tabled.accuracy_matrix, record)}
    if (folder / "metrics.jsonl").exists():
        drawings["loss"] = partial(tabled.loss_curve, folder)
    if record["config"].get("eval_every") and "class_il" in record["results"]:
        drawings["anytime"] = partial(tabled.while_training, {run.name: record})
    if has_recording(folder, "stability", record):
        drawings["stability"] = partial(recorded.stability, [run])
    if has_recording(folder, "statistics", record):
        drawings["statistics"] = partial(recorded.statistics_of_a_layer, [run])
        drawings["batch-statistics"] = partial(recorded.statistics_of_all_layers, [run], kind="batch")
        drawings["population-statistics"] = partial(recorded.statistics_of_all_layers, [run], kind="running")
    if has_recording(folder, "weights", record):
        drawings["weights"] = partial(recorded.task_weights, [run])
    paths = []
    for name, draw in drawings.items():
        for theme in THEMES.values():
            with drawn_in(theme):
                if (drawing := draw(theme)) is not None:
                    files = save(drawing, output, name, theme)
                    paths += [path for path in files if theme is LIGHT and path.suffix == ".png"]
    return paths
