"""`pip install -e .`: the command `adab2n`, from wherever one stands."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("backbone", "datasets", "models", "scripts", "utils")


@pytest.fixture
def installed(tmp_path):
    """The programs of an environment that has a copy of the code, and the packages of this one."""
    pytest.importorskip("setuptools")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / "code" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("main.py", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / file, tmp_path / "code")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (site,) = tmp_path.glob("env/lib/python*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_paths()["purelib"])
    words = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-e"]
    programs = tmp_path / "env/bin"
    subprocess.run([programs / "python", *words, tmp_path / "code"], check=True, capture_output=True, timeout=300)
    return programs


def test_installed_command_runs_anywhere(installed, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    words = ["--model", "er", "--dataset", "seq-digits", "--backbone", "mlp", "--debug_mode", "--num_threads", "1"]
    done = subprocess.run([installed / "adab2n", *words], cwd=place, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (place / done.stdout.splitlines()[-1].removeprefix("record: ")).is_file()
    shown = subprocess.run([installed / "adab2n", "--help"], cwd=place, capture_output=True, text=True, timeout=300)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("usage: adab2n --model NAME --dataset NAME")
    metadata = next(installed.parent.glob("lib/python*/site-packages/*.dist-info/METADATA")).read_text()
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        assert line.startswith("#") or f"Requires-Dist: {line}\n" in metadata
