"""Every number that README and docs/evidence.md show is what the records in results/measured say."""

from __future__ import annotations

import json
import re

import pytest

from scripts import evidence
from tests.scripts.records import finish
from utils.run.records import read_record
from utils.studies.claims import CLAIMS, FAILS, OPEN, Claim, Verdict, judge
from utils.studies.compare import Paired
from utils.studies.confirm import CONFIRM
from utils.studies.plans import JOINT, Experiment
from utils.studies.results import published, published_value, tabulate
from utils.studies.runs import MEASURED, Runs
from utils.studies.selection import Selection


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
    for plan, selection in evidence.own_plans(MEASURED):
        counted |= set(tabulate(plan, selection).records)
    for plan in CONFIRM.values():
        counted |= set(tabulate(plan, evidence.evidence()).records)
    assert counted == {path.parent.name for path in paths if read_record(path)["status"] == "finished"}


def test_a_changed_digit_does_not_count(tmp_path):
    path = next(iter(sorted(MEASURED.glob("*-seq-cifar10-*/record.json"))))
    text = path.read_text()
    faa = json.loads(text)["results"]["class_il"]["metrics"]["faa"]
    copied = tmp_path / path.parent.name / "record.json"
    copied.parent.mkdir()
    copied.write_text(text)
    assert len(evidence.finished(evidence.evidence(tmp_path))) == 1
    copied.write_text(text.replace(repr(faa), repr(faa + 1)))
    assert not evidence.finished(evidence.evidence(tmp_path))


def test_what_the_paper_has_for_the_cells_with_runs(tmp_path):
    claim = CLAIMS["class-il"]
    cell = dict(claim.cells(evidence.NARROW))["ER-ACE, Split CIFAR-10, M = 500"]
    bn, ours = (float(published("table3")[f"ER-ACE w/ {norm}", "Split CIFAR-10 M=500"][0]) for norm in ("BN", "Ours"))
    assert published_value(cell) == pytest.approx(ours - bn)
    assert judge(claim, evidence.evidence(tmp_path)).paper is None


def verdict(cells: dict[str, tuple[float, ...]], counted: str, **facts) -> Verdict:
    started = {name: Paired(values) for name, values in cells.items()}
    claim = Claim("made-up", "ours is above", "nowhere", lambda preset: iter(()), **facts)
    return Verdict(claim, started[counted], started, {counted: started[counted]}, ())


def test_cells_that_speak_against_a_statement_about_all():
    clear, opposed = (5.0, 5.1, 4.9), (-5.0, -5.1, -4.9)
    assert verdict({"there": clear, "here": (-1.0,)}, "there", every=True).verdict == OPEN
    assert verdict({"there": clear, "here": opposed}, "there", every=True).verdict == FAILS
    assert evidence.numbers(verdict({"here": opposed}, "here").paired) == "-5.0 [-5.2, -4.8], n = 3"


@pytest.mark.parametrize(("paper", "is_outside"), [(5.3, True), (5.1, False), (4.7, True), (None, False)])
def test_the_papers_difference_may_lie_outside_our_interval(paper, is_outside):
    """[+4.8, +5.2]"""
    assert evidence.is_outside(paper, Paired((5.0, 5.1, 4.9))) == is_outside
    assert not evidence.is_outside(paper, Paired((5.0,)))


def test_the_plan_behind_a_row():
    ours, bn, joint = (Experiment("derpp", norm, "cifar10", 500, flags)
                       for norm, flags in (("adab2n", ()), ("bn", ()), ("bn", JOINT)))  # fmt: skip
    assert evidence.plan_of({ours, bn, joint}) == "core:cifar10"
    assert evidence.plan_of({ours, Experiment("derpp", "bn", "cifar100", 2000, JOINT)}) == "core"
    assert evidence.plan_of({bn, Experiment("derpp", "gn", "cifar10", 500)}) == "table2:cifar10"


def test_both_readings_of_cifar100_are_compared_with_the_paper(tmp_path):
    selection = Selection("fixed", Runs(evidence.NARROW, str(tmp_path), measured=tmp_path / "none"), (0,))
    accuracies = {"cifar100": (21.55, 71.21), "cifar100-10": (22.55, 60.21)}  # published: 24.55, 61.21
    for data, (class_il, task_il) in accuracies.items():
        assert evidence.readings("table2", selection) is None
        finish(selection.runs.of(Experiment("er_ace", "bn", data, 2000), 0), class_il, task_il)
    assert evidence.readings("table2", selection) == pytest.approx((1, 10.0, -1.0))
    assert evidence.readings("table3", selection) == pytest.approx((1, -3.0, -2.0))


def test_numbers_as_text():
    assert evidence.difference(-1.26) == "-1.3"
    assert evidence.interval(Paired((1.0,))) == "–"
    assert evidence.interval(Paired((1.0, 3.0))) == "[-10.7, +14.7]"
