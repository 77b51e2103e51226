"""Statistical weights of tasks in running statistics (Theorem 1 of the paper), the best kappa, and Theorem 2.

The running statistics follow S <- (1 - eta_i) S + eta_i S_i. A batch of task g holds a share r of that task and replays
the tasks before it in equal parts. In the functions of Theorem 1

- `etas` are the momenta of the batches, (steps,);
- `lengths` are the numbers of batches of the tasks, (tasks,);
- `r` is one share for all tasks, `SEEN` for 1 / (tasks seen), or an array of one share per task;
- weights are "as it is" unless `printed`: Theorem 1 as printed divides what a batch replays by T - 1 where it is
  divided among the g - 1 tasks before it, and lets the first task replay, too, where r = 1 whatever r says.

Eq. 17 weighs batches as an EMA does that keeps (1 - eta)^kappa, whatever eta_0 is (proof: docs/theory.md). So a whole
task has a weight in closed form, and `best_kappa` takes no longer where there are more batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from utils.errors import UsageError

Numbers = Sequence[float] | np.ndarray
Lengths = Sequence[int] | np.ndarray
Share = float | str | Numbers

SEEN = "seen"
ETA = 0.1  # the paper's momentum
TIE = 1e-14  # distances closer than this are the same
SCANNED, ZOOMS, POINTS = 300, 12, 21


def ema(steps: int, eta: float = ETA) -> np.ndarray:
    """Exponential moving average: BN."""
    return np.full(steps, eta)


def cma(steps: int) -> np.ndarray:
    """Cumulative moving average 1/(i+1). The paper counts i from 1, so that the start counts as one more batch."""
    return 1 / np.arange(1, steps + 1)


def replay_cma(steps: int, r: float) -> np.ndarray:
    """1 / (r (i+1)): what the cumulative average has to become under replay (docs/theory.md)."""
    return np.minimum(1, cma(steps) / r)


def kappa_momentum(steps: int, kappa: float, eta: float = ETA) -> np.ndarray:
    """Eq. 17, from eta_0 on, as in the released code. In the text the first batch has eta_1."""
    etas = [eta**kappa]
    while len(etas) < steps:
        etas.append(etas[-1] / (etas[-1] + (1 - eta) ** kappa))
    return np.array(etas)


def task_lengths(tasks: int, batches: int | Lengths) -> np.ndarray:
    """(tasks,) from one number for all tasks or one for each."""
    if np.size(batches) not in (1, tasks):
        raise UsageError(f"--batches: give one number, or {tasks} of them, one for each task")
    return np.array(np.broadcast_to(batches, tasks))


def effective_weights(etas: Numbers, shares: np.ndarray) -> np.ndarray:
    """(steps, tasks) weight of every task in the running statistics after every batch: the recursion itself.

    For measured momenta and shares (steps, tasks), too, or (steps, layers, tasks); shares need not sum to 1. What is
    missing to 1 is the weight of the initial statistics, and of what no task has.
    """
    weights = np.zeros((len(etas) + 1, *np.shape(shares)[1:]))
    for step, (eta, share) in enumerate(zip(etas, shares, strict=True)):
        weights[step + 1] = (1 - eta) * weights[step] + eta * np.asarray(share)
    return weights[1:]


def batch_weights(etas: Numbers) -> np.ndarray:
    """(steps,) weight of every batch in the end: its momentum, and what the later ones left of it."""
    etas = np.asarray(etas, dtype=float)
    return etas * np.append(np.cumprod((1 - etas)[:0:-1])[::-1], 1.0)


def statistical_weights(etas: Numbers, r: Share, lengths: Lengths, *, printed: bool = False) -> np.ndarray:
    """(tasks,) Theorem 1: the normalized weights after the last batch, in closed form."""
    masses = np.add.reduceat(batch_weights(etas), np.cumsum(lengths) - np.asarray(lengths))
    return weights_of_tasks(masses, r, printed=printed)


def kappa_weights(kappa: float, lengths: Lengths, r: Share, eta: float = ETA) -> np.ndarray:
    """(tasks,) the same with the momentum of Eq. 17."""
    return weights_of_tasks(task_masses(kappa, lengths, eta), r)


def task_masses(kappa: float, lengths: Lengths, eta: float = ETA) -> np.ndarray:
    """(tasks,) what all batches of a task are of the running statistics, normalized."""
    decay = -kappa * math.log1p(-eta)
    if decay == 0:
        return np.asarray(lengths) / sum(lengths)
    batches_after = sum(lengths) - np.cumsum(lengths)
    masses = np.exp(-decay * batches_after) * -np.expm1(-decay * np.asarray(lengths))
    return masses / masses.sum()


def weights_of_tasks(masses: np.ndarray, r: Share, *, printed: bool = False) -> np.ndarray:
    """(tasks,) what each task has of its own batches, and its part of what the tasks after it replayed, normalized."""
    tasks = len(masses)
    seen = np.arange(1, tasks + 1)
    shares = np.array(np.broadcast_to(1 / seen if isinstance(r, str) else r, tasks), dtype=float)
    if not printed:
        shares[0] = 1  # there is nothing to replay yet
    replayed = (masses * (1 - shares))[1:] / (tasks - 1 if printed else seen[:-1])
    weights = masses * shares + np.append(np.cumsum(replayed[::-1])[::-1], 0.0)
    return weights / weights.sum()


def distance(weights: np.ndarray) -> float:
    """Total variation distance of normalized weights to equal ones: the part that would have to move."""
    return float(np.abs(weights - 1 / len(weights)).sum() / 2)


def distances(kappas: Numbers, lengths: Lengths, r: Share, eta: float = ETA) -> np.ndarray:
    """(kappas,) distance of the weights to equal ones."""
    return np.array([distance(kappa_weights(kappa, lengths, r, eta)) for kappa in kappas])


def best_kappa(lengths: Lengths, r: Share, eta: float = ETA) -> float:
    """The kappa from 0 to 1 that comes closest to equal weights; the largest where several do.

    Nothing promises a single minimum: a scan on the scale on which weights change, one over the number of batches, and
    then closer looks around the best point.
    """
    smallest = 1e-3 * min(1, -1 / (sum(lengths) * math.log1p(-eta)))
    kappas = np.append(0.0, np.geomspace(smallest, 1, SCANNED))
    for _ in range(1 + ZOOMS):
        candidates = distances(kappas, lengths, r, eta)
        at = np.flatnonzero(candidates <= candidates.min() + TIE)[-1]
        best = float(kappas[at])
        kappas = np.linspace(kappas[max(at - 1, 0)], kappas[min(at + 1, len(kappas) - 1)], POINTS)
    cumulative, shortest = distances([0, best], lengths, r, eta)
    return 0.0 if cumulative <= shortest + TIE else best  # not some kappa that is too small to matter


def squared_gradients(
    after: np.ndarray, normalized: np.ndarray, slopes: np.ndarray, *, printed: bool = False
) -> np.ndarray:
    """(channels,) Theorem 2: squared norms of a loss's gradient before BN, from the one after it; or the printed bound.

    The gradient after BN and the normalized values are (values, channels); slopes are gamma / sqrt(variance + epsilon).
    """
    values, channels = after.shape
    kept = (normalized**2).mean(0)  # variance / (variance + epsilon)
    squares, mean, similarity = (after**2).sum(0), after.sum(0) ** 2, (after * normalized).sum(0) ** 2
    if printed:
        return slopes**2 / kept * (squares - (mean + similarity) / channels)
    return slopes**2 * (squares - (mean + (2 - kept) * similarity) / values)
