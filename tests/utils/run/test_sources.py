"""Which code made a number: what belongs to a run, what a change of it is, and what a command does about one."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import sklearn.datasets  # noqa: F401 (once here, not in every fork)
import torch._dynamo  # noqa: F401
from conftest import ANSWERED, Finished, call, goes_on

from utils.config.arguments import resolve
from utils.run import sources
from utils.run.sources import changed_sources, shortened, sources_of

ROOT = Path(__file__).resolve().parents[3]


def closure(**selected) -> set[str]:
    return set(sources_of(resolve({"dataset": "seq-digits", "backbone": "mlp"} | selected)))


# --- what belongs to a run --------------------------------------------------------------------------------------------


def test_files_of_a_run_are_those_that_its_numbers_go_through():
    found = closure(model="er", norm="bn")
    chosen = {name for name in found if not name.startswith("utils/") and not name.endswith("__init__.py")}
    assert chosen == {
        "backbone/mlp.py", "backbone/network.py", "backbone/norms/batch_norm.py", "backbone/norms/group_norm.py",
        "backbone/norms/shared.py", "datasets/dataset.py", "datasets/seq_digits.py", "models/compiled_step.py",
        "models/er.py", "models/method.py",
    }  # fmt: skip
    assert {
        "backbone/norms/__init__.py",
        "utils/run/training.py",
        "utils/run/build.py",
        "utils/data/buffer.py",
    } <= found
    watching = {f"utils/run/{name}.py" for name in ("observers", "records", "folder", "checkpoints", "sources")}
    assert not found & (
        watching | {"utils/tables.py", "utils/config/arguments.py", "utils/config/parser.py", "main.py"}
    )


def test_another_choice_is_another_set_of_files():
    plain, ours = closure(model="er", norm="bn"), closure(model="derpp", norm="adab2n", backbone="resnet18")
    assert {"models/derpp.py", "backbone/norms/adab2n.py", "backbone/resnet18.py"} <= ours - plain
    assert {"models/er.py", "backbone/norms/batch_norm.py", "backbone/mlp.py"} == plain - ours
    assert "backbone/norms/kernels/cpu_passes.c" in ours - plain


# --- what a change is -------------------------------------------------------------------------------------------------

BEFORE = '''"""A module."""

import math


class Halved:
    """Half of everything."""

    def of(self, value, times=1):
        """Of one value."""
        return math.fabs(value) / 2 * times
'''
C_BEFORE = "/* Sums. */\nfloat half(float x) {\n    return x / 2; // exact\n}\n"
ALIKE = [
    ("A module.", "Another text\n\nin several lines."),
    ('    """Half of everything."""\n\n', ""),
    ('"""Of one value."""', '"""Of one."""  # and a remark'),
    ("import math\n", "# a remark\nimport math\n\n\n\n"),
    (
        "math.fabs(value) / 2 * times",
        "(\n            math.fabs(value)\n            / 2\n            * times\n        )",
    ),
]
OTHER = [
    ("/ 2", "/ 3"),
    ("/ 2", "/ 2.0"),
    ("/ 2", "// 2"),
    ("times=1", "times=True"),
    ("times=1", "times='1'"),
    ("times=1", "*, times=1"),
    ("math.fabs(value)", "abs(value)"),
    ("def of", "@property\n    def of"),
    ("return", "value += 'text'\n        return"),
    ("import math", "import math, os"),
]


def digest(folder, name, text):
    path = folder / name
    path.write_text(text)
    for cached in (sources._digest, sources._tree):
        cached.cache_clear()
    return sources._digest(path)


@pytest.mark.parametrize(("old", "new"), ALIKE)
def test_remarks_and_layout_are_no_change(tmp_path, old, new):
    assert old in BEFORE
    assert digest(tmp_path, "a.py", BEFORE) == digest(tmp_path, "a.py", BEFORE.replace(old, new))


@pytest.mark.parametrize(("old", "new"), OTHER)
def test_whatever_else_differs_is_one(tmp_path, old, new):
    changed = BEFORE.replace(old, new)
    compile(changed, "a.py", "exec")
    assert digest(tmp_path, "a.py", BEFORE) != digest(tmp_path, "a.py", changed)


def test_c_sources_are_compared_alike(tmp_path):
    for old, new in (("Sums.", "It\nhalves."), (" // exact", ""), ("    return", "\treturn"), ("{\n", "{ /* x */\n\n")):
        assert digest(tmp_path, "a.c", C_BEFORE) == digest(tmp_path, "a.c", C_BEFORE.replace(old, new))
    for old, new in (("x / 2", "x / 3"), ("float x", "double x"), ("return", "// return")):
        assert digest(tmp_path, "a.c", C_BEFORE) != digest(tmp_path, "a.c", C_BEFORE.replace(old, new))


def test_file_that_is_no_longer_python_has_changed(tmp_path):
    broken = [digest(tmp_path, "a.py", text) for text in ("x = (", "x = ((", "\0")]
    assert len({digest(tmp_path, "a.py", BEFORE), *broken}) == 4


def test_changes_are_told_with_a_word_for_new_and_gone():
    before = {"a.py": "1", "b.py": "1", "c.py": "1"}
    assert changed_sources(before, before) == []
    assert changed_sources(before, {"a.py": "1", "b.py": "2", "d.py": "1"}) == ["b.py", "c.py (gone)", "d.py (new)"]
    assert shortened(["a", "b", "c", "d"]) == "a, b, c, d"
    assert shortened(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"


# --- files that are edited while processes run ------------------------------------------------------------------------


@pytest.fixture
def no_caches():
    """What was read of files elsewhere is forgotten, before and after."""

    def forget():
        for cached in (sources._closure, sources._digest, sources._tree):
            cached.cache_clear()

    forget()
    yield forget
    forget()


def copied_tree(folder, *more):
    for name in (*sources.PACKAGES, *more):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def edit(path):
    path.write_text(path.read_text() + "\nCHANGED = 1\n")


def test_what_was_read_once_is_what_this_process_says(tmp_path, monkeypatch, no_caches):
    monkeypatch.setattr(sources, "REPOSITORY", copied_tree(tmp_path))
    config = resolve({"model": "er", "dataset": "seq-digits", "backbone": "mlp"})
    sources.read_now()
    edit(tmp_path / "models/er.py")
    at_start = sources_of(config)
    no_caches()
    assert changed_sources(at_start, sources_of(config)) == ["models/er.py"]


SWEEP = """
from pathlib import Path
from scripts.reproduce.worker import Worker

if __name__ == "__main__":
    worker, path = Worker(), Path("models/sgd.py")
    run = ["--model", "sgd", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4", "--debug_mode"]
    for name, words in (("first", ["--list"]), ("second", [*run, "--num_threads", "1"])):
        worker.start(name, words, Path(f"{name}.log"), {})
        while not (ended := worker.finished(1.0)):
            pass
        assert ended == [(name, 0)], Path(f"{name}.log").read_text()
        path.write_text(path.read_text() + "CHANGED = 1")
"""


def test_runs_of_a_sweep_have_and_name_the_code_that_it_was_started_with(tmp_path):
    """Its server has it imported: an edit between two runs does not reach the second."""
    copied_tree(tmp_path, "scripts")
    shutil.copy(ROOT / "main.py", tmp_path)
    (tmp_path / "sweep.py").write_text(SWEEP)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "sweep.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("results/runs/*/record.json")
    found = json.loads(path.read_text())["sources"]
    assert found == sources_of(resolve({"model": "sgd", "dataset": "seq-digits", "backbone": "mlp"}))


# --- what a command does about a change -------------------------------------------------------------------------------

METHOD = """
import os, signal
from models.sgd import Sgd
from utils.config.registry import MODELS
{imports}

@MODELS.register("mine", help="a multiple of the loss")
class Mine(Sgd):
    def loss(self, batches, outputs, place):
        if os.environ.get("STOP_IN_STEP") == str(place.step):
            signal.raise_signal(signal.SIGTERM)
        return {{name: helper.FACTOR * term for name, term in super().loss(batches, outputs, place).items()}}
"""
HELPER = "FACTOR = 2.0\n"
BYSTANDER = "FACTOR = 7.0\n"
TINY = ["--model", "mine", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4", "--debug_mode"]
TINY += ["--log_every", "1"]


def write(folder, imports, prefix=""):
    folder.mkdir(parents=True)
    (folder / f"{prefix}method.py").write_text(METHOD.format(imports=imports))
    (folder / f"{prefix}helper.py").write_text(HELPER)
    (folder / f"{prefix}bystander.py").write_text(BYSTANDER)


class Mine:
    """A folder of plug-ins, and the commands that use it, each in a process of its own: none has it imported yet."""

    def __init__(self, folder):
        self.results = folder / "results"
        self.plugins = folder / "mine"
        write(self.plugins, "from . import helper")
        self.helper = self.plugins / "helper.py"

    def run(self, *words: str, stop_in: int | None = None) -> Finished:
        argv = [*TINY, *words, "--plugins", str(self.plugins)]
        environment = {} if stop_in is None else {"STOP_IN_STEP": str(stop_in)}
        return in_a_fork([*argv, "--results_path", str(self.results)], environment)

    def content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.results.glob("runs/*/*")}

    def refused(self, *words: str) -> str:
        """The one line, of a command that leaves everything as it is."""
        before = self.content()
        finished = self.run(*words)
        assert (finished.code, finished.stdout) == (2, "")
        assert self.content() == before
        (line,) = finished.stderr.splitlines()
        return line


def in_a_fork(argv, environment=None) -> Finished:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(call_in, environment or {}, [*argv, "--num_threads", "1", "--non_verbose"]).result()


def call_in(environment, argv):
    os.environ.update(environment)
    return call(argv)


@pytest.fixture
def mine(tmp_path):
    return Mine(tmp_path)


def losses(finished):
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "log"]


def test_files_of_a_plugin_folder_that_are_imported_belong_to_the_run(mine):
    finished = mine.run()
    assert (finished.code, finished.stderr) == (0, "")
    own = {name for name in finished.record["sources"] if not (ROOT / name).exists()}
    assert own == {"mine/method.py", "mine/helper.py"}
    assert "models/sgd.py" in finished.record["sources"]


@pytest.mark.parametrize(
    ("where", "own"),
    [("lib", {"lib/my_method.py", "lib/my_helper.py"}), ("site-packages", {"my_method.py"})],
)
def test_module_by_name_brings_its_neighbours_unless_it_is_installed(tmp_path, monkeypatch, where, own):
    write(tmp_path / where, "import my_helper as helper", prefix="my_")
    monkeypatch.syspath_prepend(str(tmp_path / where))
    finished = in_a_fork([*TINY, "--plugins", "my_method", "--results_path", str(tmp_path / "results")])
    assert (finished.code, finished.stderr) == (0, "")
    assert {name for name in finished.record["sources"] if not (ROOT / name).exists()} == own


SCRIPT = "NEVER = 1\nraise SystemExit(5)\n"


def test_files_that_are_seldom_imported_belong_to_the_run_and_are_not_executed(mine, tmp_path, monkeypatch):
    """In a folder below the plug-ins, and beside a module by name."""
    write(tmp_path / "lib", "import my_helper as helper", prefix="my_")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    for folder, method, imported in (
        (mine.plugins, mine.plugins / "method.py", ".deep.script"),
        (tmp_path / "lib", tmp_path / "lib/my_method.py", "my_script"),
    ):
        path = folder.joinpath(*imported.strip(".").split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(SCRIPT)
        method.write_text(f"{method.read_text()}\ndef seldom():\n    from {imported} import NEVER\n")
    found = mine.run().record["sources"]
    assert "mine/deep/script.py" in found
    finished = in_a_fork([*TINY, "--plugins", "my_method", "--results_path", str(tmp_path / "by_name")])
    assert "lib/my_script.py" in finished.record["sources"]


def test_finished_run_of_other_code_is_refused_with_the_file(mine):
    first = mine.run()
    mine.helper.write_text("FACTOR = 3.0\n")
    line = mine.refused()
    assert line.startswith("error: this run was finished on ")
    assert " by code that has changed since: mine/helper.py; " in line
    assert "--rerun" in line
    assert "--accept_changed_code" in line
    mine.helper.write_text("# as it was\n" + HELPER)
    (mine.plugins / "bystander.py").write_text("FACTOR = 9.0\n")
    answered = mine.run()
    assert ANSWERED.fullmatch(answered.stderr)
    assert answered.record == first.record


def test_new_and_removed_files_are_changes(mine):
    mine.run()
    (mine.plugins / "method.py").write_text(METHOD.format(imports="from . import bystander as helper"))
    assert "since: mine/bystander.py (new), mine/helper.py (gone), mine/method.py; " in mine.refused()


def test_rerun_of_changed_code_replaces_the_number(mine):
    first = mine.run()
    loss = losses(first)[0]
    mine.helper.write_text("FACTOR = 3.0\n")
    second = mine.run("--rerun")
    assert (second.code, second.stderr) == (0, "")
    assert losses(second)[0] == pytest.approx(1.5 * loss)
    assert changed_sources(first.record["sources"], second.record["sources"]) == ["mine/helper.py"]
    answered = mine.run()
    assert ANSWERED.fullmatch(answered.stderr)
    assert answered.record == second.record


@pytest.mark.parametrize("flag", ["--accept_changed_code", "--restart_changed_code"])
def test_number_of_other_code_may_be_taken(mine, flag):
    mine.run()
    mine.helper.write_text("FACTOR = 3.0\n")
    before = mine.content()
    taken = mine.run(flag)
    assert taken.code == 0
    answer, code = taken.stderr.splitlines(keepends=True)
    assert ANSWERED.fullmatch(answer)
    assert code == "note: by code that has changed since: mine/helper.py\n"
    assert mine.content() == before
    assert "mine/helper.py" in mine.refused()  # it was taken once


def test_accepting_and_starting_over_contradict_each_other(mine):
    assert "contradict each other" in mine.refused("--accept_changed_code", "--restart_changed_code")


def test_interrupted_run_of_other_code_is_refused_with_the_file(mine):
    assert mine.run(stop_in=4).code == 143
    mine.helper.write_text("FACTOR = 3.0\n")
    assert mine.refused() == (
        "error: this run was interrupted at step 5, and its code has changed since: mine/helper.py; "
        "--rerun starts over, --accept_changed_code goes on with today's code"
    )
    mine.helper.write_text(HELPER)
    finished = mine.run()
    assert (finished.code, finished.stderr) == (0, goes_on(5))
    assert "code_changes" not in finished.record


def test_accepted_change_on_the_way_is_on_record(mine):
    """Every one of them, with the step from which it counts."""
    mine.run(stop_in=4)
    mine.helper.write_text("FACTOR = 3.0\n")
    assert mine.run("--accept_changed_code", stop_in=7).code == 143
    mine.helper.write_text("FACTOR = 4.0\n")
    finished = mine.run("--accept_changed_code")
    assert (finished.code, finished.stderr) == (0, goes_on(8))
    assert finished.record["code_changes"] == [
        {"step": 5, "files": ["mine/helper.py"]},
        {"step": 8, "files": ["mine/helper.py"]},
    ]
    assert ANSWERED.fullmatch(mine.run().stderr)  # its code is today's


@pytest.mark.parametrize(
    ("before", "flag", "said"),
    [
        ([], "--restart_changed_code", "note: starts over, its code has changed: mine/helper.py\n"),
        ([], "--rerun", ""),
        (["--rerun"], "--rerun", ""),
    ],
)
def test_interrupted_run_of_other_code_starts_over(mine, tmp_path, before, flag, said):
    mine.run(*before, stop_in=4)
    mine.helper.write_text("FACTOR = 3.0\n")
    finished = mine.run(flag)
    assert (finished.code, finished.stderr) == (0, said)
    assert "code_changes" not in finished.record
    mine.results = tmp_path / "straight"
    straight = mine.run()
    assert losses(finished) == losses(straight)
    assert finished.record["results"] == straight.record["results"]


def test_sweeps_start_interrupted_runs_of_other_code_over():
    from scripts.reproduce.presets import SMOKE
    from scripts.reproduce.runs import Runs

    run = Runs(SMOKE).run_with({"model": "sgd", "dataset": "seq-digits"})
    assert run.launched() == [*run.command(), "--non_verbose", "--restart_changed_code"]
