"""Statistical weights of the tasks: Definition 1 and Theorem 1 of Sec. 3.2, for any momentum and any replay.

The running statistics follow S <- (1 - eta_i) S + eta_i S_i. A batch of task g holds a share r of that task and replays
the tasks before it in equal parts. In all functions

- `etas` are the momenta of the batches, (steps,);
- `lengths` are the numbers of batches of the tasks, (tasks,);
- `r` is one share for all batches, `SEEN` for 1 / (tasks seen), or an array of one share per batch;
- weights are "as it is" unless `printed`: Theorem 1 as printed divides what a batch replays by T - 1 where it is
  divided among the g - 1 tasks before it, and lets the first task replay, too, where r = 1 whatever r says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from utils.errors import UsageError

Numbers = Sequence[float] | np.ndarray
Lengths = Sequence[int] | np.ndarray
Share = float | str | Numbers

SEEN = "seen"
ETA = 0.1  # the paper's momentum

# --- momenta ----------------------------------------------------------------------------------------------------------


def ema(steps: int, eta: float = ETA) -> np.ndarray:
    """Exponential moving average: BN."""
    return np.full(steps, eta)


def cma(steps: int) -> np.ndarray:
    """Cumulative moving average 1/(i+1). The paper counts i from 1, so that the start counts as one more batch."""
    return 1 / np.arange(1, steps + 1)


def replay_cma(steps: int, r: float) -> np.ndarray:
    """1 / (r (i+1)): what the cumulative average has to become under replay (docs/theory.md)."""
    return np.minimum(1, cma(steps) / r)


def kappa_momentum(steps: int, kappa: float, eta: float = ETA, start: str = "eta0") -> np.ndarray:
    """Eq. 17. The first batch has eta_0 (released code) or eta_1 (the text, whose batches count from 1)."""
    first = ["eta0", "eta1"].index(start)
    etas = np.empty(steps + first)
    now = eta**kappa
    for i in range(len(etas)):
        etas[i] = now
        now = now / (now + (1 - eta) ** kappa)
    return etas[first:]


# --- what a batch consists of -----------------------------------------------------------------------------------------


def task_lengths(tasks: int, batches: int | Lengths) -> np.ndarray:
    """(tasks,) from one number for all tasks or one for each."""
    lengths = np.broadcast_to(batches, tasks) if np.ndim(batches) == 0 else np.asarray(batches)
    if lengths.shape != (tasks,) or lengths.min() < 1:
        raise UsageError(f"batches: give one number of at least 1, or {tasks} of them, one for each task")
    return lengths


def task_shares(r: Share, tasks: int) -> np.ndarray:
    """(tasks,) share of the current task in its batches, from one number, `SEEN`, or one share per task."""
    shares = 1 / np.arange(1, tasks + 1) if isinstance(r, str) and r == SEEN else np.asarray(r, dtype=float)
    if (shares.ndim and len(shares) != tasks) or not np.all((shares > 0) & (shares <= 1)):
        raise UsageError(f"share of the current task: give {SEEN!r} or numbers above 0 and up to 1, one or {tasks}")
    return np.array(np.broadcast_to(shares, tasks))


def step_shares(r: Share, lengths: Lengths, *, printed: bool = False) -> np.ndarray:
    """(steps,) share of the current task in every batch."""
    per_batch = np.ndim(r) > 0
    given = task_shares(r, sum(lengths) if per_batch else len(lengths))
    shares = given if per_batch else np.repeat(given, lengths)
    if not printed:
        shares[: lengths[0]] = 1  # there is nothing to replay yet
    return shares


def batch_shares(r: Share, lengths: Lengths, *, printed: bool = False) -> np.ndarray:
    """(steps, tasks) share of every task in every batch. As printed, they do not sum to 1 before the last task."""
    tasks = len(lengths)
    shares = np.zeros((sum(lengths), tasks))
    current = step_shares(r, lengths, printed=printed)
    for step, task in enumerate(np.repeat(np.arange(tasks), lengths)):
        if task:
            shares[step, :task] = (1 - current[step]) / (tasks - 1 if printed else task)
        shares[step, task] = current[step]
    return shares


# --- weights ----------------------------------------------------------------------------------------------------------


def effective_weights(etas: Numbers, shares: np.ndarray) -> np.ndarray:
    """(steps, tasks) weight of every task in the running statistics after every batch: the recursion itself.

    For measured momenta and shares (steps, tasks), too, or (steps, layers, tasks); shares need not sum to 1. What is
    missing to 1 is the weight of the initial statistics, and of what no task has.
    """
    etas, shares = np.asarray(etas, dtype=float), np.asarray(shares, dtype=float)
    if etas.ndim != 1 or shares.ndim < 2 or len(etas) != len(shares):
        raise UsageError(f"momenta (steps,) and shares (steps, tasks) do not fit: {etas.shape} and {shares.shape}")
    weights = np.empty_like(shares)
    now = np.zeros(shares.shape[1:])
    for step, eta in enumerate(etas):
        now = (1 - eta) * now + eta * shares[step]
        weights[step] = now
    return weights


def batch_weights(etas: Numbers) -> np.ndarray:
    """(steps,) weight of every batch in the end: its momentum, and what the later ones left of it."""
    etas = np.asarray(etas, dtype=float)
    left = np.cumprod((1 - etas)[:0:-1])[::-1]
    return etas * np.append(left, 1.0)


def statistical_weights(
    etas: Numbers,
    r: Share,
    lengths: Lengths,
    *,
    printed: bool = False,
    normalized: bool = True,
) -> np.ndarray:
    """(tasks,) Theorem 1: the weights after the last batch, in closed form."""
    if len(etas) != sum(lengths):
        raise UsageError(f"{len(etas)} momenta do not fit {sum(lengths)} batches")
    of_batches, shares = batch_weights(etas), step_shares(r, lengths, printed=printed)
    starts = np.cumsum(lengths) - np.asarray(lengths)
    current, replayed = (np.add.reduceat(of_batches * part, starts) for part in (shares, 1 - shares))
    weights = among_tasks(current, replayed, printed=printed)
    return weights / weights.sum() if normalized else weights


def among_tasks(current: np.ndarray, replayed: np.ndarray, *, printed: bool = False) -> np.ndarray:
    """(tasks,) what each task has of its own batches, and its part of what the tasks after it replayed."""
    tasks = len(current)
    among = np.full(tasks, tasks - 1) if printed else np.arange(tasks)
    for_each = replayed[1:] / among[1:]  # no task comes before the first
    return current + np.append(np.cumsum(for_each[::-1])[::-1], 0.0)


# --- balance ----------------------------------------------------------------------------------------------------------


def distance(weights: np.ndarray) -> float:
    """Total variation distance of the normalized weights to equal ones: the part that would have to move."""
    return float(np.abs(weights / weights.sum() - 1 / len(weights)).sum() / 2)


def ratio(weights: np.ndarray) -> float:
    """The largest weight over the smallest."""
    return float(weights.max() / weights.min()) if weights.min() > 0 else float("inf")
