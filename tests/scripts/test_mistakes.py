"""What is wrong with a command is one line: exit code 2, a keyword, and nothing on standard output."""

import shlex

import pytest

from scripts import check_plugin, figures, reproduce, results, theory
from utils.run.expected_time import MEASURED

RECORDS = f"--records {MEASURED}"
KEPT = f"--results_path {MEASURED}"
MISTAKES = {
    check_plugin.main: {"": "--model", "--norm nope": "nope", "no_such_module": "no_such_module"},
    figures.main: {"fig9": "fig9", "run": "folder", "run nowhere": "nowhere"},
    reproduce.main: {
        "run tabel2": "did you mean table2",
        "run all --seeds 0,x": "--seeds",
        "run confirm --preset narrow --seeds 0": "docs/protocol.md",
        "run all --detach": "--launcher slurm",
        """run all --launcher slurm --sbatch_args '"'""": "--sbatch_args",
        "run all --launcher slurm --jobs_per_gpu 2": "--jobs_per_gpu",
        "run all --launcher ray --gpus 2": "--gpus",
        "report fig1 --output /dev/null/x": "/dev/null/x",
        "run all --preset cpu": "--base_path",
        "run all --workers 0": "--workers",
        "run all --also bmt": "unknown norm 'bmt'",
        "run all --gpus 7": "no GPU 7",
        "show": "'show'",
        "repeat": "--records",
        f"repeat er-bn {RECORDS}": "er-bn",
        f"repeat --count 0 {RECORDS}": "--count",
    },
    results.main: {
        f"--where 'seed =' {KEPT}": "--where",
        f"--sort=-class_il_fa {KEPT}": "class_il_faa",
        f"--columns model,nrm {KEPT}": "norm",
        "--results_path nowhere": "nowhere",
        f"--csv no/such/folder/runs.csv {KEPT}": "no/such/folder",
    },
    theory.main: {
        "": "command",
        "weights --tasks 5 --share 0.5": "--batches",
        "weights --tasks 5 --batches 1,2 --share 0.5": "--batches",
        "weights --tasks 5 --batches 5 --share 1/0": "--share",
        "weights --tasks 5 --batches 5 --share nan": "--share",
        "weights --tasks 5 --batches 5 --share seen --momentum replay-cma": "--share",
    },
}


@pytest.mark.parametrize(
    ("command", "words", "keyword"),
    [(command, *case) for command, cases in MISTAKES.items() for case in cases.items()],
    ids=lambda value: value if isinstance(value, str) else value.__module__,
)
def test_mistakes_are_one_line(command, words, keyword, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(shlex.split(words)) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert (printed.out, line.startswith("error: ")) == ("", True)
    assert keyword in line
