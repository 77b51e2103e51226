"""The README's examples of a new norm, method and data set run as they stand."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def extended_tree(tmp_path_factory):
    """A copy of the code with the README's files added."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in ("backbone", "models", "datasets", "utils"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "main.py", tree)
    files = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", README, flags=re.DOTALL)
    for name, text in files:
        assert not (tree / name).exists()
        (tree / name).write_text(text)
    assert len(files) == 3
    return tree


@pytest.mark.parametrize("name", ["--norm rms", "--model der", "--dataset seq-stripes"])
def test_example_of_the_readme_runs(extended_tree, name):
    (command,) = [
        line.strip()
        for line in README.splitlines()
        if line.startswith("    python main.py") and f"{name} " in f"{line} "
    ]
    small = [] if "stripes" in name else ["--debug_mode"]
    words = [sys.executable, *shlex.split(command)[1:], "--num_threads", "1", "--results_path", "out", *small]
    done = subprocess.run(words, cwd=extended_tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = done.stdout.splitlines()[-1].removeprefix("record: ")
    assert (extended_tree / record).is_file()
    if "stripes" in name:
        faa = re.search(r"\(FAA\)\s+([\d.]+)", done.stdout)
        assert float(faa[1]) > 90


def test_every_switch_of_the_code_is_in_the_readme():
    from utils.config.arguments import switches

    section = README.split("## Where the paper")[1].split("## Find your way")[0]
    for _, flag, official, paper, _ in switches():
        row = next(line for line in section.splitlines() if line.startswith(f"| `{flag}`"))
        assert str(official) in row.split("|")[2]
        assert str(paper) in row.split("|")[3]
