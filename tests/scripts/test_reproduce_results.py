"""From records to tables and reports: differences, z, tests, what is missing, and how it is shown."""

import csv
import json
import math
import shutil
from dataclasses import replace
from io import StringIO

import pytest

from scripts.reproduce import main as reproduce
from tests.outcomes import change_record
from tests.scripts.records import finish, selection_of, two_tasks
from utils.run.identity import run_hash
from utils.studies import explorer, render, report_command
from utils.studies.claims import CLAIMS
from utils.studies.plans import PLANS, Cell, Experiment
from utils.studies.presets import NARROW, PAPER, SMOKE
from utils.studies.results import Result, Table, evaluate, signed_rank, tabulate, warnings
from utils.studies.selection import Selection


def finished_table4(folder, *, without: str = "", **changes) -> tuple[Selection, Table]:
    """Offline runs whose accuracies are known: BN 10, CN 20, AdaB2N 30, plus the seed; Task-IL twice that."""
    chosen = selection_of(folder, PAPER)
    levels = {"bn": 10.0, "cn": 20.0, "adab2n": 30.0}
    for experiment in {cell.experiment for cell in PLANS["table4"].cells(PAPER)}:
        for seed, run in enumerate(chosen.final(experiment)):
            if experiment.norm != without:
                level = levels[experiment.norm] + seed
                finish(run, level, 2 * level, **changes)
    return chosen, tabulate(PLANS["table4"], chosen)


OFFLINE = "Split Mini-ImageNet, M = 2000"


def cell(table: Table, row: str, *column: str) -> Result:
    return table.results[(OFFLINE, row), column]


def test_cell_beside_the_published_number(tmp_path):
    """Ours 10, 11, 12; published 10.85 ± 0.54: z by hand."""
    _, table = finished_table4(tmp_path)
    result = cell(table, "BN", "Class-IL", "ER-ACE")
    assert (result.mean, result.std, result.n) == (11.0, 1.0, 3)
    assert (result.paper, result.paper_std) == (10.85, 0.54)
    assert result.difference == pytest.approx(0.15)
    assert result.z == pytest.approx(0.15 / math.sqrt(0.54**2 / 3 + 1 / 3))
    assert cell(table, "BN", "Task-IL", "DER++").mean == 22.0


def test_z_needs_spread_on_both_sides():
    of = {"cell": None, "paper": 5.0}
    assert Result(values={0: 4.0, 1: 6.0}, **of).z is None
    assert Result(values={0: 4.0}, paper_std=1.0, **of).z is None
    assert Result(values={0: 4.0, 1: None, 2: 8.0}, paper_std=0.0, **of).z == pytest.approx(1 / math.sqrt(8 / 2))
    assert Result(values={0: None}, paper_std=1.0, **of).difference is None


def test_missing_stays_missing(tmp_path):
    _, table = finished_table4(tmp_path, without="cn")
    result = cell(table, "CN", "Class-IL", "LiDER")
    assert (result.mean, result.n, result.complete) == (None, 0, False)
    assert "missing (n = 0 of 3; paper 9.97 ± 0.36)" in render.markdown(table)
    assert f"{OFFLINE}: CN & -- & -- & --" in render.latex(table)
    assert explorer.html_table(table).count('<span class="missing">missing</span>') == 6


def test_running_time_has_flops_without_any_run(tmp_path):
    table = tabulate(PLANS["table6"], selection_of(tmp_path, PAPER))
    flops = table.texts["FLOPs/step of the paper's network, ours"]
    assert list(flops.values()) == ["49.20M", "49.18M", "86.09M", "49.32M"]
    assert flops == table.texts["FLOPs/step, published"]
    assert set(table.texts["Time, ratio to BN, ours"].values()) == {"missing"}


# --- significance -----------------------------------------------------------------------------------------------------


def test_published_means_give_the_known_p(tmp_path):
    """24 online pairs that all favour AdaB2N: the smallest p there is, 2 / 2^24 = 1.2e-7."""
    table = tabulate(PLANS["table10"], selection_of(tmp_path, PAPER))
    of_means = table.texts["p from the published means"]
    assert of_means["Online", "BN"] == of_means["Online", "CN"] == "1.2e-07 (n = 24: above in 24, below in 0)"
    assert of_means["Offline", "CN"] == "3.1e-02 (n = 6: above in 6, below in 0)"
    assert table.texts["p, published"]["Online", "BN"] == "8.0e-13"
    assert set(table.texts["p from our single seeds"].values()) == {"missing"}


def test_our_single_seeds_are_paired(tmp_path):
    """18 offline pairs, all in favour: 2 / 2^18."""
    texts = tabulate(PLANS["table10"], finished_table4(tmp_path)[0]).texts["p from our single seeds"]
    assert texts["Offline", "BN"] == texts["Both", "CN"] == "7.6e-06 (n = 18: above in 18, below in 0)"
    assert texts["Online", "BN"] == "missing"


def test_few_pairs_are_called_few():
    text, numbers = signed_rank([1.0, 2.0, 3.0, 0.0])
    assert "too few" in text
    assert numbers == {"p": 0.25, "n": 3, "wins": 3, "losses": 0, "equal": 1}
    assert signed_rank([0.0, 0.0]) == ("all 2 pairs equal", {})
    assert signed_rank([0.3 - 0.1, 0.2, -0.2, 0.1 + 0.1, 0.2, 0.2]) == signed_rank([0.2, 0.2, -0.2, 0.2, 0.2, 0.2])
    assert signed_rank([]) == ("missing", {})


def test_numbers_of_the_tests_are_numbers_in_the_csv(tmp_path):
    tables = [finished_table4(tmp_path)[1], tabulate(PLANS["table10"], selection_of(tmp_path, PAPER))]
    lines = list(csv.DictReader(StringIO(render.as_csv(tables))))
    [line] = [line for line in lines if (line["row"], line["column"]) == ("p from the published means", "Online / BN")]
    assert float(line["p"]) == pytest.approx(2 / 2**24)
    assert [float(line[name]) for name in ("n", "wins", "losses", "equal")] == [24, 24, 0, 0]


# --- what a report says -----------------------------------------------------------------------------------------------


def test_best_is_bold_and_far_away_is_flagged(tmp_path):
    _, table = finished_table4(tmp_path)
    text = render.markdown(table)
    assert "**31.00 ± 1.00** ⚠ (n = 3; paper 11.05 ± 0.10; Δ +19.95; z +34.4)" in text
    assert f"| {OFFLINE}: BN | 22.00 ± 2.00 ⚠ (n = 3; paper 36.36 ± 2.33; Δ -14.36; z -8.1)" in text
    assert "11.00 ± 1.00 (n = 3; paper 10.85 ± 0.54; Δ +0.15; z +0.2)" in text
    assert explorer.html_table(table).count("⚠") == text.count("⚠") > 0


@pytest.mark.parametrize(
    ("metric", "is_difference", "values", "best"),
    [
        ("faa", False, (1.0, 2.0), "b"),
        ("forgetting", False, (1.0, 2.0), "a"),
        ("bwt", False, (1.0, 2.0), "b"),
        ("faa", True, (1.0, 2.0), "b"),
        ("faa", True, (-1.0, -2.0), ""),  # losses
        ("forgetting", True, (1.0, 2.0), ""),
        ("forgetting", True, (1.0, -2.0), "b"),
    ],
)
def test_the_best_is_no_loss_and_its_direction_is_the_metrics_own(metric, is_difference, values, best):
    path, experiment = ("results", "domain_il", "metrics", metric), Experiment("er", "bn", "digits")
    baseline = experiment if is_difference else None
    results = {
        (("", row), ("x",)): Result(Cell("", row, ("x",), experiment, path, baseline=baseline), {0: value})
        for row, value in zip("ab", values, strict=True)
    }
    table = Table("t", "", SMOKE, results)
    assert [result.cell.row for result in results.values() if table.is_best(result)] == list(best)


def test_latex_has_the_papers_layout(tmp_path):
    _, table = finished_table4(tmp_path)
    lines = render.latex(table).splitlines()
    assert lines[0] == r"\begin{table*}"
    assert lines[4] == r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%"
    assert lines[5:9] == [
        r"\begin{tabular}{lcccccc}", r"\toprule", r" & \multicolumn{3}{c}{Task-IL} & \multicolumn{3}{c}{Class-IL} \\",
        r" & ER-ACE & DER++ & LiDER & ER-ACE & DER++ & LiDER \\",
    ]  # fmt: skip
    assert rf"{OFFLINE}: AdaB$^2$N & \textbf{{62.00{{\footnotesize \textpm 2.00}}}} & " in lines[-4]
    assert lines[-3:] == [r"\bottomrule", r"\end{tabular}}", r"\end{table*}"]


def test_csv_has_every_cell(tmp_path):
    _, table = finished_table4(tmp_path, without="cn")
    lines = list(csv.DictReader(StringIO(render.as_csv([table]))))
    [ours] = [line for line in lines if line["row"] == "AdaB²N" and line["column"] == "Class-IL / LiDER"]
    assert [ours[name] for name in ("method", "norm", "dataset", "memory", "setting", "metric")] == [
        "LiDER", "AdaB²N", "Split Mini-ImageNet", "2000", "Class-IL", "faa",
    ]  # fmt: skip
    assert ours["values"] == "30.0 31.0 32.0"
    assert (ours["ours"], ours["n"], ours["paper"], ours["paper_std"]) == ("31.0", "3", "10.96", "0.67")
    [missing] = [line for line in lines if line["row"] == "CN" and line["column"] == "Class-IL / LiDER"]
    assert (missing["ours"], missing["n"], missing["difference"], missing["z"]) == ("", "0", "", "")


def test_published_numbers_stand_beside_the_papers_data_only(tmp_path):
    """In miniature, the digits stand for the paper's data sets."""
    for id in ("table2", "table4", "table6", "table10"):
        table = tabulate(PLANS[id], selection_of(tmp_path))
        assert all(result.paper is None for result in table.results.values())
        assert not any("published" in row for row in table.texts if not row.startswith("FLOPs"))
    assert any(result.paper for result in tabulate(PLANS["table2"], selection_of(tmp_path, NARROW)).results.values())


def test_other_presets_show_no_difference_to_the_paper(tmp_path):
    _, table = finished_table4(tmp_path)
    table.preset = NARROW
    text = render.markdown(table)
    assert "22.00 ± 2.00 (n = 3; paper 36.36 ± 2.33)" in text
    assert "Δ" not in text


def test_records_of_another_kind_are_warned_of(tmp_path):
    chosen, table = finished_table4(tmp_path)
    assert warnings([table], chosen.runs) == warnings([tabulate(PLANS["table10"], chosen)], chosen.runs) == []
    conditions = [{"num_threads": n, "device": "cpu", "tf32": n == 1} for n in (1, 2)]
    changes = {"conditions": [*conditions, {"torch": "2"}], "code_changes": [{"step": 1, "files": []}]}
    chosen, table = finished_table4(tmp_path / "other", **changes)
    assert len(warnings([tabulate(PLANS["table10"], chosen)], chosen.runs)) >= 2
    code, threads, other = warnings([table], chosen.runs)  # what a record lacks is unknown
    assert f"{len(table.records)} records" in code
    assert "thread counts (1, 2)" in threads
    assert "tf32" in other


@pytest.mark.parametrize("command", ["claims", "report"])
def test_claims_and_reports_warn_alike(tmp_path, capsys, monkeypatch, command):
    """Of a seed that one arm lacks, of different threads, of changed code, and of records on other data."""
    monkeypatch.setattr(report_command, "draw_figures", lambda *arguments: {})
    comparison = dict(CLAIMS["cn-bn-class"].cells(SMOKE))["DER++, Digits, 5 tasks, M = 50"]
    cn, bn = (selection_of(tmp_path, seeds=(0, 1)).final(experiment) for experiment in comparison.experiments)
    for run, threads in ((cn[0], 1), (bn[0], 2), (cn[1], 1)):
        finish(run, 50.0, conditions=[{"num_threads": threads, "device": "cpu"}])
    change_record(cn[1].folder, sources={"models/method.py": "as it was"})
    identity = json.loads((bn[0].folder / "record.json").read_text())["identity"] | {"data": "of another folder"}
    name = f"er-{run_hash(identity)}"
    finish(replace(bn[0], name=name, folder=bn[0].folder.with_name(name)), 50.0, identity=identity)
    assert reproduce([command, "--preset", "smoke", "--seeds", "0,1", "--results_path", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    for text in ("seed 1 of DER++, Digits", "thread counts (1, 2)", "of another folder", "1 run of code"):
        assert len([line for line in lines if text in line]) == 1, text


def test_a_kept_record_with_other_results_is_named(tmp_path):
    chosen, table = finished_table4(tmp_path)
    name, other = sorted(table.records)[:2]
    for run in (name, other):
        shutil.copytree(tmp_path / "runs" / run, tmp_path / "kept" / run)
    change_record(tmp_path / "kept" / name, results={"class_il": two_tasks(99.0)})
    more = {name: part | {"measured_later": [1.0]} for name, part in table.records[other]["results"].items()}
    change_record(tmp_path / "runs" / other, results=more)  # no other result
    (line,) = warnings([table], replace(chosen.runs, measured=tmp_path / "kept"))
    assert (line.startswith("1 run "), name in line) == (True, True)
    assert str(tmp_path / "kept") in line


def test_different_contents_of_a_data_set_are_named(tmp_path):
    chosen, table = finished_table4(tmp_path)
    identity = next(iter(table.records.values()))["identity"]
    identity["data"] = "of another folder"
    line, *_ = warnings([table], chosen.runs)
    assert "of another folder" in line


def test_a_metric_that_runs_lack_is_missing(tmp_path):
    chosen = selection_of(tmp_path)
    cell = Cell("", "a", ("x",), Experiment("er", "bn", "cifar10", 50), ("results", "class_il", "metrics", "ncm"))
    finish(chosen.final(cell.experiment)[0], 50.0)
    for metric in (cell.metric, ("results", "domain_il", "metrics", "faa")):
        result = evaluate(replace(cell, metric=metric), chosen)
        assert (result.mean, result.n) == (None, 0)
