"""Choose AdaB2N's kappa and lambda: one winner per data set, method and memory size, shared by all tables.

    fixed        the framework's defaults
    validation   a grid on a held-out share of the training data; the winner is then trained and tested once
    test         a grid on the test set, as the authors apparently did; its numbers are too good

The grid is always run online, whatever the tables do with the winner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from utils.studies.plans import CLASS_IL, DOMAIN_IL, Experiment, Plan
from utils.studies.runs import Run, Runs

HELD_OUT = 0.1


@dataclass(frozen=True)
class Selection:
    mode: str
    runs: Runs
    seeds: tuple[int, ...]

    def is_tuned(self, experiment: Experiment) -> bool:
        return experiment.norm == "adab2n" and not {"kappa", "lambd"} & dict(experiment.flags).keys()

    def grid(self, experiment: Experiment) -> dict[tuple[float, float], list[Run]]:
        """Return the runs that decide, by (kappa, lambda); empty if nothing is searched."""
        if self.mode == "fixed" or not self.is_tuned(experiment):
            return {}
        preset = self.runs.preset
        base = Experiment(experiment.model, "adab2n", experiment.data, experiment.buffer)
        flags = {} if self.mode == "test" else {"validation": HELD_OUT}
        return {
            (kappa, lambd): [self.runs.of(base, seed, kappa=kappa, lambd=lambd, **flags) for seed in self.seeds]
            for kappa in preset.kappas
            for lambd in preset.data[experiment.data].lambdas
        }

    def winner(self, experiment: Experiment) -> dict[str, float] | None:
        """Return the flags to run with; None while the grid is not finished."""
        grid = self.grid(experiment)
        if not grid:
            return {}
        scores = {}
        for choice, runs in grid.items():
            records = [record for run in runs if (record := self.runs.record(run)) is not None]
            if len(records) < len(runs):
                return None
            scores[choice] = float(np.mean([score(record) for record in records]))
        kappa, lambd = max(scores, key=lambda choice: scores[choice])
        return {"kappa": kappa, "lambd": lambd}

    def for_plan(self, plan: Plan) -> Selection:
        """Return the selection with the seeds of a plan."""
        if plan.seeds:
            return replace(self, seeds=plan.seeds)
        return replace(self, seeds=self.seeds[:1]) if plan.first_seed_only else self

    def final(self, experiment: Experiment) -> list[Run] | None:
        """Return the runs whose results the tables show, one a seed; None while the winner is unknown."""
        flags = self.winner(experiment)
        if flags is None:
            return None
        return [self.runs.of(experiment, seed, **flags) for seed in self.seeds]


def score(record: dict[str, Any]) -> float:
    """Return what a winner is chosen by: accuracy among all classes."""
    results = record["results"]
    return results.get(CLASS_IL, results.get(DOMAIN_IL))["metrics"]["faa"]


def required_runs(plans: Sequence[Plan], selection: Selection) -> tuple[dict[str, Run], int]:
    """Return the runs of these plans that are known by now, each once, and how many experiments wait for their winner.

    They are in the order in which a sweep runs them: all runs of one seed before the next seed, so that an interrupted
    sweep can be compared. Plans with seeds of their own are run one after the other.
    """
    runs: dict[str, Run] = {}
    waiting: set[Experiment] = set()
    for block in _blocks(plans):
        for run in sorted(_runs_of(block, selection, waiting), key=lambda run: run.known_options["seed"]):
            runs[run.name] = run.with_probes_of(runs.get(run.name))
    return runs, len(waiting)


def _blocks(plans: Sequence[Plan]) -> Iterator[list[Plan]]:
    """Yield the plans that share their seeds together, and every other plan alone."""
    for has_own_seeds, group in groupby(plans, key=lambda plan: bool(plan.seeds)):
        if has_own_seeds:
            yield from ([plan] for plan in group)
        else:
            yield list(group)


def _runs_of(plans: Sequence[Plan], selection: Selection, waiting: set[Experiment]) -> Iterator[Run]:
    """Yield the runs of the plans' experiments; those that wait for their winner are added to `waiting`."""
    for plan in plans:
        of_plan = selection.for_plan(plan)
        both = ((cell.experiment, cell.baseline) for cell in plan.cells(selection.runs.preset))
        for experiment in dict.fromkeys(one for pair in both for one in pair if one is not None):
            yield from (run for searched in of_plan.grid(experiment).values() for run in searched)
            final = of_plan.final(experiment)
            if final is None:
                waiting.add(experiment)
            yield from final or ()
