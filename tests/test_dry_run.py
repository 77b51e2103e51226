"""What --dry_run tells, without a file written."""

import re

import pytest

DIGITS = ["--dataset", "seq-digits", "--num_filters", "4"]
TINY = [*DIGITS, "--debug_mode"]


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (["--model", "derpp", "--norm", "adab2n"], "145 in 5 tasks"),
        (["--model", "joint"], "144 in 1 task"),
        (["--model", "er", "--scenario", "offline"], f"{50 * 46} in 5 tasks"),
        (["--model", "er", "--n_tasks", "2", "--batch_size", "100", "--n_epochs", "3"], "48 in 2 tasks"),
        (["--model", "sgd", "--debug_mode"], "15 in 5 tasks"),
    ],
)
def test_dry_run_tells_the_cost_and_writes_nothing(run_main, results, flags, steps):
    finished = run_main(*flags, *DIGITS, "--dry_run")
    assert finished.code == 0
    assert finished.stderr == ""
    lines = finished.stdout.splitlines()
    assert {"lr = 0.01", "num_filters = 4", "seed = 0", '# validation = "none"'} <= set(lines)
    assert f"# steps: {steps}" in lines
    (folder,) = [line for line in lines if line.startswith("# folder: ")]
    assert folder.startswith(f"# folder: {results}/runs/{flags[1]}-")
    assert folder.endswith(" (not finished)")
    memory = re.search(r"# memory: about \d+ MB \(data ([\d.]+), buffer ([\d.]+), .*\)", finished.stdout)
    assert float(memory[1]) == pytest.approx(1797 * 256 / 1e6, abs=0.05)
    assert not results.exists()


def test_dry_run_needs_no_data_and_knows_a_finished_run(run_main, results, tmp_path):
    finished = run_main(
        "--model", "er", "--dataset", "seq-cifar100", "--base_path", str(tmp_path / "none"), "--dry_run"
    )
    assert finished.code == 0
    assert "steps: 5000 in 20 tasks" in finished.stdout
    run_main("--model", "sgd", *TINY)
    before = sorted(results.rglob("*"))
    assert "(finished)" in run_main("--model", "sgd", *TINY, "--dry_run").stdout
    assert sorted(results.rglob("*")) == before
