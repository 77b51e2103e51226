"""Every number that README and docs/evidence.md show is what the records in results/measured say."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import cache
from itertools import combinations
from statistics import correlation, mean

import pytest

from scripts import evidence
from scripts.figures import main as draw_figures
from scripts.reproduce import main as reproduce
from tests.scripts.records import finish, made_up_verdict, selection_of
from utils.config.parser import parse
from utils.figures.catalogue import COMPARISONS, FIGURES
from utils.figures.style import LIGHT, drawn_in
from utils.run.records import read_record
from utils.studies import compare, verdicts
from utils.studies.claims import ABOVE, CLAIMS
from utils.studies.compare import Paired, records_by_seed
from utils.studies.confirm import CONFIRM, CONFIRMATORY_SEEDS, EXPLORATORY_SEEDS, PAPER_WIDTH
from utils.studies.plans import JOINT, Comparison, Experiment
from utils.studies.results import published, published_value, tabulate
from utils.studies.runs import MEASURED, Runs
from utils.studies.selection import Selection
from utils.studies.study import read_study
from utils.studies.verdicts import BELOW, HOLDS, NO_VERDICT, OPEN, judge


def test_readme_and_page_say_what_the_records_say():
    for path, text in evidence.expected_files().items():
        assert path.read_text(encoding="utf-8") == text, f"run python -m scripts.evidence: {path.name} is another"


def test_records_are_sealed_and_of_one_kind():
    paths = sorted(MEASURED.glob("*/record.json"))
    for path in paths:
        record = read_record(path)
        assert record["run"] == path.parent.name
        assert {condition["num_threads"] for condition in record["conditions"]} == {1}
        assert not {"/root", "/home", "/work"} & set(re.findall(r"/[a-z]+", path.read_text()))
    counted = {record["run"] for record in evidence.finished(evidence.evidence())}
    for plan in CONFIRM.values():
        counted |= set(tabulate(plan, evidence.evidence()).records)
    for name in ("permuted_mnist", "boundaries", "survey_er"):
        study = read_study(evidence.ROOT / "scripts" / "studies" / f"{name}.toml")
        selection = Selection("fixed", Runs(study.preset(), evidence.EMPTY_DIR), study.seeds)
        counted |= set(tabulate(study.plans()[name], selection).records)
    assert counted == {path.parent.name for path in paths if read_record(path)["status"] == "finished"}


@pytest.fixture
def damaged(tmp_path):
    """(a folder of kept records, one of which has another digit; that record)."""
    paths = sorted(MEASURED.glob("*-seq-cifar10-*/record.json"))[:2]
    for path in paths:
        shutil.copytree(path.parent, tmp_path / "measured" / path.parent.name)
    path = tmp_path / "measured" / paths[1].parent.name / "record.json"
    faa = json.loads(path.read_text())["results"]["class_il"]["metrics"]["faa"]
    path.write_text(path.read_text().replace(repr(faa), repr(faa + 1)))
    return tmp_path / "measured", path


def default_measured(monkeypatch, folder):
    monkeypatch.setattr(Runs.__init__, "__defaults__", (*Runs.__init__.__defaults__[:-1], folder))
    monkeypatch.setattr(evidence.evidence, "__defaults__", (folder,))


@pytest.mark.parametrize(
    "command",
    [
        lambda folder: evidence.main([]),
        lambda folder: reproduce(["claims", "--preset", "narrow", "--results_path", str(folder)]),
        lambda folder: reproduce(["report", "table3", "--preset", "narrow", "--results_path", str(folder)]),
        lambda folder: draw_figures(["confounds", "--preset", "narrow", "--results_path", str(folder)]),
    ],
    ids=["evidence", "claims", "report", "figures"],
)
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_changed_digit_stops_what_reports_before_it_writes(damaged, tmp_path, monkeypatch, capsys, command, is_kept):
    measured, path = damaged
    if not is_kept:
        measured.rename(tmp_path / "runs")
        path = tmp_path / "runs" / path.parent.name / "record.json"
    default_measured(monkeypatch, measured)
    monkeypatch.setattr(evidence, "EMPTY_DIR", str(tmp_path))
    before = {file: file.read_bytes() for file in (evidence.README, evidence.PAGE)}
    assert command(tmp_path) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert (said.out, str(path) in line, "seal" in line) == ("", True, True)
    assert all(file.read_bytes() == content for file, content in before.items())
    assert not (tmp_path / "reports").exists()


def test_what_the_paper_has_for_the_cells_with_runs():
    cell = dict(CLAIMS["adab2n-bn-class"].cells(evidence.NARROW))["ER-ACE, Split CIFAR-10, M = 500"]
    bn, ours = (float(published("table3")[f"ER-ACE w/ {norm}", "Split CIFAR-10 M=500"][0]) for norm in ("BN", "Ours"))
    assert published_value(cell) == pytest.approx(ours - bn)
    wide = Comparison(tuple((sign, replace(e, flags=PAPER_WIDTH)) for sign, e in cell.terms), cell.metric)
    assert published_value(wide) == pytest.approx(ours - bn)
    control = Comparison(tuple((sign, replace(e, flags=JOINT)) for sign, e in cell.terms), cell.metric)
    assert published_value(control) is None  # the paper has no BN in a joint forward pass


@pytest.mark.parametrize(
    ("differences", "facts", "text"),
    [
        ((5.0, 5.1, 4.9), {}, "yes"),
        ((-5.0, -5.1, -4.9), {}, "no"),
        ((0.1, 0.0, -0.1), {}, "no"),
        ((5.0, 0.1, -3.0), {}, "undecided; use no"),
        ((5.0, 5.1), {}, "undecided; use no"),
        ((5.0, 5.1, 4.9), {"is_confirmatory": False}, "undecided; use no"),
        ((5.0, 5.1, 4.9), {"corrected_p": 0.06}, "undecided; use no"),
    ],
)
def test_an_answer_is_no_stronger_than_the_verdict(differences, facts, text):
    assert evidence.answer(made_up_verdict(dict(enumerate(differences)), **facts), "yes", "no") == text


def test_a_row_for_every_method_where_methods_differ():
    gains = {3: 5.0, 4: 5.5, 5: 4.5}, {3: -5.0, 4: -5.5, 5: -4.5}
    verdict = made_up_verdict(*gains, methods=["derpp", "er_ace"])
    rows = evidence.verdict_table([(verdict, replace(verdict, values={}))]).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| ours is above", "| – DER++", "| – ER-ACE"]
    assert len({row.count("|") for row in rows}) == 1


def test_both_readings_of_cifar100_are_compared_with_the_paper(tmp_path):
    selection = selection_of(tmp_path, evidence.NARROW, (0,))
    accuracies = {"cifar100": (21.55, 71.21), "cifar100-10": (22.55, 60.21)}  # published: 24.55, 61.21
    for data, (class_il, task_il) in accuracies.items():
        assert evidence.readings("table2", selection) is None
        finish(selection.runs.of(Experiment("er_ace", "bn", data, 2000), 0), class_il, task_il)
    assert evidence.readings("table2", selection) == pytest.approx((1, 10.0, -1.0))
    assert evidence.readings("table3", selection) == pytest.approx((1, -3.0, -2.0))


def test_numbers_as_text():
    assert evidence.difference(-1.26) == "-1.3"
    assert Paired((1.0,)).interval_text(1) == "–"
    assert Paired((1.0, 3.0)).interval_text(1) == "[-10.7, +14.7]"
    assert Paired((2.0, 2.0)).text(1) == "+2.0 no interval, n = 2"
    assert evidence.paper_text(Paired(pooled=(0.55, 0.43, 12.8))) == "+0.6 [-0.4, +1.5], inconclusive"
    assert evidence.paper_text(Paired(pooled=(12.26, 0.0, 0.0))) == "+12.3"


@pytest.mark.parametrize(("counts", "text"), [((1, 1), "one thread"), ((1, 2), "1 or 2 threads"), ((4,), "4 threads"),
                                              ((1, None), "1 or unknown threads")])  # fmt: skip
def test_threads_are_those_of_the_records(counts, text):
    conditions = [{"num_threads": count} if count else {} for count in counts]
    assert evidence.threads([{"conditions": [each]} for each in conditions]) == text


def test_common_commands_are_those_of_kept_records():
    kept = evidence.evidence()
    commands = re.findall("^\\| `(--.*?)`", evidence.common_commands(kept), flags=re.MULTILINE)
    assert len(commands) == 12
    for command in commands:
        run = kept.runs.run_with(parse(command.split()) | {"seed": 0})
        assert kept.runs.record(run) is not None, command


def test_the_published_numbers_are_drawn_beside_ours(tmp_path):
    draw = FIGURES["published"].draw
    assert draw(evidence.evidence(tmp_path)) is None
    digits = selection_of(tmp_path)
    finish(digits.runs.of(Experiment("er_ace", "bn", "cifar10", 50), 0), 50.0)
    with drawn_in(LIGHT):
        assert draw(digits) is None  # they have no published numbers
    with drawn_in(LIGHT):
        lines = [line for axes in draw(evidence.evidence()).axes for line in axes.lines]
    papers, ours = ([line.get_xdata()[0] for line in lines if line.get_marker() == marker] for marker in "Do")
    assert len(papers) == len(ours) > 20
    cell = published("table3")["DER++ w/ Ours", "Split CIFAR-10 M=500"]
    k = papers.index(float(cell[0]))
    assert abs(ours[k] - papers[k]) < 5


def test_the_correlations_that_the_protocol_names():
    """Between the cells of one data set and of two, over seeds 0 to 2 of the comparisons that the figure shows."""
    correlations: dict[bool, list[float]] = {True: [], False: []}
    for id in (id for ids in COMPARISONS.values() for id in ids[:2]):
        verdict = judge(CLAIMS[id], evidence.evidence())
        for first, second in combinations(verdict.values, 2):
            pair = [list(verdict.values[name].values()) for name in (first, second)]
            correlations[verdict.blocks[first] == verdict.blocks[second]].append(correlation(*pair))
    assert (len(correlations[True]), len(correlations[False])) == (20, 40)
    text = f"mean correlations of {mean(correlations[True]):.1f} and {mean(correlations[False]):.2f}"
    assert text in (evidence.ROOT / "docs" / "protocol.md").read_text()


# --- what one record can change ---------------------------------------------------------------------------------------


def test_no_single_kept_record_turns_above_into_below(monkeypatch):
    """Whatever record is left out, and whichever seeds count."""
    kept, removed = evidence.evidence(), ""
    records = cache(lambda experiment, seeds: records_by_seed(experiment, replace(kept, seeds=seeds)))

    def without_removed(experiment, selection):
        by_seed = records(experiment, selection.seeds)
        return {seed: record for seed, record in by_seed.items() if record["run"] != removed}

    for module in (verdicts, compare):
        monkeypatch.setattr(module, "records_by_seed", without_removed)
    judged = [(claim, replace(kept, seeds=seeds), judge(claim, replace(kept, seeds=seeds)))
              for claim in CLAIMS.values() for seeds in (EXPLORATORY_SEEDS, CONFIRMATORY_SEEDS)]  # fmt: skip
    assert {HOLDS, OPEN} <= {verdict.tendency for _, _, verdict in judged}
    assert {verdict.conclusion for _, _, verdict in judged if not verdict.is_confirmatory} == {NO_VERDICT}
    for removed in [record["run"] for record in kept.runs.all_records()]:  # which without_removed reads
        for claim, selection, verdict in judged:
            if removed in verdict.records:
                after = judge(claim, selection)
                assert not {*verdict.findings, *after.findings} >= {ABOVE, BELOW}, (claim.id, removed)
