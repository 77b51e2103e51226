"""Choose AdaB2N's kappa and lambda: one winner per data set, method and memory size, shared by all tables.

    fixed        the framework's defaults
    validation   a grid on a held-out share of the training data; the winner is then trained and tested once
    test         a grid on the test set, as the authors apparently did; its numbers are too good

The grid is always run online, whatever the tables do with the winner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, product
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

    def grid(self, experiment: Experiment) -> dict[tuple[float, float], list[Run]]:
        """Return the runs that decide, by (kappa, lambda); empty if nothing is searched."""
        is_set = {"kappa", "lambd"} & dict(experiment.flags).keys()
        if self.mode == "fixed" or experiment.norm != "adab2n" or is_set:
            return {}
        preset, base = self.runs.preset, replace(experiment, flags=())
        flags = {} if self.mode == "test" else {"validation": HELD_OUT}
        choices = product(preset.kappas, preset.data[experiment.data].lambdas)
        return {(kappa, lambd): [self.runs.of(base, seed, kappa=kappa, lambd=lambd, **flags) for seed in self.seeds]
                for kappa, lambd in choices}  # fmt: skip

    def winner(self, experiment: Experiment) -> dict[str, float] | None:
        """Return the flags to run with; None while the grid is not finished."""
        scores: dict[tuple[float, float], float] = {}
        for choice, runs in self.grid(experiment).items():
            records = [record for run in runs if (record := self.runs.record(run)) is not None]
            if len(records) < len(runs):
                return None
            scores[choice] = float(np.mean([score(record) for record in records]))
        if not scores:
            return {}
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
        return None if flags is None else [self.runs.of(experiment, seed, **flags) for seed in self.seeds]


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
    for _, block in groupby(plans, key=lambda plan: plan.id if plan.seeds else ""):
        of_block: list[Run] = []
        for plan in block:
            of_plan, cells = selection.for_plan(plan), plan.cells(selection.runs.preset)
            for experiment in dict.fromkeys(each for cell in cells for each in cell.comparison.experiments):
                final = of_plan.final(experiment)
                of_block += [*chain(*of_plan.grid(experiment).values()), *(final or [])]
                if final is None:
                    waiting.add(experiment)
        for run in sorted(of_block, key=lambda run: run.options["seed"]):
            runs[run.name] = run.with_probes_of(runs.get(run.name))
    return runs, len(waiting)
