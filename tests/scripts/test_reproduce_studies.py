"""Studies, paired differences, claims, and records that are kept beside the code."""

from dataclasses import replace

import pytest

from scripts.reproduce import main as reproduce
from tests.scripts.records import finish
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.run.records import read_record
from utils.studies import runs as runs_module
from utils.studies.claims import CLAIMS, FAILS, HOLDS, NO_VERDICT, OPEN, Claim, judge, minus
from utils.studies.compare import Paired, averaged
from utils.studies.plans import CLASS_IL, Experiment, faa
from utils.studies.presets import NARROW, PAPER, SMOKE
from utils.studies.request import chosen_plans
from utils.studies.runs import DONE, Runs
from utils.studies.selection import Selection, required_runs
from utils.studies.study import STUDIES

OURS, BN = Experiment("derpp", "adab2n", "cifar10", 50), Experiment("derpp", "bn", "cifar10", 50)
OTHER_BN = Experiment("er_ace", "bn", "cifar10", 50)


def selection(folder, preset=SMOKE, seeds=(3, 4, 5)) -> Selection:
    return Selection("fixed", Runs(preset, str(folder), measured=folder / "measured"), seeds)


def fill(chosen: Selection, experiment: Experiment, values) -> None:
    for run, value in zip(chosen.final(experiment), values, strict=False):
        finish(run, value)


# --- paired differences -----------------------------------------------------------------------------------------------


def test_interval_by_hand():
    """Differences 1, 2, 3: mean 2, standard deviation 1, t of 2 degrees of freedom 4.302653."""
    paired = Paired((1.0, 2.0, 3.0))
    assert (paired.n, paired.mean, paired.wins) == (3, 2.0, 3)
    assert paired.interval == pytest.approx((2 - 4.3026527 / 3**0.5, 2 + 4.3026527 / 3**0.5))
    assert not paired.is_above
    assert Paired((2.0, 2.1, 1.9)).is_above
    assert Paired((-2.0, -2.1, -1.9)).is_below
    assert Paired((5.0,)).interval is None
    assert Paired((5.0, 5.0)).interval is None
    assert Paired((0.3 - 0.1, 0.2)).interval is None  # equal but for rounding
    assert Paired(()).mean is None


def test_cells_are_averaged_for_each_seed_first():
    assert averaged([{0: 1.0, 1: 5.0}, {0: 3.0, 1: 7.0}]).differences == (2.0, 6.0)
    assert averaged([{0: 1.0, 1: 5.0}, {0: 3.0, 1: 7.0, 2: 9.0}]).differences == (2.0, 6.0, 9.0)
    assert averaged([]).differences == ()


# --- claims -----------------------------------------------------------------------------------------------------------


def claim(*cells: tuple[Experiment, Experiment], **facts) -> Claim:
    chosen = [(str(number), minus(*pair, faa(CLASS_IL))) for number, pair in enumerate(cells)]
    return Claim("made-up", "ours is above", "nowhere", lambda preset: iter(chosen), **facts)


@pytest.mark.parametrize(
    ("differences", "facts", "verdict"),
    [
        ((5.0, 5.1, 4.9), {}, HOLDS),
        ((-5.0, -5.1, -4.9), {}, FAILS),
        ((5.0, 0.1, -3.0), {}, OPEN),
        ((5.0, 5.1), {}, NO_VERDICT),
        ((), {}, NO_VERDICT),
        ((5.0, 5.0, 5.0), {}, OPEN),
        ((0.1, -0.1, 0.0), {"alike": 2.0}, HOLDS),
        ((5.0, 5.1, 4.9), {"alike": 2.0}, FAILS),
        ((2.0, 2.1, 1.9), {"alike": 2.0}, OPEN),
    ],
)
def test_verdict_is_no_stronger_than_its_interval(tmp_path, differences, facts, verdict):
    chosen = selection(tmp_path)
    fill(chosen, OURS, [50 + difference for difference in differences])
    fill(chosen, BN, [50.0] * 3)
    judged = judge(claim((OURS, BN), **facts), chosen)
    assert judged.verdict == verdict
    assert judged.paired.differences == pytest.approx(differences)


BOTH = ((OURS, BN), (OURS, OTHER_BN))
CLEAR = [60.0, 60.1, 59.9]


@pytest.mark.parametrize(
    ("others", "facts", "verdict", "n_cells"),
    [
        ([61.0, 60.7, 60.9], {}, HOLDS, 2),  # +10 and -1 each time: above on average,
        ([61.0, 60.7, 60.9], {"every": True}, FAILS, 2),  # but not everywhere
        ([61.0], {}, HOLDS, 1),  # a cell with one seed is not averaged;
        ([61.0], {"every": True}, OPEN, 1),  # it does not refute, but keeps a statement from holding,
        ([90.0], {}, OPEN, 1),  # and where it would reverse the mean, every statement
        ([61.0, 60.8], {}, HOLDS, 2),
        ([61.0, 60.8], {"every": True}, OPEN, 2),
    ],
)
def test_every_cell_is_more_than_the_average(tmp_path, others, facts, verdict, n_cells):
    chosen = selection(tmp_path)
    for experiment, values in ((OURS, CLEAR), (BN, [50.0] * 3), (OTHER_BN, others)):
        fill(chosen, experiment, values)
    judged = judge(claim(*BOTH, **facts), chosen)
    assert (judged.verdict, judged.share, judged.paired.n) == (verdict, "above in 1 of 2 cells, below in 1", 3)
    assert (list(judged.cells), list(judged.fewer)) == (["0", "1"][:n_cells], ["0", "1"][n_cells:])


def test_there_is_no_verdict_without_a_quorum(tmp_path):
    """Of three confirmatory seeds in a third of the cells."""
    chosen = selection(tmp_path, seeds=(0, 1, 2, 3, 4, 5))
    for experiment in (OURS, BN):
        fill(chosen, experiment, [50.0 + (5 + 0.1 * seed) * (experiment is OURS) for seed in range(6)])
    without_runs = [(OURS, replace(OURS, buffer=200))] * 3
    for seeds, n_missing, verdict in (
        ((3, 4, 5), 2, HOLDS),
        ((3, 4, 5), 3, NO_VERDICT),
        ((3, 4), 0, NO_VERDICT),
        ((0, 1, 2), 0, NO_VERDICT),
        ((2, 3, 4, 5), 0, NO_VERDICT),
    ):
        judged = judge(claim((OURS, BN), *without_runs[:n_missing]), replace(chosen, seeds=seeds))
        assert (judged.tendency, judged.verdict) == (HOLDS, verdict), (seeds, n_missing)
        assert judged.share.startswith(f"above in 1 of {1 + n_missing} cells")


def test_a_cell_that_loses_its_seeds_one_by_one_reverses_no_verdict(tmp_path):
    """+10 in one cell and -3 in the other: above on average."""
    chosen = selection(tmp_path)
    for experiment, values in ((OURS, CLEAR), (BN, [50.0] * 3), (OTHER_BN, [63.0, 63.0, 63.0])):
        fill(chosen, experiment, values)
    verdicts = []
    for run in chosen.final(BN):
        verdicts.append(judge(claim(*BOTH), selection(tmp_path)).verdict)
        (run.folder / "record.json").unlink()
    assert verdicts == [HOLDS, HOLDS, OPEN]


@pytest.mark.parametrize(("others", "verdict"), [(1, FAILS), (9, OPEN)])
def test_a_cell_that_refutes_is_below_for_all_that_there_are(tmp_path, others, verdict):
    """Its interval lies below zero at 97.5 %, but not at 99.5 %."""
    chosen = selection(tmp_path)
    fill(chosen, OURS, [60.0, 60.0, 60.0])
    fill(chosen, BN, [50.0, 50.1, 50.2])
    fill(chosen, OTHER_BN, [61.2, 61.0, 60.8])
    judged = judge(claim((OURS, OTHER_BN), *[(OURS, BN)] * others, every=True), chosen)
    assert judged.started["0"].is_below
    assert (judged.verdict, judged.refuting) == (verdict, ["0"] if verdict == FAILS else [])


@pytest.mark.parametrize("preset", [PAPER, NARROW, SMOKE], ids=lambda preset: preset.name)
def test_every_claim_has_cells_whose_runs_can_be_named(preset, tmp_path):
    chosen = selection(tmp_path, preset, (0,))
    for statement in CLAIMS.values():
        names, cells = zip(*statement.cells(preset), strict=True)
        assert len(set(names)) == len(names), statement.id
        assert all(sum(sign for sign, _ in cell.terms) == 0 for cell in cells)
        assert all(chosen.final(experiment) for cell in cells for experiment in cell.experiments)
        assert not judge(statement, chosen).started


def test_gain_with_large_batches_is_a_difference_of_differences(tmp_path):
    """Gains of 1 with batches of ten and of 4 with large ones."""
    chosen = selection(tmp_path)
    for _, cell in CLAIMS["batch-32"].cells(SMOKE):
        values = {("adab2n", True): 44.0, ("bn", True): 40.0, ("adab2n", False): 31.0, ("bn", False): 30.0}
        for experiment in cell.experiments:
            value = values[experiment.norm, bool(experiment.flags)]
            fill(chosen, experiment, [value, value + 0.1 * (value == 44.0), value])
    judged = judge(CLAIMS["batch-32"], chosen)
    assert judged.paired.differences == pytest.approx((3.0, 3.1, 3.0))
    assert judged.verdict == HOLDS


def test_command_prints_a_verdict_for_every_claim(tmp_path, capsys):
    chosen = Selection("fixed", Runs(SMOKE, str(tmp_path)), (0, 1, 3, 4, 5))
    for experiment in {e for _, cell in CLAIMS["cn"].cells(SMOKE) for e in cell.experiments}:
        gains = (-1.0, -1.2, 1.0, 1.2, 1.1) if experiment.norm == "cn" else [0.0] * 5
        fill(chosen, experiment, [50.0 + gain for gain in gains])
    assert reproduce(["claims", "--preset", "smoke", "--seeds", "0,1", "--results_path", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    [place] = [number for number, line in enumerate(lines) if "CN is moderately above BN" in line]
    assert lines[place].startswith(HOLDS)
    assert "+1.10 [+0.85, +1.35], n = 3, above in 8 of 8 cells" in lines[place + 1]
    assert "-1.10 [-2.37, +0.17], n = 2, above in 0 of 8 cells, below in 8" in lines[place + 2]
    assert sum(line.startswith((HOLDS, FAILS, OPEN, NO_VERDICT)) for line in lines) == len(CLAIMS)


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
    assert capsys.readouterr().out == "1 finished and 1 failed runs kept; 2 of 24 are there now\n"
    assert reproduce(["keep", "core", *words]) == 0
    assert capsys.readouterr().out == "0 finished and 0 failed runs kept; 2 of 24 are there now\n"
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
    assert ended.out.startswith("0 finished and 0 failed")
    assert "its seal does not match" in ended.err
    assert not measured.exists()
