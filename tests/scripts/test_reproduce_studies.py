"""Studies, and records that are kept beside the code."""

from dataclasses import replace

import pytest

from scripts.reproduce import main as reproduce
from tests.scripts.records import finish
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.run.records import read_record
from utils.studies import runs as runs_module
from utils.studies.plans import Experiment
from utils.studies.presets import NARROW, PAPER, SMOKE
from utils.studies.request import chosen_plans
from utils.studies.runs import DONE, Runs
from utils.studies.selection import Selection, required_runs
from utils.studies.study import STUDIES

OURS, BN = Experiment("derpp", "adab2n", "cifar10", 50), Experiment("derpp", "bn", "cifar10", 50)


# --- studies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", STUDIES)
def test_pairs_of_a_study_differ_in_flags_or_norm_alone(id):
    cells = list(STUDIES[id].cells(NARROW))
    assert cells
    for cell in cells:
        if cell.baseline is not None:
            assert replace(cell.experiment, norm="", flags=()) == replace(cell.baseline, norm="", flags=())
            assert cell.experiment != cell.baseline


def test_narrow_is_the_papers_setting_with_a_narrow_network(tmp_path):
    """All options but the width and the groups are those of the paper's runs."""
    for norm in ("bn", "cn", "adab2n"):
        experiment = Experiment("derpp", norm, "cifar100", 2000)
        narrow, paper = (
            resolve(Runs(preset, str(tmp_path)).options(experiment, 1)).values() for preset in (NARROW, PAPER)
        )
        differing = {name for name in narrow if narrow[name] != paper[name]} - NARROW.outcomes.keys()
        assert differing == ({"num_filters", "groups"} if norm == "cn" else {"num_filters"})
        assert narrow["num_filters"] / narrow.get("groups", 8) == paper["num_filters"] / paper.get("groups", 32)


def test_core_has_the_72_runs_of_the_evidence():
    chosen = Selection("fixed", Runs(NARROW), NARROW.seeds)
    assert len(required_runs([STUDIES["core"]], chosen)[0]) == 72
    [part] = chosen_plans(["core:cifar10"], NARROW)
    runs, _ = required_runs([part], chosen)
    assert len(runs) == 36
    assert {run.options["dataset"] for run in runs.values()} == {"seq-cifar10"}
    with pytest.raises(UsageError, match="cifar10"):
        chosen_plans(["core:cifar"], NARROW)


# --- records beside the code ------------------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path, monkeypatch):
    folder = tmp_path / "measured"
    monkeypatch.setattr(runs_module, "MEASURED", folder)
    monkeypatch.setattr(Runs.__init__, "__defaults__", (*Runs.__init__.__defaults__[:-1], folder))
    return folder


def test_kept_records_count_wherever_results_are(tmp_path, measured, capsys):
    chosen = Selection("fixed", Runs(SMOKE, str(tmp_path / "here")), (0,))
    runs = [chosen.final(experiment)[0] for experiment in (OURS, BN)]
    finish(runs[0], 60.0)
    finish(runs[1], 50.0, status="failed", reason="it diverged")
    words = ["--preset", "smoke", "--results_path", str(tmp_path / "here")]
    assert reproduce(["keep", "core", *words]) == 0
    assert capsys.readouterr().out == "runs kept: 1 finished, 1 failed; 2 of 24 are there now\n"
    assert reproduce(["keep", "core", *words]) == 0
    assert capsys.readouterr().out == "runs kept: 0 finished, 0 failed; 2 of 24 are there now\n"
    elsewhere = Runs(SMOKE, str(tmp_path / "elsewhere"))
    again = elsewhere.of(OURS, 0)
    assert elsewhere.state(again) == DONE
    assert elsewhere.record(elsewhere.of(BN, 0)) is None
    assert [record["run"] for record in elsewhere.all_records()] == [again.name]
    made, kept = (read_record(folder / "record.json") for folder in (runs[0].folder, measured / again.name))
    assert kept["config"] == made["config"] | {"results_path": "results"}  # it names no folder of this machine
    assert {**kept, "config": None, "seal": None} == {**made, "config": None, "seal": None}


def test_damaged_records_are_not_kept(tmp_path, measured, capsys):
    chosen = Selection("fixed", Runs(SMOKE, str(tmp_path)), (0,))
    run = chosen.final(BN)[0]
    finish(run, 50.0)
    path = run.folder / "record.json"
    path.write_text(path.read_text().replace("50.0", "90.0"))
    assert reproduce(["keep", "core", "--preset", "smoke", "--results_path", str(tmp_path)]) == 0
    ended = capsys.readouterr()
    assert ended.out.startswith("runs kept: 0 finished, 0 failed")
    assert "its seal does not match" in ended.err
    assert not measured.exists()
