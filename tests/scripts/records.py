"""Made-up records of finished runs, for tests of what is built on them."""

import json
from dataclasses import replace

from utils.config.resolve import resolve
from utils.errors import DataMissing
from utils.files import write_json
from utils.run.build import ABSENT, StreamBuilder
from utils.run.code_digest import code_digests
from utils.run.identity import run_identity
from utils.run.metrics import measured, summary
from utils.run.records import commit, plain, seal_of
from utils.studies.claims import Claim, minus
from utils.studies.plans import CLASS_IL, PLANS, Experiment, faa
from utils.studies.presets import PAPER, SMOKE
from utils.studies.runs import Run, Runs
from utils.studies.selection import Selection
from utils.studies.verdicts import Verdict


def selection_of(folder, preset=SMOKE, seeds=None, mode="fixed") -> Selection:
    """Of the runs below this results folder alone, with these seeds or the preset's."""
    return Selection(mode, Runs(preset, str(folder), measured=folder / "measured"), seeds or preset.seeds)


def spec_of(config):
    try:
        return StreamBuilder(config).spec
    except DataMissing:
        return StreamBuilder(config, ABSENT).spec


def run_of(folder, model="er", norm="bn", dataset="seq-digits", **options) -> Run:
    """Of these flags, below this results folder."""
    given = {"model": model, "norm": norm, "dataset": dataset, "results_path": str(folder)}
    return Runs(PAPER).run_with(given | options)


def result_of(matrix: list) -> dict:
    """A setting's part of a record."""
    return {"matrix": matrix, "untrained": [0.0] * len(matrix), "metrics": summary(measured(matrix, None))}


def two_tasks(faa: float) -> dict:
    """With one point of forgetting."""
    return result_of([[faa + 1, None], [faa, faa]])


def finish(run: Run, class_il: float, task_il: float = 0.0, **changes) -> None:
    """The record of a run that reached these accuracies; `changes` replace its entries."""
    config = resolve(run.options)
    record = {
        "run": run.name, "status": "finished", "date": "2026-01-01T00:00:00+00:00",
        "results": {"class_il": two_tasks(class_il), "task_il": two_tasks(task_il)}, "config": plain(config),
        "steps": run.steps, "seconds": 10.0, "wall_seconds": 12.0, "steps_per_second": 1.0,
        "conditions": [{"num_threads": 1, "device": "cpu", "torch": "2", "norm_impl": "torch"}],
        "identity": run_identity(config, spec_of(config)), "sources": code_digests(config),
        "environment": {"commit": commit(), "device_type": "cpu"},
    }  # fmt: skip
    run.folder.mkdir(parents=True, exist_ok=True)
    record |= changes
    write_json(run.folder / "record.json", record | {"seal": seal_of(record)})


def finish_table8(folder) -> list[Run]:
    """Table 8 in miniature: Class-IL accuracies of 50, 51, ..., Task-IL accuracies of 60, 61, ..."""
    experiments = dict.fromkeys(cell.experiment for cell in PLANS["table8"].cells(SMOKE))
    runs = [run for experiment in experiments for run in selection_of(folder).final(experiment)]
    for level, run in enumerate(runs):
        finish(run, 50.0 + level, 60.0 + level)
    return runs


def write_log(run: Run, *events: dict) -> None:
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def made_up_verdict(*cells: dict[int, float], id="", source="", methods=(), **facts) -> Verdict:
    """Of confirmatory differences by seed, a cell each."""
    experiments = [Experiment(model, "adab2n", "cifar10", 50) for model in methods or ["derpp"] * len(cells)]
    pairs = {str(i): [minus(ours, replace(ours, norm="bn"), faa(CLASS_IL))] for i, ours in enumerate(experiments)}
    claim = Claim(id, "ours is above", source, lambda preset: iter(()))
    values, blocks = dict(zip(pairs, cells, strict=True)), dict.fromkeys(pairs, "")
    return Verdict(claim, values, pairs, blocks, **{"is_confirmatory": True} | facts)
