"""Corollaries 1 to 3 of Sec. 3.2 in closed form, with their bounds; what does not hold as printed is corrected.

T tasks, `lengths` or `batches` of them, a constant momentum eta in Corollaries 1 and 2. u = (1 - eta)^batches is what
the batches of a task leave of what was there before. Weights are normalized. Proofs: docs/theory.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from utils.theory.weights import ETA

# --- Corollary 1: no replay, constant momentum ------------------------------------------------------------------------


def no_replay(lengths: Sequence[int], eta: float = ETA) -> np.ndarray:
    """(tasks,) exact, for any lengths."""
    ends = np.cumsum(lengths)
    after, from_start = ends[-1] - ends, ends[-1] - ends + lengths
    return ((1 - eta) ** after - (1 - eta) ** from_start) / (1 - (1 - eta) ** ends[-1])


def no_replay_printed(lengths: Sequence[int], eta: float = ETA) -> np.ndarray:
    """(tasks,) the printed formula has m_{T-t} for m_T - m_t: the same only if the lengths are the same backwards."""
    ends = np.append(0, np.cumsum(lengths))[::-1]  # m_T ... m_0
    return ((1 - eta) ** ends[1:] - (1 - eta) ** ends[:-1]) / (1 - (1 - eta) ** ends[0])


def no_replay_approximation(tasks: int, batches: int, eta: float = ETA) -> tuple[np.ndarray, float]:
    """(tasks,) u^(T-t), and the printed bound of its error, u / (1 - u^T)."""
    u = (1 - eta) ** batches
    return u ** np.arange(tasks - 1, -1, -1), u / (1 - u**tasks)


# --- Corollary 2: constant replay, constant momentum ------------------------------------------------------------------


def balancing_share_printed(tasks: int, batches: int, eta: float = ETA) -> tuple[float, float]:
    """The share that makes the weights of the printed theorem equal, and the bound of its distance to 1/T."""
    u = (1 - eta) ** batches
    return 1 / (tasks - u * (tasks - 1)), u / (tasks - u * (tasks - 1))


def balance_bound(tasks: int, batches: int, eta: float = ETA) -> float:
    """How far a weight can be from 1/T where r = 1/T: at most u, as it is."""
    u = (1 - eta) ** batches
    return (1 - 1 / tasks) * (u - u**tasks) / (1 - u**tasks)


# --- Corollary 3: cumulative average ----------------------------------------------------------------------------------


def cumulative(tasks: int, r: float) -> np.ndarray:
    """(tasks,) as it is, for tasks of one length: equal for r = 1 only."""
    later = np.append(np.cumsum(1 / np.arange(tasks - 1, 0, -1))[::-1], 0.0)  # sum over g > t of 1 / (g - 1)
    own = np.append(1.0, np.full(tasks - 1, r))
    return (own + (1 - r) * later) / tasks


def cumulative_bound(tasks: int, r: float) -> float:
    """How far a weight can be from 1/T; the first task is this far."""
    return (1 - r) * sum(1 / g for g in range(1, tasks)) / tasks


# --- beyond the corollaries -------------------------------------------------------------------------------------------


def kappa_printed(tasks: int, batches: int, r: float, eta: float = ETA) -> float:
    """The kappa that makes the weights of the printed theorem equal; infinite up to r = 1/T, and it may exceed 1."""
    left = 1 - (1 / r - 1) / (tasks - 1)
    return math.log(left) / (batches * math.log1p(-eta)) if left > 0 else math.inf


def balancing_masses(tasks: int, r: float) -> np.ndarray:
    """(tasks,) what the batches of each task must be of the running statistics for equal weights as they are."""
    masses = np.ones(tasks)
    for g in range(tasks, 1, -1):  # task g - 1, counted from 1, from task g
        keep = 2 * r - 1 if g == 2 else 1 - (1 / r - 1) / (g - 1)
        masses[g - 2] = masses[g - 1] * (0 if abs(keep) < 1e-12 else keep)
    if masses.min() < 0:
        raise ValueError("no momentum balances: the share must be at least 1/2, or 1/2, 1/3, ... down to 1/tasks")
    return masses / masses.sum()
