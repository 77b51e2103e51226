"""The documentation fits the code: its commands parse, and its generated pages describe everything."""

import re
import shlex
import subprocess
import sys

import pytest
from conftest import runner

from scripts.reproduce import parser
from tests.readme import ROOT, TUTORIALS, examples
from utils.config.parser import parse
from utils.config.resolve import all_options
from utils.studies.study import KEYS

sys.path.insert(0, str(ROOT / "docs"))
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "generated" not in page.parts)
COMMANDS = sorted({
    (page.relative_to(ROOT).as_posix(), *command)
    for page in PAGES
    for command in re.findall(r"^    python (main.py|-m scripts.reproduce) (.*)$", page.read_text(), flags=re.MULTILINE)
    if not re.search(r"--plugins|--config|--model lwf", command[1])
})  # fmt: skip


@pytest.mark.parametrize(("page", "program", "words"), COMMANDS)
def test_command_of_a_page_parses(page, program, words):
    (parse if program == "main.py" else parser().parse_args)(shlex.split(words.partition(" >")[0], comments=True))


def test_page_of_flags_has_every_flag():
    from generated import flags_page

    flags = set(re.findall(r"^\| `--(\w+)` \|", "\n".join(flags_page()), flags=re.MULTILINE))
    assert flags == {option.name for *_, option in all_options()}


def test_tutorial_on_norms(tmp_path):
    ((name, text),) = [(name, text) for name, text in examples(TUTORIALS).items() if name.startswith("mine/")]
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(text)
    (line,) = re.findall(r"^    python main.py (--plugins .*)$", TUTORIALS, flags=re.MULTILINE)
    words = [sys.executable, str(ROOT / "main.py"), *shlex.split(line), "--debug_mode", "--num_threads", "1"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_pages_of_records_and_studies_have_every_field(tmp_path, monkeypatch, capsys):
    """And the tutorial's lines of Python read the record."""
    from generated import RECORD_FIELDS, STUDY_KEYS, record_fields

    ended = runner(tmp_path / "results")(
        *("--model", "er", "--norm", "bn", "--dataset", "seq-digits", "--backbone", "mlp", "--debug_mode"),
        *("--final_statistics", "--late_evaluations", "2", "--embedding_eval", "--eval_every", "2"),
    )
    assert set(record_fields(ended.record)) - set(RECORD_FIELDS) == set()
    assert set(STUDY_KEYS) == set(KEYS)
    monkeypatch.chdir(tmp_path)
    (lines,) = re.findall(r"```python\n(from utils.results import.*?)```", TUTORIALS, flags=re.DOTALL)
    exec(lines, {})
    faa = ended.record["results"]["class_il"]["metrics"]["faa"]
    assert float(capsys.readouterr().out.splitlines()[-1].split()[1]) == pytest.approx(faa)
