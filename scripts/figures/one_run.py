"""All that can be drawn of one run: its accuracy matrix, loss, accuracy while training, and its recordings."""

from __future__ import annotations

from pathlib import Path

from scripts.figures import recorded, tabled
from scripts.figures.recorded import Recorded
from scripts.figures.style import LIGHT, THEMES, drawn_in, save
from utils.errors import UsageError
from utils.run.probes import has_recording
from utils.run.records import BadRecord, read_record


def draw_run(folder: Path, output: Path) -> list[Path]:
    """The light PNGs of what was drawn; the other formats and the dark theme lie beside them."""
    try:
        record = read_record(folder / "record.json")
    except BadRecord as error:
        raise UsageError(f"{folder / 'record.json'} cannot be trusted: {error}") from None
    if record is None or record["status"] != "finished":
        raise UsageError(f"{folder} holds no finished run: give a folder such as results/runs/NAME")
    run = Recorded("joint" if record["config"]["model"] == "joint" else record["config"]["norm"], folder)
    drawings = {"matrix": lambda theme: tabled.accuracy_matrix(record, theme)}
    if (folder / "metrics.jsonl").exists():
        drawings["loss"] = lambda theme: tabled.loss_curve(folder, theme)
    if record["config"].get("eval_every") and "class_il" in record["results"]:
        drawings["anytime"] = lambda theme: tabled.while_training({run.name: record}, theme)
    of_recordings = {
        "stability": {"stability": recorded.stability},
        "statistics": {
            "statistics": recorded.statistics_of_a_layer,
            "batch-statistics": lambda runs, theme: recorded.statistics_of_all_layers(runs, theme, "batch"),
            "population-statistics": lambda runs, theme: recorded.statistics_of_all_layers(runs, theme, "running"),
        },
        "weights": {"weights": recorded.task_weights},
    }
    for probe, figures in of_recordings.items():
        if has_recording(folder, probe, record):
            drawings |= {name: lambda theme, draw=draw: draw([run], theme) for name, draw in figures.items()}
    paths = []
    for name, draw in drawings.items():
        for theme in THEMES.values():
            with drawn_in(theme):
                drawing = draw(theme)
                if drawing is not None:
                    found = save(drawing, output, name, theme)
                    paths += [path for path in found if theme is LIGHT and path.suffix == ".png"]
    return paths
