"""Figures of recordings, step by step: stability (Fig. 1), statistics (Figs. 4, 6 and 7) and weights of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils.figures.style import COLUMN, LINES, PAGE, Theme, colour_of, label_of
from utils.run.probes import read_recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

SMOOTHING = 20  # steps, as in the paper: the kernel's size
SMOOTHING_OF_SHARES = 5  # a batch's shares are few whole numbers
SHADED = 0.05  # of the variance, as in the paper


@dataclass(frozen=True)
class Recorded:
    """A run, under the name of what is compared: a norm, or `joint`."""

    name: str
    folder: Path

    def read(self, probe: str) -> dict[str, np.ndarray]:
        return read_recording(self.folder, probe)


def smoothed(values: np.ndarray, size: float = SMOOTHING) -> np.ndarray:
    """Along the first axis, by a Gaussian of that many steps in all: four standard deviations."""
    from scipy.ndimage import gaussian_filter1d

    return gaussian_filter1d(values.astype(float), sigma=size / 4, axis=0, mode="nearest")


def task_starts(task: np.ndarray, step: np.ndarray) -> np.ndarray:
    """The steps with which tasks begin, but for the first."""
    return step[np.flatnonzero(np.diff(task)) + 1]


def mark_tasks(axes: Axes, recording: dict[str, np.ndarray], theme: Theme) -> None:
    for start in task_starts(recording["task"], recording["step"]):
        axes.axvline(start, color=theme.faint, linewidth=0.5, zorder=0)


def stability(runs: list[Recorded], theme: Theme) -> Drawing:
    """Loss, similarity and magnitude over the steps, over all norm layers."""
    from matplotlib import pyplot

    panels = {"loss": "loss", "cosine_of_all": "cosine similarity", "magnitude_of_all": "gradient magnitude"}
    figure, row = pyplot.subplots(1, 3, figsize=(PAGE, 2.1))
    for run in runs:
        recording = run.read("stability")
        for axes, (name, title) in zip(row, panels.items(), strict=True):
            axes.plot(recording["step"], smoothed(recording[name]), LINES.get(run.name, "-"), color=colour_of(run.name),
                      label=label_of(run.name))  # fmt: skip
            axes.set(xlabel="step", ylabel=title)
    for axes in row:
        mark_tasks(axes, runs[0].read("stability"), theme)
    row[2].set_yscale("log")
    handles, labels = row[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(handles))
    return figure


STATISTICS = {"batch": ("batch_mean", "batch_var"), "running": ("running_mean", "running_var")}
WORDS = {"batch": "batch", "running": "population"}


def _curve(axes: Axes, run: Recorded, recording: dict[str, np.ndarray], values: np.ndarray) -> None:
    """Smoothed, with a share of the variance about it shaded, as in the paper."""
    mean = smoothed(values)
    spread = SHADED * smoothed((values - mean) ** 2)
    axes.plot(recording["step"], mean, LINES.get(run.name, "-"), color=colour_of(run.name), label=label_of(run.name))
    axes.fill_between(
        recording["step"], mean - spread, mean + spread, color=colour_of(run.name), alpha=0.2, linewidth=0
    )


def statistics_of_a_layer(runs: list[Recorded], theme: Theme, layer: int | None = None) -> Drawing:
    """Batch and population mean and variance of one layer, the middle one if none is named."""
    from matplotlib import pyplot

    recordings = {run: run.read("statistics") for run in runs}
    layers = next(iter(recordings.values()))["layers"]
    layer = min(12, len(layers)) - 1 if layer is None else layer
    figure, panels = pyplot.subplots(2, 2, figsize=(PAGE, 3.6), sharex="col")
    for column, kind in enumerate(STATISTICS):
        for row, name in enumerate(STATISTICS[kind]):
            axes = panels[row][column]
            for run, recording in recordings.items():
                _curve(axes, run, recording, recording[name][:, layer])
            axes.set_title(f"{WORDS[kind]} {'mean' if row == 0 else 'variance'}", pad=2)
    for axes in panels[1]:
        axes.set_xlabel("step")
    for axes in panels[:, 0]:
        axes.set_ylabel("Euclidean norm")
    figure.suptitle(f"Norm layer {layer + 1} of {len(layers)} ({layers[layer]})", fontsize=8)
    panels[0][0].legend()
    return figure


def statistics_of_all_layers(runs: list[Recorded], theme: Theme, kind: str) -> Drawing:
    """A panel for every layer: the norm of its mean (upper half) and of its variance (lower half)."""
    from matplotlib import pyplot

    recordings = {run: run.read("statistics") for run in runs}
    layers = next(iter(recordings.values()))["layers"]
    across = min(5, len(layers))
    down = -(-len(layers) // across)
    figure, panels = pyplot.subplots(2 * down, across, figsize=(PAGE, 2.1 * down), sharex=True, squeeze=False)
    for half, name in enumerate(STATISTICS[kind]):
        for number in range(down * across):
            axes = panels[half * down + number // across][number % across]
            if number >= len(layers):
                axes.set_axis_off()
                continue
            for run, recording in recordings.items():
                _curve(axes, run, recording, recording[name][:, number])
            axes.set_title(f"layer {number + 1}, {'mean' if half == 0 else 'variance'}", fontsize=7, pad=2)
            axes.tick_params(labelsize=6)
    for axes in panels[-1]:
        axes.set_xlabel("step")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(handles))
    return figure


def task_weights(runs: list[Recorded], theme: Theme) -> Drawing:
    """Above, each task's share in the batch statistics; below, in the running ones; means over the layers."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        2, len(runs), figsize=(PAGE if len(runs) > 1 else COLUMN, 3.6), sharex=True, sharey="row", squeeze=False
    )
    for column, run in enumerate(runs):
        recording = run.read("weights")
        for row, (name, title) in enumerate({"weight": "batch", "effective": "running"}.items()):
            axes, values = panels[row][column], recording[name].mean(2)
            shown = smoothed(values, SMOOTHING_OF_SHARES) if name == "weight" else values
            for task in range(values.shape[1]):
                axes.plot(recording["step"], shown[:, task], color=of_task(task, values.shape[1]), linewidth=0.9,
                          label=f"task {task + 1}")  # fmt: skip
            axes.set_ylim(0, 1.02)
            mark_tasks(axes, recording, theme)
            if column == 0:
                axes.set_ylabel(f"weight in the {title}\nstatistics")
        panels[0][column].set_title(label_of(run.name))
        panels[1][column].set_xlabel("step")
    handles, labels = panels[0][0].get_legend_handles_labels()
    few = np.unique(np.linspace(0, len(handles) - 1, min(len(handles), 10)).round().astype(int))
    figure.legend(
        [handles[i] for i in few], [labels[i] for i in few], loc="outside upper center", ncols=min(len(few), 5)
    )
    return figure


def of_task(task: int, n_tasks: int) -> tuple[float, float, float, float]:
    """Return a colour from early to late, readable in light and dark."""
    from matplotlib import colormaps

    return colormaps["viridis"](0.08 + 0.82 * task / max(n_tasks - 1, 1))
