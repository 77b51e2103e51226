"""The theory as a figure: what the running statistics are made of, as printed and as it is, and what kappa balances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from utils.figures.style import PAGE, Theme, colour_of
from utils.theory.kappa import best_kappa, distances
from utils.theory.weights import cma, ema, kappa_momentum, statistical_weights, task_lengths

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

TASKS, BATCHES, SHARE = 5, 10, 0.5
LONG = 1000  # batches of a task of Split CIFAR-10, online
SHARES = {"1/2": 1 / 2, "1/3": 1 / 3, "1/5": 1 / 5}


def weights_and_kappa(theme: Theme) -> Drawing:
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(PAGE, 2.6))
    lengths = task_lengths(TASKS, BATCHES)
    schedules = {
        "EMA": ema(sum(lengths)), "κ = 0.1": kappa_momentum(sum(lengths), 0.1), "CMA": cma(sum(lengths)),
    }  # fmt: skip
    places = np.arange(1, TASKS + 1)
    for (name, etas), norm in zip(schedules.items(), ("bn", "adab2n", "cn"), strict=True):
        left.plot(
            places, statistical_weights(etas, SHARE, lengths), "o-", markersize=3, color=colour_of(norm), label=name
        )
        left.plot(places, statistical_weights(etas, SHARE, lengths, printed=True), "x:", markersize=4, linewidth=0.8,
                  color=colour_of(norm))  # fmt: skip
    left.axhline(1 / TASKS, color=theme.faint, linewidth=0.8)
    left.set(xlabel="task", ylabel="weight", xticks=places, title=f"{TASKS} tasks of {BATCHES} batches, r = 1/2")
    left.plot([], [], "x:", color=theme.ink, label="as printed")
    left.legend()
    kappas = np.geomspace(1e-5, 1, 200)
    for (name, share), norm in zip(SHARES.items(), ("adab2n", "cn", "bn"), strict=True):
        right.plot(
            kappas, distances(kappas, task_lengths(TASKS, LONG), share), color=colour_of(norm), label=f"r = {name}"
        )
        best = best_kappa(TASKS, LONG, share)
        right.plot(best.kappa, best.distance, "o", markersize=4, color=colour_of(norm))
    right.axvspan(0.1, 1, color=theme.faint, alpha=0.35, linewidth=0)
    right.text(0.32, right.get_ylim()[1], "the paper's\ngrid", fontsize=6, ha="center", va="top")
    right.set(xscale="log", xlabel="κ", ylabel="distance to equal weights", title=f"{TASKS} tasks of {LONG} batches")
    right.legend()
    return figure
