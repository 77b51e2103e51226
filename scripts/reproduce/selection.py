"""Choosing AdaB2N's kappa and lambda: one winner per data set, method and memory size, shared by all tables.

    fixed        the framework's defaults, or the values given
    validation   the grid on a held-out share of the training data; the winner is then trained and tested once
    first_tasks  the same on the first tasks of the stream alone: nothing of the later ones is seen before its time
    other        the same on another data set: CIFAR-100 for CIFAR-10, CIFAR-10 for all others
    test         the grid on the test set, as the authors apparently did; its numbers are too good

The grid is always run online, whatever the tables do with the winner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scripts.reproduce.plans import CLASS_IL, DOMAIN_IL, Experiment, Plan
from scripts.reproduce.presets import Preset
from scripts.reproduce.runs import Run, Runs

HELD_OUT = 0.1
FIRST_TASKS = 3  # but never all of them


@dataclass(frozen=True)
class Selection:
    mode: str
    runs: Runs
    seeds: tuple[int, ...]
    given: tuple[tuple[str, Any], ...] = ()  # kappa and lambd of `fixed`

    def is_tuned(self, experiment: Experiment) -> bool:
        return experiment.norm == "adab2n" and not {"kappa", "lambd"} & dict(experiment.flags).keys()

    def grid(self, experiment: Experiment) -> dict[tuple[float, float], list[Run]]:
        """The runs that decide, by (kappa, lambda); none if nothing is searched."""
        if self.mode == "fixed" or not self.is_tuned(experiment):
            return {}
        preset = self.runs.preset
        key = other_data(experiment.data) if self.mode == "other" else experiment.data
        base = Experiment(experiment.model, "adab2n", key, buffer_on(preset, experiment, key))
        seen = {} if self.mode == "test" else {"validation": HELD_OUT}
        if self.mode == "first_tasks":
            seen["stop_after"] = min(FIRST_TASKS, self.runs.n_tasks(base) - 1)
        return {
            (kappa, lambd): [self.runs.of(base, seed, kappa=kappa, lambd=lambd, **seen) for seed in self.seeds]
            for kappa in preset.kappas
            for lambd in preset.data[key].lambdas
        }

    def winner(self, experiment: Experiment) -> dict[str, float] | None:
        """The flags to run with; None while the grid is not finished."""
        if not self.is_tuned(experiment):
            return {}
        if self.mode == "fixed":
            return dict(self.given)
        scores = {}
        for choice, runs in self.grid(experiment).items():
            records = [self.runs.record(run) for run in runs]
            if None in records:
                return None
            scores[choice] = np.mean([score(record) for record in records])
        kappa, lambd = max(scores, key=scores.get)
        return {"kappa": kappa, "lambd": lambd}

    def for_plan(self, plan: Plan) -> Selection:
        return replace(self, seeds=self.seeds[:1]) if plan.first_seed_only else self

    def final(self, experiment: Experiment) -> list[Run] | None:
        """The runs whose results the tables show, one a seed; None while the winner is unknown."""
        flags = self.winner(experiment)
        if flags is None:
            return None
        return [self.runs.of(experiment, seed, **flags) for seed in self.seeds]


def score(record: dict) -> float:
    """What a winner is chosen by: accuracy among all classes."""
    results = record["results"]
    return results.get(CLASS_IL, results.get(DOMAIN_IL))["metrics"]["faa"]


def other_data(key: str) -> str:
    return "cifar100" if key == "cifar10" else "cifar10"


def buffer_on(preset: Preset, experiment: Experiment, key: str) -> int | None:
    """The memory on that data set that stands where the experiment's does on its own: the smaller, the larger."""
    if experiment.buffer is None:
        return None
    return preset.data[key].buffers[preset.data[experiment.data].buffers.index(experiment.buffer)]


def needed(plans: Sequence[Plan], selection: Selection) -> tuple[dict[str, Run], int]:
    """The runs of these plans that are known by now, each once, and how many experiments wait for their winner."""
    runs: dict[str, Run] = {}
    waiting: set[Experiment] = set()
    wanted = {
        (experiment, plan.first_seed_only)
        for plan in plans
        for cell in plan.cells(selection.runs.preset)
        for experiment in (cell.experiment, cell.over)
        if experiment is not None
    }
    for experiment, first_only in sorted(wanted, key=repr):
        of_plan = replace(selection, seeds=selection.seeds[:1]) if first_only else selection
        for run in (run for searched in of_plan.grid(experiment).values() for run in searched):
            runs[run.name] = run.with_probes_of(runs.get(run.name))
        final = of_plan.final(experiment)
        if final is None:
            waiting.add(experiment)
        for run in final or ():
            runs[run.name] = run.with_probes_of(runs.get(run.name))
    return runs, len(waiting)
