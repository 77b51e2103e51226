"""What --dry_run prints, without a file written."""

import re
import tomllib

import pytest

import datasets.image_cache
from tests.datasets.image_trees import pixels, save
from tests.scripts.records import finish, run_of

DIGITS = ["--dataset", "seq-digits", "--num_filters", "4"]


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (["--model", "derpp", "--norm", "adab2n"], "145 in 5 tasks"),
        (["--model", "joint"], "144 in 1 task"),
        (["--model", "er", "--scenario", "offline"], f"{50 * 46} in 5 tasks"),
        (["--model", "er", "--n_tasks", "2", "--batch_size", "100", "--n_epochs", "3"], "48 in 2 tasks"),
        (["--model", "sgd", "--debug_mode"], "15 in 5 tasks"),
        (["--model", "sgd", "--debug_mode", "--n_iters", "7"], "15 in 5 tasks"),
        (["--model", "sgd", "--debug_mode", "--n_iters", "2"], "10 in 5 tasks"),
        (["--model", "sgd", "--n_iters", "7"], "35 in 5 tasks"),
        (["--model", "sgd", "--drop_last"], "140 in 5 tasks"),
    ],
)
def test_dry_run_prints_the_cost_and_toml_and_writes_nothing(run_main, results, tmp_path, flags, steps):
    finished = run_main(*flags, *DIGITS, "--dry_run")
    assert (finished.code, finished.stderr) == (0, "")
    lines = finished.stdout.splitlines()
    assert {"lr = 0.01", "num_filters = 4", "seed = 0", '# validation = "none"', f"# steps: {steps}"} <= set(lines)
    assert re.search(rf"^# folder: {results}/runs/{flags[1]}-.* \(not finished\)$", finished.stdout, re.MULTILINE)
    assert not results.exists()
    assert tomllib.loads(finished.stdout)["model"] == flags[1]
    (tmp_path / "run.toml").write_text(finished.stdout)
    assert run_main("--config", str(tmp_path / "run.toml"), "--dry_run").stdout == finished.stdout


def test_dry_run_expects_the_time_of_recorded_runs(run_main, results, monkeypatch, tmp_path):
    """First of none, then of one kept with the code, then also of one in the results folder."""

    def expected():
        return re.search("^# expected time: (.*)$", run_main(*er, "--dry_run").stdout, flags=re.MULTILINE)[1]

    er, like_er = ["--model", "er", *DIGITS], {"model": "er", "num_filters": 4}
    monkeypatch.setattr("utils.run.expected_time.expected_time.__defaults__", (tmp_path / "kept/runs",))
    assert expected().startswith("unknown")
    kept, own = run_of(tmp_path / "kept", **like_er, norm="cn"), run_of(results, **like_er, norm="gn")
    finish(kept, 50.0, wall_seconds=145.0)  # a second for each of its steps
    finish(run_of(results, **like_er, n_epochs=2, batch_size=100), 50.0, wall_seconds=9e9)
    assert re.match("2 min, by 1 .* kept", expected())
    finish(own, 50.0, wall_seconds=3 * 145.0)
    assert re.match("5 min, by 2 .* 1 of them kept .* 1 thread", expected())


def test_dry_run_needs_no_data(run_main, tmp_path):
    words = ["--model", "er", "--dataset", "seq-cifar100", "--base_path", str(tmp_path / "none"), "--dry_run"]
    report = run_main(*words).stdout
    assert "steps: 5000 in 20 tasks" in report
    assert "# loading: 0.2 GB" in report  # 60,000 images of 32x32 pixels


def test_dry_run_reads_the_image_cache_and_writes_none(run_main, tmp_path, monkeypatch):
    for k, part in enumerate(("train/a", "train/b", "test/a", "test/b")):
        save(tmp_path / "images" / part / "0.png", pixels(k, side=8))
    where = ["--base_path", str(tmp_path / "images"), "--n_tasks", "2", "--image_size", "8", "--debug_mode"]
    words = ["--model", "sgd", "--dataset", "seq-folder", *where, "--backbone", "mlp", "--hidden", "4"]
    before = run_main(*words, "--dry_run").stdout
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["test", "train"]
    finished = run_main(*words)
    assert f"# folder: {finished.folder} (not finished)" in before
    monkeypatch.setattr(datasets.image_cache, "read_file", lambda path: pytest.fail("read an image"))
    assert f"# folder: {finished.folder} (finished)" in run_main(*words, "--dry_run").stdout
