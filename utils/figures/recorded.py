"""Figures of recordings, step by step: stability (Fig. 1), statistics (Figs. 4, 6 and 7) and weights of tasks.

`runs` are folders by the name of what is compared: a norm, or `joint`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from scipy.ndimage import gaussian_filter1d

from utils.figures.style import COLUMN, PAGE, colour_of, grid_of_axes, label_of, legend_above, line_of, mark_steps
from utils.run.probes import read_recording

SMOOTHING = 20  # steps, as in the paper: the kernel's size
SMOOTHING_OF_SHARES = 5  # a batch's shares are few whole numbers
SHADED = 0.05  # of the variance, as in the paper
STATISTICS = {"batch": ("batch_mean", "batch_var"), "running": ("running_mean", "running_var")}
Recording = dict[str, np.ndarray]


def smoothed(values: np.ndarray, size: float = SMOOTHING) -> np.ndarray:
    """Smooth along the first axis by a Gaussian of that many steps in all: four standard deviations."""
    return gaussian_filter1d(values.astype(float), sigma=size / 4, axis=0, mode="nearest")


def task_starts(recording: Recording) -> np.ndarray:
    """Return the steps with which tasks begin, but for the first."""
    return recording["step"][np.flatnonzero(np.diff(recording["task"])) + 1]


def stability(runs: dict[str, Path]) -> Drawing:
    """Draw loss, similarity and magnitude over the steps, over all norm layers."""
    panels = {"loss": "loss", "cosine_of_all": "cosine similarity", "magnitude_of_all": "gradient magnitude"}
    figure, [row] = grid_of_axes(1, 3, 2.1)
    recordings = {norm: read_recording(folder, "stability") for norm, folder in runs.items()}
    for axes, (name, title) in zip(row, panels.items(), strict=True):
        for norm, recording in recordings.items():
            axes.plot(recording["step"], smoothed(recording[name]), **line_of(norm))
        axes.set(xlabel="step", ylabel=title)
        mark_steps(axes, task_starts(next(iter(recordings.values()))))
    row[2].set_yscale("log")
    legend_above(figure, row[0])
    return figure


def _plot_layer(axes: Axes, recordings: dict[str, Recording], name: str, layer: int) -> None:
    """Plot a statistic of one layer, smoothed, with a share of the variance about it shaded, as in the paper."""
    for norm, recording in recordings.items():
        values, step = recording[name][:, layer], recording["step"]
        mean = smoothed(values)
        spread = SHADED * smoothed((values - mean) ** 2)
        axes.plot(step, mean, **line_of(norm))
        axes.fill_between(step, mean - spread, mean + spread, color=colour_of(norm), alpha=0.2, linewidth=0)


def statistics_of_a_layer(runs: dict[str, Path]) -> Drawing:
    """Draw batch and population mean and variance of one layer, the twelfth or the last."""
    recordings = {norm: read_recording(folder, "statistics") for norm, folder in runs.items()}
    layers = next(iter(recordings.values()))["layers"]
    layer = min(12, len(layers)) - 1
    figure, panels = grid_of_axes(2, 2, 3.6, sharex="col")
    for column, (kind, word) in zip(panels.T, {"batch": "batch", "running": "population"}.items(), strict=True):
        for axes, name, title in zip(column, STATISTICS[kind], ("mean", "variance"), strict=True):
            _plot_layer(axes, recordings, name, layer)
            axes.set_title(f"{word} {title}", pad=2)
        column[1].set_xlabel("step")
    for axes in panels[:, 0]:
        axes.set_ylabel("Euclidean norm")
    figure.suptitle(f"Norm layer {layer + 1} of {len(layers)} ({layers[layer]})", fontsize=8)
    panels[0][0].legend()
    return figure


def statistics_of_all_layers(runs: dict[str, Path], kind: str) -> Drawing:
    """Draw a panel for every layer: the norm of its mean (upper half) and of its variance (lower half)."""
    recordings = {norm: read_recording(folder, "statistics") for norm, folder in runs.items()}
    layers = len(next(iter(recordings.values()))["layers"])
    across = min(5, layers)
    down = -(-layers // across)
    figure, panels = grid_of_axes(2 * down, across, 2.1 * down, sharex=True)
    for half, name, title in zip(np.split(panels, 2), STATISTICS[kind], ("mean", "variance"), strict=True):
        for axes in half.flat[layers:]:
            axes.set_axis_off()
        for layer, axes in enumerate(half.flat[:layers]):
            _plot_layer(axes, recordings, name, layer)
            axes.set_title(f"layer {layer + 1}, {title}", fontsize=7, pad=2)
            axes.tick_params(labelsize=6)
    for axes in panels[-1]:
        axes.set_xlabel("step")
    legend_above(figure, panels[0][0])
    return figure


def task_weights(runs: dict[str, Path]) -> Drawing:
    """Draw each task's share in the batch statistics (above) and in the running ones; means over the layers."""
    figure, panels = grid_of_axes(2, len(runs), 3.6, PAGE if len(runs) > 1 else COLUMN, sharex=True, sharey="row")
    for column, (norm, folder) in zip(panels.T, runs.items(), strict=True):
        recording = read_recording(folder, "weights")
        batch, running = recording["weight"].mean(2), recording["effective"].mean(2)
        for axes, curves in zip(column, (smoothed(batch, SMOOTHING_OF_SHARES), running), strict=True):
            for task, curve in enumerate(curves.T):
                colour = colormaps["viridis"](0.08 + 0.82 * task / max(len(curves.T) - 1, 1))  # readable in both themes
                axes.plot(recording["step"], curve, color=colour, linewidth=0.9, label=f"task {task + 1}")
            axes.set_ylim(0, 1.02)
            mark_steps(axes, task_starts(recording))
        column[0].set_title(label_of(norm))
        column[1].set_xlabel("step")
    for axes, title in zip(panels[:, 0], ("batch", "running"), strict=True):
        axes.set_ylabel(f"weight in the {title}\nstatistics")
    legend_above(figure, panels[0][0], columns=5, most=10)
    return figure
