"""The table of runs on the terminal, what chooses and orders it, the files that it writes, and the notebook."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from conftest import runner

from scripts.results import main, short_name
from tests.scripts.records import finish, run_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Four finished runs and one that failed. Class-IL: er-bn 10 and 30, derpp-adab2n 20, sgd 5."""
    folder = tmp_path_factory.mktemp("made-up")
    finish(run_of(folder, model="er", norm="bn", seed=0), 10.0, 15.25)
    finish(run_of(folder, model="er", norm="bn", seed=1), 30.0, 35.0, date="2026-02-03T23:00:00+00:00")
    finish(run_of(folder, model="derpp", norm="adab2n", seed=0, kappa=0.5, lr=0.1), 20.0, 25.0)
    finish(run_of(folder, model="sgd", norm="bn", seed=2, debug_mode=True), 5.0, 6.0)
    lost = run_of(folder, model="gdumb", norm="bn")
    finish(lost, 0.0, status="failed", results={}, reason="no power")
    return folder


@pytest.fixture
def shown(results, monkeypatch, capsys):
    """`shown(*words)`: the lines of a command that went well."""
    monkeypatch.setenv("COLUMNS", "80")

    def of(*words) -> list[str]:
        assert main([*words, "--results_path", str(results)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out.splitlines()

    return of


@pytest.fixture
def models(shown):
    """`models(*words)`: model and seed of the runs that it shows, in its order."""
    return lambda *words: [" ".join(line.split()) for line in shown(*words, "--columns", "model,seed")[1:-1]]


@pytest.fixture
def refused(results, capsys):
    """`refused(*words)`: the one line of a command that is not taken."""

    def of(*words) -> str:
        with pytest.raises(SystemExit, match="2"):
            sys.exit(main([*words, "--results_path", str(results)]))
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        return line.removeprefix("error: ")

    return of


# --- the table --------------------------------------------------------------------------------------------------------


def test_overview(shown):
    assert [re.sub(r"-[0-9a-f]{4} ", "-hash ", line) for line in shown()] == [
        "run; FAA in %                         Class-IL  Task-IL  seed        date",
        "derpp-adab2n-digits-online-m200-hash     20.00    25.00     0  2026-01-01",
        "er-bn-digits-online-m200-hash            10.00    15.25     0  2026-01-01",
        "er-bn-digits-online-m200-hash            30.00    35.00     1  2026-02-03",
        "sgd-bn-digits-online-debug-hash           5.00     6.00     2  2026-01-01",
        "4 runs",
    ]


def test_overview_with_failed_runs(shown):
    lines = shown("--failed")
    assert lines[0].split()[-1] == "status"
    (lost,) = [line.split() for line in lines if line.startswith("gdumb")]
    assert lost[1:] == ["-", "-", "0", "2026-01-01", "failed"]
    assert lines[-1] == "5 runs"


@pytest.mark.parametrize("columns", [80, 100])
def test_overview_fits_the_terminal(results, shown, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    long = run_of(results, model="er_ace_lider", norm="adab2n", dataset="seq-cifar100", buffer_size=2000)
    finish(long, 99.0)
    try:
        lines = shown()
    finally:
        (long.folder / "record.json").unlink()
    assert max(map(len, lines)) == (80 if columns == 80 else 83)
    whole = "er_ace_lider-adab2n-cifar100-online-m2000"
    begins = "er_ace_lider-adab2..ar100-online-m2000" if columns == 80 else whole
    assert [line for line in lines if line.startswith(f"{begins}-{long.name[-12:-8]}  ")]


def test_short_name_is_as_long_as_there_is_room():
    name = "derpp-adab2n-seq-cifar100-online-m2000-s12-29c79e8ae5e6"
    assert short_name(name, 39) == "derpp-adab2n-cifar100-online-m2000-29c7"
    for room in range(20, 39):
        short = short_name(name, room)
        assert len(short) == room
        assert short.startswith("derpp-")
        assert short.endswith("m2000-29c7")
        assert ".." in short


def test_columns_are_shown_as_they_are_named(shown, results):
    name = next((results / "runs").glob("derpp*")).name
    rows = [
        ["run", "kappa", "buffer_size", "lr", "debug_mode", "class_il_faa", "date", "validation"],
        [name, "0.5", "200", "0.1", "False", "20.00", "2026-01-01", "-"],
    ]
    lines = shown("--columns", ",".join([*rows[0], "lr"]), "--where", "model=derpp")
    assert [line.split() for line in lines] == [*rows, ["1", "of", "4", "runs"]]
    sgd = shown("--columns", "model,kappa,buffer_size", "--where", "model=sgd")
    assert sgd[1].split() == ["sgd", "-", "-"]


def test_one_run_is_called_one(tmp_path, capsys):
    finish(run_of(tmp_path, model="er", norm="bn"), 1.0)
    assert main(["--results_path", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 run"


# --- which, and in which order ----------------------------------------------------------------------------------------

ALL = {"derpp 0", "er 0", "er 1", "sgd 2"}


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        (["norm=adab2n"], {"derpp 0"}),
        (["norm=bn", "seed==0"], {"er 0"}),
        (["norm=bn", "norm!=bn"], set()),
        (["model!=er"], {"derpp 0", "sgd 2"}),
        (["seed>0"], {"er 1", "sgd 2"}),
        (["seed>=1", "seed<=1"], {"er 1"}),
        (["class_il_faa<20"], {"er 0", "sgd 2"}),
        (["class_il_faa <= 20"], {"derpp 0", "er 0", "sgd 2"}),
        (["kappa=0.50"], {"derpp 0"}),
        (["kappa!=0.5"], ALL - {"derpp 0"}),  # those that have none too
        (["kappa<1"], {"derpp 0"}),
        (["kappa="], ALL - {"derpp 0"}),
        (["buffer_size!="], ALL - {"sgd 2"}),
        (["buffer_size=200"], ALL - {"sgd 2"}),
        (["buffer_size!=200"], {"sgd 2"}),
        (["lr_milestones="], ALL),  # of no words
        (["debug_mode=true"], {"sgd 2"}),
        (["debug_mode!=True"], ALL - {"sgd 2"}),
        (["date=2026-02-03"], {"er 1"}),
        (["date<=2026-01-01"], ALL - {"er 1"}),
        (["notes=mine"], set()),  # that no run has
        (["notes!=mine"], ALL),
        (["validation>0.05"], set()),
    ],
)
def test_where(models, conditions, found):
    shown = models(*(word for condition in conditions for word in ("--where", condition)))
    assert set(shown) == found
    assert len(shown) == len(found)


def test_where_says_how_many_of_how_many(shown):
    assert shown("--where", "seed=0")[-1] == "2 of 4 runs"
    assert shown("--where", "seed=7")[-1] == "0 of 4 runs"


def test_sort(models):
    assert models("--sort", "class_il_faa") == ["sgd 2", "er 0", "derpp 0", "er 1"]
    assert models("--sort", "-class_il_faa", "--where", "seed<2") == ["er 1", "derpp 0", "er 0"]
    assert models("--sort=-seed")[:2] == ["sgd 2", "er 1"]
    assert models("--sort", "-kappa")[0] == models("--sort", "kappa")[0] == "derpp 0"  # what is missing comes last
    assert models("--sort", "date")[-1] == "er 1"
    assert models() == ["derpp 0", "er 0", "er 1", "sgd 2"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--where", "sed=0"], "unknown column 'sed'; did you mean seed?"),
        (["--sort", "-class_il_fa"], "unknown column 'class_il_fa'; did you mean class_il_faa?"),
        (["--columns", "model,nrm"], "unknown column 'nrm'; did you mean norm"),
        (
            ["--where", "seed"],
            "--where seed: give NAME=VALUE, or one of != < > <= >= for =; those with < and > in quotes",
        ),
        (["--where", "lr<fast"], "--where lr<fast: lr is a number"),
        (["--where", "lr<"], "--where lr<: lr is a number"),
        (["--where", "norm>bn"], "--where norm>bn: norm is text, which is compared with = or !="),
        (["--where", "debug_mode=maybe"], "--where debug_mode=maybe: debug_mode is true or false"),
        (["--where", "debug_mode>false"], "--where debug_mode>false: debug_mode is true or false"),
        (["--where", "date>January"], "--where date>January: date is a day such as 2026-01-31"),
    ],
)
def test_bad_words_are_refused(refused, words, line):
    said = refused(*words)
    assert said.startswith(line)
    assert ("Known: run, status" in said) == said.startswith("unknown")


def test_folder_without_runs_is_refused(tmp_path, capsys):
    assert main(["--results_path", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} has no runs")


def test_flags_are_refused_in_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--sort"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("; see python -m scripts.results --help")


# --- files ------------------------------------------------------------------------------------------------------------


def test_csv_has_what_was_chosen_with_all_columns(shown, results, tmp_path):
    file = tmp_path / "runs.csv"
    assert shown("--where", "norm=bn", "--sort", "-class_il_faa", "--csv", str(file))[-1] == "3 of 4 runs"
    rows = list(csv.DictReader(file.open()))
    assert [(row["model"], float(row["class_il_faa"])) for row in rows] == [("er", 30.0), ("er", 10.0), ("sgd", 5.0)]
    assert [row["buffer_size"] for row in rows] == ["200", "200", ""]
    assert rows[0]["date"] == "2026-02-03 23:00:00+00:00"
    assert rows[0]["folder"] == str(results / "runs" / rows[0]["run"])
    shown("--columns", "seed,model", "--csv", str(file))
    assert file.read_text().splitlines()[:2] == ["seed,model", "0,derpp"]


def test_place_that_cannot_be_written_is_told(refused, tmp_path):
    file = tmp_path / "none" / "runs.csv"
    assert refused("--csv", str(file)) == f"cannot write {file}: No such file or directory; give --csv another place"


def test_parquet_where_pandas_can_write_it(shown, refused, tmp_path, monkeypatch):
    file = tmp_path / "runs.parquet"
    monkeypatch.setattr(pd.DataFrame, "to_parquet", lambda frame, index: f"{index} {list(frame)}".encode())
    shown("--columns", "seed,model", "--parquet", str(file))
    assert file.read_text() == "False ['seed', 'model']"

    def without_pyarrow(frame, index):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", without_pyarrow)
    assert refused("--parquet", str(file)) == "--parquet needs pyarrow: pip install pyarrow, or take --csv"


# --- the notebook -----------------------------------------------------------------------------------------------------

NOTEBOOK = json.loads((ROOT / "scripts" / "explore.ipynb").read_text())
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
EXECUTE = """
import json, sys
names = {}
for cell in json.loads(sys.stdin.read()):
    exec(cell, names)
print(json.dumps({"faa": names["faa"]["mean"].values.tolist(), "count": names["faa"]["count"].values.tolist(),
                  "losses": names["curve"]["loss"].tolist(), "matrix": names["matrix"].loc[4].tolist()}))
"""


def test_notebook_is_one_of_format_4_without_outputs():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in NOTEBOOK["cells"]:
        assert set(cell) - {"outputs", "execution_count"} == {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_notebook_runs_on_real_runs(tmp_path):
    run = runner(tmp_path / "results")
    words = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4", "--debug_mode", "--model", "er"]
    ended = [run(*words, "--seed", seed) for seed in ("0", "1")]
    (tmp_path / "scripts").mkdir()  # the notebook's folder is where its code runs
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE],
        input=json.dumps(CODE),
        cwd=tmp_path / "scripts",
        env=os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    scores = [each.record["results"]["class_il"]["metrics"]["faa"] for each in ended]
    best = ended[scores.index(max(scores))]
    events = [json.loads(line) for line in (best.folder / "metrics.jsonl").read_text().splitlines()]
    assert found["faa"] == [[pytest.approx(sum(scores) / 2)]]
    assert found["count"] == [[2]]
    assert found["losses"] == [event["loss"] for event in events if event["event"] == "log"]
    assert found["matrix"] == best.record["results"]["class_il"]["matrix"][4]
