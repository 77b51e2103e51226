"""What kappa balances best? Eq. 17 weighs batches as an EMA does that keeps (1 - eta)^kappa, whatever eta_0 is.

That is proved in docs/theory.md, and makes the weight of a whole task a closed form: nothing here takes longer where
there are more batches. Arguments are those of `utils.theory.weights`; an array `r` has one share per task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from utils.theory.weights import ETA, Lengths, Numbers, Share, among_tasks, distance, task_lengths, task_shares

TIE = 1e-14  # distances closer than this are the same
SCANNED, ZOOMS, POINTS = 300, 12, 21


@dataclass(frozen=True)
class Best:
    kappa: float
    weights: np.ndarray
    distance: float


def task_masses(kappa: float, lengths: Lengths, eta: float = ETA) -> np.ndarray:
    """(tasks,) what all batches of a task are of the running statistics, normalized."""
    decay = -kappa * math.log1p(-eta)
    if decay == 0:
        return np.asarray(lengths) / sum(lengths)
    batches_after = sum(lengths) - np.cumsum(lengths)
    masses = np.exp(-decay * batches_after) * -np.expm1(-decay * np.asarray(lengths))
    return masses / masses.sum()


def kappa_weights(kappa: float, lengths: Lengths, r: Share, eta: float = ETA) -> np.ndarray:
    """(tasks,) normalized weights as they are: Theorem 1 with the momentum of Eq. 17."""
    masses, shares = task_masses(kappa, lengths, eta), task_shares(r, len(lengths))
    shares[0] = 1
    return among_tasks(masses * shares, masses * (1 - shares))


def distances(kappas: Numbers, lengths: Lengths, r: Share, eta: float = ETA) -> np.ndarray:
    """(kappas,) distance of the weights to equal ones."""
    return np.array([distance(kappa_weights(kappa, lengths, r, eta)) for kappa in kappas])


def best_kappa(tasks: int, batches: int | Lengths, r: Share, eta: float = ETA) -> Best:
    """The kappa from 0 to 1 that comes closest to equal weights; the largest where several do.

    Nothing promises a single minimum: a scan on the scale on which weights change, one over the number of batches, and
    then closer looks around the best point.
    """
    lengths = task_lengths(tasks, batches)
    smallest = 1e-3 * min(1, -1 / (sum(lengths) * math.log1p(-eta)))
    kappas = np.append(0.0, np.geomspace(smallest, 1, SCANNED))
    for _ in range(1 + ZOOMS):
        candidates = distances(kappas, lengths, r, eta)
        at = np.flatnonzero(candidates <= candidates.min() + TIE)[-1]
        kappa, shortest = float(kappas[at]), candidates[at]
        kappas = np.linspace(kappas[max(at - 1, 0)], kappas[min(at + 1, len(kappas) - 1)], POINTS)
    weights = kappa_weights(kappa, lengths, r, eta)
    cumulative = kappa_weights(0.0, lengths, r, eta)
    if distance(cumulative) <= shortest + TIE:  # not some kappa that is too small to matter
        kappa, weights = 0.0, cumulative
    return Best(kappa, weights, distance(weights))
