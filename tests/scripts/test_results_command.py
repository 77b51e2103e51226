"""The table of runs on the terminal, its filters and files."""

import csv
import io

import pytest

from scripts.results import main
from tests.scripts.records import finish, run_of


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Four finished runs and one that failed. Class-IL: er-bn 10 and 30, derpp-adab2n 20, sgd 5."""
    folder = tmp_path_factory.mktemp("made-up")
    finish(run_of(folder, model="er", norm="bn", seed=0), 10.0, 15.25)
    finish(run_of(folder, model="er", norm="bn", seed=1), 30.0, 35.0, date="2026-02-03T23:00:00+00:00")
    finish(run_of(folder, model="derpp", norm="adab2n", seed=0, kappa=0.5, lr=0.1), 20.0, 25.0)
    finish(run_of(folder, model="sgd", norm="bn", seed=2, debug_mode=True), 5.0, 6.0)
    finish(run_of(folder, model="gdumb", norm="bn"), 0.0, status="failed", results={}, reason="no power")
    return folder


@pytest.fixture
def cells(results, capsys):
    """Return a function of arguments that returns the cells of the table, line by line."""

    def table(*words) -> list[list[str]]:
        assert main([*words, "--results_path", str(results)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return [line.split() for line in out.splitlines()]

    return table


def test_overview(cells):
    lines = cells()
    assert lines[0] == ["run", "class_il_faa", "task_il_faa", "seed", "date"]
    assert [line[1:] for line in lines[1:-1]] == [
        ["20.00", "25.00", "0", "2026-01-01"],
        ["10.00", "15.25", "0", "2026-01-01"],
        ["30.00", "35.00", "1", "2026-02-03"],
        ["5.00", "6.00", "2", "2026-01-01"],
    ]
    assert lines[1][0].startswith("derpp-adab2n-seq-digits-online-m200-s0-")
    assert lines[-1] == ["4", "of", "4", "runs"]
    (failed,) = [line for line in cells("--failed") if line[0].startswith("gdumb")]
    assert failed[1:] == ["-", "-", "0", "2026-01-01", "failed"]


@pytest.mark.parametrize(
    ("query", "runs"),
    [
        ("norm == 'bn' and seed < 1", ["er 0 - 200"]),
        ("kappa < 1", ["derpp 0 0.5 200"]),  # an option that other runs lack
        ("date > '2026-01-31'", ["er 1 - 200"]),
        ("seed == 7", []),
    ],
)
def test_where(cells, query, runs):
    lines = cells("--where", query, "--columns", "model,seed,kappa,buffer_size")
    assert [" ".join(line) for line in lines[1:-1]] == runs
    assert lines[-1] == [str(len(runs)), "of", "4", "runs"]


def test_a_column_given_twice_is_shown_once(cells):
    assert cells("--columns", "seed,model,seed") == cells("--columns", "seed,model")


class ClosedPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


def test_reader_that_leaves_early_gets_no_complaint(results, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout", ClosedPipe())
    assert main(["--results_path", str(results)]) == 0
    assert capsys.readouterr().err == ""


def test_csv_has_the_chosen_runs_in_order_with_all_columns(cells, results, tmp_path):
    file = tmp_path / "runs.csv"
    cells("--where", "norm == 'bn'", "--sort=-class_il_faa", "--csv", str(file))
    rows = list(csv.DictReader(file.open()))
    assert [(row["model"], float(row["class_il_faa"])) for row in rows] == [("er", 30.0), ("er", 10.0), ("sgd", 5.0)]
    assert [row["buffer_size"] for row in rows] == ["200", "200", ""]
    assert rows[0]["date"] == "2026-02-03 23:00:00+00:00"
    assert rows[0]["folder"] == str(results / "runs" / rows[0]["run"])


@pytest.mark.parametrize("words", [[], ["--columns", "seed"]])
def test_names_that_differ_only_in_the_hash_are_explained(tmp_path, capsys, words):
    for norm, options in (("bn", {}), ("bn", {"lr": 0.5}), ("bn", {"optim_mom": 0.25, "seed": 1}), ("cn", {})):
        finish(run_of(tmp_path, norm=norm, **options), 10.0)
    assert main(["--results_path", str(tmp_path), "--sort", "lr", *words]) == 0
    head, *lines, _ = capsys.readouterr().out.splitlines()
    assert head.endswith("differs in")
    assert sorted(line.split(maxsplit=1 if words else 5)[-1] for line in lines) == ["-", "-", "lr 0.01", "lr 0.5"]
