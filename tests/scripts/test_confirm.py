"""The confirmatory runs: their order, their seeds, and that exploratory seeds never count as confirmatory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scripts.records import finish, selection_of
from utils.studies.claims import CLAIMS
from utils.studies.confirm import CONFIRM, CONFIRMATORY_SEEDS, EXPLORATORY_SEEDS
from utils.studies.plans import Experiment
from utils.studies.presets import NARROW
from utils.studies.selection import required_runs
from utils.studies.verdicts import judge


@pytest.fixture
def selection(tmp_path):
    return selection_of(tmp_path, NARROW)


def test_seeds_are_either_exploratory_or_confirmatory():
    assert not set(EXPLORATORY_SEEDS) & set(CONFIRMATORY_SEEDS)
    assert {seed for plan in CONFIRM.values() for seed in plan.seeds} == set(CONFIRMATORY_SEEDS)


def test_an_exploratory_seed_is_not_counted_as_confirmatory(selection):
    for norm, accuracy in (("bn", 40.0), ("adab2n", 45.0)):
        for seed in (0, 3):
            finish(selection.runs.of(Experiment("derpp", norm, "cifar10", 500), seed), accuracy + seed)
    for seeds, seed in ((CONFIRMATORY_SEEDS, 3), (EXPLORATORY_SEEDS, 0)):
        [cell] = judge(CLAIMS["adab2n-bn-class"], replace(selection, seeds=seeds)).cells.values()
        assert cell.differences == (5.0,), f"seed {seed} alone is one of these"
    assert not judge(CLAIMS["adab2n-bn-class"], replace(selection, seeds=CONFIRMATORY_SEEDS[1:])).values


def test_runs_come_group_by_group_and_seed_by_seed(selection):
    runs, waiting = required_runs(list(CONFIRM.values()), selection)
    assert (len(runs), waiting) == (323, 0)
    seeds = [run.options["seed"] for run in runs.values()]
    assert seeds[:60] == [seed for seed in range(3, 8) for _ in range(12)]
    assert seeds[60:120] == [seed for seed in range(3, 6) for _ in range(20)]
    assert seeds[120:200] == [seed for seed in range(6, 10) for _ in range(20)]
    widths = [run.options.get("num_filters") for run in runs.values()]
    assert widths == [None] * 60 + [16] * 254 + [64] * 9
    assert all(run.options["final_statistics"] for run in runs.values())
