"""Plans: which runs stand behind each table, and that the shell sweeps are the same runs."""

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.helpers import make_spec
from tests.scripts.records import finish
from utils.config.parser import parse
from utils.config.resolve import resolve
from utils.run.build import build_network
from utils.studies.confirm import CONFIRM, CONFIRMATORY_SEEDS, EXPLORATORY_SEEDS
from utils.studies.plans import PLANS, Experiment
from utils.studies.presets import NARROW, PAPER, PRESETS, SMOKE
from utils.studies.results import published
from utils.studies.runs import Runs
from utils.studies.selection import Selection, required_runs, score

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
IN_PAPER = {
    "table2": 288, "table3": 288, "table4": 27, "table6": 12, "table7": 96, "table8": 36, "table9": 27,
    "table10": 135, "table11": 288, "fig1": 3, "fig2": 216, "fig3": 48, "fig4": 4, "fig5": 216, "fig6": 4, "fig7": 4,
}  # fmt: skip


def selection(preset=PAPER, mode="fixed", seeds=None, **folders) -> Selection:
    return Selection(mode, Runs(preset, **folders), seeds or preset.seeds)


def test_number_of_runs_which_plans_share():
    """736 instead of 1692: Tables 2, 3, 10 and 11 have the same ones, the figures most of theirs."""
    assert {id: len(required_runs([plan], selection())[0]) for id, plan in PLANS.items()} == IN_PAPER
    runs, waiting = required_runs(list(PLANS.values()), selection())
    assert (len(runs), waiting) == (736, 0)
    probes = {run.probes for run in runs.values() if run.probes}
    assert probes == {("stability", "statistics"), ("statistics",)}  # what two figures record of a run, it records once


def test_confirmatory_runs_come_group_by_group_and_seed_by_seed():
    assert {seed for plan in CONFIRM.values() for seed in plan.seeds} == set(CONFIRMATORY_SEEDS)
    assert not set(EXPLORATORY_SEEDS) & set(CONFIRMATORY_SEEDS)
    runs, waiting = required_runs(list(CONFIRM.values()), selection(NARROW))
    assert (len(runs), waiting) == (323, 0)
    seeds = [run.options["seed"] for run in runs.values()]
    assert seeds[:60] == [seed for seed in range(3, 8) for _ in range(12)]
    assert seeds[60:120] == [seed for seed in range(3, 6) for _ in range(20)]
    assert seeds[120:200] == [seed for seed in range(6, 10) for _ in range(20)]
    widths = [run.options.get("num_filters") for run in runs.values()]
    assert widths == [None] * 60 + [16] * 254 + [64] * 9
    assert all(run.options["final_statistics"] for run in runs.values())


def test_every_published_number_of_an_available_table_has_its_cell():
    for plan in PLANS.values():
        if plan.id in ("table2", "table3", "table4", "table7", "table8", "table11"):
            cells = {cell.published[1:] for cell in plan.cells(PAPER)}
            assert cells == set(published(plan.id)), plan.id


def test_table_of_shares_has_both_readings_in_joint_batches_with_one_memory():
    cells = list(PLANS["table7"].cells(PAPER))
    assert {(cell.experiment.model, cell.experiment.data) for cell in cells} == {
        (model, data) for model in ("derpp", "er_ace") for data in ("cifar10", "cifar100-10")
    }
    assert {(cell.experiment.norm, cell.experiment.buffer) for cell in cells} == {("bn", 500)}
    flags = dict(cells[2].experiment.flags)
    assert (cells[2].column, flags) == (("r = 1/5",), {"replay_forward": "joint", "current_share": "1/5"})
    assert cells[2].published == ("table7", "Task-IL ACC", "1/5")
    assert len(required_runs([PLANS["table7"]], selection(SMOKE))[0]) == 16  # on what stands for CIFAR-10 alone


@pytest.mark.parametrize("plan", PLANS.values(), ids=lambda plan: plan.id)
def test_shell_sweep_has_the_runs_of_the_plan(plan):
    listed = subprocess.run(
        [SCRIPTS / f"{plan.id}.sh"], env=os.environ | {"PYTHON": "echo"}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    runs = Runs(PAPER)
    names = set()
    for line in listed:
        program, *words = shlex.split(line)
        assert program == "main.py"
        names.add(runs.run_with(parse(words)).name)
    assert names == set(required_runs([plan], selection())[0])


def test_command_of_a_run_is_what_main_takes():
    run = Runs(PAPER, "elsewhere", "data").of(Experiment("derpp", "adab2n", "miniimg", 2000), 1, kappa=0.4)
    expected = (
        "--model derpp --norm adab2n --dataset seq-miniimg --buffer_size 2000 --kappa 0.4 --seed 1 "
        "--base_path data --results_path elsewhere --num_threads 1"
    )
    assert " ".join(run.command()) == expected
    assert Runs(PAPER).run_with(parse(run.command())).name == run.name
    assert run.folder == Path("elsewhere/runs") / run.name
    assert run.steps == 5000


def test_further_norms_are_rows_of_every_table_of_accuracies():
    preset = replace(SMOKE, also=("bnt",))
    more, _ = required_runs(list(PLANS.values()), selection(preset))
    further = 8 + 3 + 2 + 1 + 8 + 8  # online, offline, fine-tuning and joint, domains, batch size, buffer
    assert len(required_runs(list(PLANS.values()), selection(SMOKE))[0]) == 119
    assert len(more) == 119 + further
    for id in ("table2", "table3", "table4", "table8", "table11"):
        assert {"adab2n", "bnt"} <= {cell.experiment.norm for cell in PLANS[id].cells(preset)}, id


def test_run_for_another_machine_has_whole_paths(tmp_path, monkeypatch):
    """The data folder too, where it is the default: a worker stands elsewhere."""
    monkeypatch.chdir(tmp_path)
    run = Runs(PAPER).of(Experiment("sgd", "bn", "cifar10"), 0)
    moved = run.with_absolute_paths()
    assert "base_path" not in run.options
    assert moved.options["base_path"] == str(tmp_path / "data")
    assert moved.options["results_path"] == str(tmp_path / "results")
    assert (moved.name, moved.folder) == (run.name, tmp_path / run.folder)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_every_experiment_of_a_preset_can_be_built(preset):
    """Flags that fit together and a network whose channels the groups divide, without data."""
    experiments = {cell.experiment for plan in PLANS.values() for cell in plan.cells(preset)}
    spec = make_spec(image_shape=(3, 32, 32))
    for experiment in {replace(experiment, buffer=50, flags=()) for experiment in experiments}:
        if experiment.model in ("sgd", "joint"):
            experiment = replace(experiment, buffer=None)
        config = resolve(Runs(preset, base_path="data").options(experiment, 0))
        assert build_network(config, spec, torch.device("meta")).norms is not None
    assert all(list(plan.cells(preset)) for plan in PLANS.values())


# --- choosing kappa and lambda ----------------------------------------------------------------------------------------

OURS = Experiment("derpp", "adab2n", "cifar100", 50)


def test_validation_searches_on_held_out_data_before_the_runs_of_the_tables(tmp_path):
    chosen = selection(SMOKE, "validation", results_path=str(tmp_path))
    grid = chosen.grid(OURS)
    assert list(grid) == [(0.4, 0.1), (0.4, 1.0), (1.0, 0.1), (1.0, 1.0)]
    assert all(run.options["validation"] == 0.1 for [run] in grid.values())
    assert chosen.winner(OURS) is None
    assert chosen.final(OURS) is None
    runs, waiting = required_runs([PLANS["table6"]], chosen)
    assert (len(runs), waiting) == (3 + 4, 1)


def test_winner_is_the_best_mean_over_seeds(tmp_path):
    chosen = selection(SMOKE, "validation", seeds=(0, 1), results_path=str(tmp_path))
    scores = {(0.4, 0.1): (90, 20), (0.4, 1.0): (60, 60), (1.0, 0.1): (80, 10), (1.0, 1.0): (50, 50)}
    for choice, runs in chosen.grid(OURS).items():
        for run, points in zip(runs, scores[choice], strict=True):
            finish(run, points)
    assert chosen.winner(OURS) == {"kappa": 0.4, "lambd": 1.0}
    assert [run.options["lambd"] for run in chosen.final(OURS)] == [1.0, 1.0]
    assert "validation" not in chosen.final(OURS)[0].options


def test_domains_are_chosen_by_their_own_accuracy():
    assert score({"results": {"domain_il": {"metrics": {"faa": 7.0}}}}) == 7.0


def test_search_on_the_test_set_needs_no_further_runs(tmp_path):
    chosen = selection(SMOKE, "test", results_path=str(tmp_path))
    for number, runs in enumerate(chosen.grid(OURS).values()):
        finish(runs[0], 10 + number)
    [final] = chosen.final(OURS)
    assert final == chosen.grid(OURS)[1.0, 1.0][0]


def test_baselines_and_the_grid_figure_are_not_tuned_and_others_share_the_winner():
    chosen = selection(SMOKE, "validation")
    assert chosen.winner(replace(OURS, norm="bn")) == {}
    assert chosen.grid(replace(OURS, flags=(("kappa", 0.4), ("lambd", 1.0)))) == {}
    assert chosen.grid(replace(OURS, flags=(("buffer_mode", "ring"),))) == chosen.grid(OURS)
