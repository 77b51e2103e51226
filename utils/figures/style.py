"""One look for all figures: column widths of print, colours that colour-blind readers tell apart, light and dark."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from utils.files import reject_links
from utils.studies.plans import title_of

COLUMN, PAGE = 3.4, 7.0  # inches
FORMATS = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}  # no date: same runs, same files
# Okabe and Ito's palette; what is compared most is furthest apart.
COLOURS = {
    "bn": "#D55E00", "cn": "#009E73", "adab2n": "#0072B2", "joint": "#8a8a8a",
    "gn": "#CC79A7", "ln": "#E69F00", "in": "#56B4E9",
}  # fmt: skip
FURTHER = ("#b2953a", "#7b5ea7", "#4d9221", "#c51b7d", "#636363")
LINES = {"bn": "--", "cn": "-.", "adab2n": "-", "joint": ":"}  # so that print without colour is legible too


Theme = namedtuple("Theme", "suffix ink paper faint")
LIGHT, DARK = Theme("", "#1d2430", "#ffffff", "#c9cfd8"), Theme("-dark", "#dfe4ec", "#14181f", "#414a58")


def colour_of(norm: str) -> str:
    return COLOURS.get(norm) or FURTHER[sum(map(ord, norm)) % len(FURTHER)]


def label_of(norm: str) -> str:
    return "Joint training" if norm == "joint" else title_of(norm)


def line_of(norm: str) -> dict[str, Any]:
    """Return how a curve of a norm, or of joint training, is drawn."""
    return {"linestyle": LINES.get(norm, "-"), "color": colour_of(norm), "label": label_of(norm)}


def ink() -> str:
    """Return the colour of text in the theme that is drawn in."""
    return rcParams["text.color"]


def faint() -> str:
    """Return the colour of grids and marks in the theme that is drawn in."""
    return rcParams["grid.color"]


def mark_steps(axes: Axes, steps: Sequence[int] | np.ndarray) -> None:
    """Draw a thin line at each of these steps, such as the ends of tasks."""
    for step in steps:
        axes.axvline(step, color=faint(), linewidth=0.5, zorder=0)


def grid_of_axes(rows: int, columns: int, height: float, width: float = PAGE, **sharing: Any) -> tuple[Drawing, Any]:
    """Return a figure of this size in inches, and its axes in rows."""
    return pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, **sharing)


def legend_above(figure: Drawing, *row: Axes, columns: int | None = None, most: int = 100) -> None:
    """Put a legend of these axes above the figure: every label once, of many at most so many evenly chosen ones."""
    handle_of = {label: handle for axes in row for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = [[*handle_of][place] for place in evenly_chosen(len(handle_of), most)]
    handles = [handle_of[label] for label in labels]
    figure.legend(handles, labels, loc="outside upper center", ncols=columns or len(labels))


def evenly_chosen(count: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


@contextmanager
def drawn_in(theme: Theme) -> Iterator[None]:
    """Set up Matplotlib with the theme's colours and sizes for print, without a window."""
    matplotlib.use("Agg")
    settings = {
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.paper),
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), theme.ink),
        "legend.labelcolor": theme.ink, "axes.edgecolor": theme.faint, "grid.color": theme.faint,
        "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
        "legend.fontsize": 7, "legend.frameon": False, "lines.linewidth": 1.1, "axes.linewidth": 0.6,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.linewidth": 0.4,
        "axes.axisbelow": True, "svg.fonttype": "none", "svg.hashsalt": "figures", "pdf.fonttype": 42,
        "figure.constrained_layout.use": True, "savefig.dpi": 200,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield


def save(draw: Callable[[], Drawing | None], folder: Path, name: str, formats: Iterable[str] = FORMATS) -> list[Path]:
    """Write a figure light and dark and return the paths; none if there is nothing to draw."""
    paths = []
    for theme in (LIGHT, DARK):
        with drawn_in(theme):
            figure = draw()
            if figure is None:
                return []
            folder.mkdir(parents=True, exist_ok=True)
            reject_links(*folder.glob("*"))
            for ending in formats:
                paths.append(folder / f"{name}{theme.suffix}.{ending}")
                figure.savefig(paths[-1], metadata=FORMATS[ending])
            pyplot.close(figure)
    return paths
