"""The guide's examples of plug-ins run as they stand."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.readme import ADDED, GUIDE, ROOT, commands, examples
from utils.config.registry import MODELS, NORMS

EXAMPLES = ["--norm rms", "--model lwf", "--dataset seq-stripes", "--dataset rot-digits", "--backbone convnet"]
EXAMPLES += ["--buffer_mode hard_samples", "--model er_ace --norm adab2n", "--probe grad_norm"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a user stands: beside a folder with the guide's files."""
    here = tmp_path_factory.mktemp("here")
    files = examples(GUIDE)
    assert len(files) == len(EXAMPLES)
    (here / "mine").mkdir()
    for name, text in files.items():
        (here / name).write_text(text)
    return here


def test_readme_is_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200
    links = re.findall(r"\]\(([^)#:]+)[^)]*\)|(?:src|srcset)=\"(.+?)\"", text)
    paths = {link or image for link, image in links}
    assert {"docs/published.png", "docs/published-dark.png"} < paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_of_the_guide_runs(folder, example):
    (line,) = re.findall(rf"^    python main.py (--plugins mine .*{example}\b.*)$", GUIDE, flags=re.MULTILINE)
    words = [*shlex.split(line, comments=True), "--num_threads", "1", "--results_path", "out"]
    words += [] if "stripes" in example else ["--debug_mode"]
    done = subprocess.run([sys.executable, str(ROOT / "main.py"), *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "stripes" in example:
        assert float(re.search(r"\(FAA\)\s+([\d.]+)", done.stdout)[1]) > 90


def test_a_plugin_norm_of_the_guide_reaches_a_sweep(folder):
    (line,) = [line.split("#")[0] for line in GUIDE.splitlines() if "--plugins mine --also rms" in line]
    words = [sys.executable, *shlex.split(line)[1:], "--dry-run", "--results_path", "out"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [row for row in done.stdout.splitlines() if "--norm rms" in row]
    assert rows
    assert all(f"--plugins {folder / 'mine'}" in row for row in rows)


def test_every_switch_of_the_code_is_in_the_docs():
    from utils.config.parser import switches

    section = (ROOT / "docs/fidelity.md").read_text()
    for flag, official, paper, *_ in switches():
        row = next(line for line in section.splitlines() if line.startswith(f"| `{flag}`"))
        assert official in row.split("|")[2]
        assert paper in row.split("|")[3]


@pytest.mark.parametrize(("page", "registry"), [("flags.md", MODELS), ("flags.md", NORMS), ("from_mammoth.md", MODELS)])
def test_tables_name_every_method_and_norm(page, registry):
    """Those of mammoth's page say what is different there."""
    rows = "".join(line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("| `"))
    shipped = [name for name, entry in registry.entries().items() if entry.module.startswith(registry.package)]
    assert [name for name in shipped if f"`{name}`" not in rows] == []


def test_results_as_data(tmp_path, monkeypatch, capsys):
    """The three lines of Python and the commands below them, beside a run."""
    from conftest import runner

    from scripts.results import main

    ended = runner(tmp_path / "results")(
        *("--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--debug_mode")
    )
    monkeypatch.chdir(tmp_path)
    (lines,) = re.findall(r"```python\n(from utils.results import load, mean_table\n.*?)```", GUIDE, flags=re.DOTALL)
    exec(lines, {})
    faa = ended.record["results"]["class_il"]["metrics"]["faa"]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["norm", "adab2n"]
    assert float(printed[-1].split()[-1]) == pytest.approx(faa)
    commands = [line for line in GUIDE.splitlines() if line.startswith("    python -m scripts.results")]
    assert len(commands) == 3
    for command in commands:
        assert main(shlex.split(command, comments=True)[3:]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 run"
    assert (tmp_path / "runs.csv").read_text().startswith("model,norm,seed,class_il_bwt\ner,adab2n,0,")


def test_the_page_on_mammoth_names_flags_that_there_are():
    from utils.config.parser import build_parser

    page = (ROOT / "docs/from_mammoth.md").read_text()
    known = set(build_parser()._option_string_actions)
    same = page.split("## Before")[0]
    rows = page.split("## Flags")[1].split("## Files")[0].splitlines()
    here = [row.split("|")[2] for row in rows if row.count("|") > 3]
    named = set(re.findall(r"--\w+", same + "".join(here)))
    assert len(named) > 30
    assert named - known == set()


def test_commands_of_the_guide_are_found_in_its_order():
    lines = commands(GUIDE)
    assert lines[0] == "make run"
    for start in ADDED:
        assert any(line.startswith(start) for line in lines), f"no command begins with {start}"
    text = "    python main.py --seeds 0-4  # five\n\n```python\n    make run\n```\n"
    assert commands(text) == ["python main.py --seeds 0-4"]
