"""The theory as a figure: what the running statistics are made of, as printed and as it is, and what kappa balances."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Drawing

from utils.figures.style import colour_of, faint, grid_of_axes, ink
from utils.theory import best_kappa, cma, distances, ema, kappa_momentum, statistical_weights

TASKS, BATCHES, SHARE = 5, 10, 0.5
LONG = 1000  # batches of a task of Split CIFAR-10, online
SHARES = {"1/2": (1 / 2, "adab2n"), "1/3": (1 / 3, "cn"), "1/5": (1 / 5, "bn")}  # and the norm whose colour it has


def weights_and_kappa() -> Drawing:
    figure, [[left, right]] = grid_of_axes(1, 2, 2.6)
    lengths, steps, tasks = [BATCHES] * TASKS, TASKS * BATCHES, np.arange(1, TASKS + 1)
    momenta = {"EMA": (ema(steps), "bn"), "κ = 0.1": (kappa_momentum(steps, 0.1), "adab2n"), "CMA": (cma(steps), "cn")}
    for name, (etas, norm) in momenta.items():
        weights, printed = (statistical_weights(etas, SHARE, lengths, printed=printed) for printed in (False, True))
        left.plot(tasks, weights, "o-", markersize=3, color=colour_of(norm), label=name)
        left.plot(tasks, printed, "x:", markersize=4, linewidth=0.8, color=colour_of(norm))
    left.axhline(1 / TASKS, color=faint(), linewidth=0.8)
    left.set(xlabel="task", ylabel="weight", xticks=tasks, title=f"{TASKS} tasks of {BATCHES} batches, r = 1/2")
    left.plot([], [], "x:", color=ink(), label="as printed")
    left.legend()
    kappas = np.geomspace(1e-5, 1, 200)
    for name, (share, norm) in SHARES.items():
        best = best_kappa([LONG] * TASKS, share)
        *curve, shortest = distances([*kappas, best], [LONG] * TASKS, share)
        right.plot(kappas, curve, color=colour_of(norm), label=f"r = {name}")
        right.plot(best, shortest, "o", markersize=4, color=colour_of(norm))
    right.axvspan(0.1, 1, color=faint(), alpha=0.35, linewidth=0)
    right.text(0.32, right.get_ylim()[1], "the paper's\ngrid", fontsize=6, ha="center", va="top")
    right.set(xscale="log", xlabel="κ", ylabel="distance to equal weights", title=f"{TASKS} tasks of {LONG} batches")
    right.legend()
    return figure
