"""Which code made a number: what belongs to a run, what a change of it is, and what a command does about one."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import sklearn.datasets  # noqa: F401 (once here, not in every fork)
import torch._dynamo  # noqa: F401
from conftest import ANSWERED, Finished, call, goes_on
from forked import refusal

from tests.outcomes import logged
from utils.config.resolve import SELECTORS, resolve
from utils.run import code_digest
from utils.run.code_digest import changed_files, code_digests, shortened

ROOT = Path(__file__).resolve().parents[3]


def files_of(**selected) -> set[str]:
    return set(code_digests(resolve({"dataset": "seq-digits", "backbone": "mlp"} | selected)))


# --- what belongs to a run --------------------------------------------------------------------------------------------


def test_files_of_a_run_are_its_parts_with_what_they_use_and_the_loop():
    sources = files_of(model="er", norm="bn")
    chosen = {name for name in sources if not name.startswith("utils/") and not name.endswith("__init__.py")}
    assert {"backbone/mlp.py", "backbone/network.py", "backbone/norms/batch_norm.py", "datasets/dataset.py"} <= chosen
    assert {"datasets/seq_digits.py", "models/er.py", "models/method.py"} <= chosen
    assert not {"models/derpp.py", "backbone/norms/adab2n.py", "datasets/seq_cifar10.py"} & chosen
    assert any(name.endswith(".c") for name in files_of(model="er", norm="adab2n"))
    assert {"utils/run/training.py", "utils/run/evaluation.py", "utils/step.py", "utils/data/buffer.py"} <= sources
    assert not sources & {"utils/run/observers.py", "utils/run/records.py", "utils/config/resolve.py", "main.py"}


def test_every_registered_part_counts_in_its_own_run():
    """The module that registers it, which a run with another part may do without."""
    for selector, registry in SELECTORS.items():
        for entry in registry.entries().values():
            config = resolve({"model": "er", "norm": "bn", "dataset": "seq-digits", "buffer_size": 10})
            setattr(config, selector, entry.name)
            assert f"{entry.module.replace('.', '/')}.py" in code_digests(config)


def test_changed_and_removed_files_are_changes_and_new_ones_are_not():
    before = {"a.py": "1", "b.py": "1", "c.py": "1"}
    assert changed_files(before, before) == []
    assert changed_files(before, {"a.py": "1", "b.py": "2", "d.py": "1"}) == ["b.py", "c.py (not loaded now)"]
    assert shortened(["a", "b", "c", "d"]) == "a, b, c, d"
    assert shortened(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"


def test_a_server_keeps_the_digests_of_the_code_that_it_has_imported(tmp_path, monkeypatch):
    """Its forks run that code, whatever the files say by then."""
    path = tmp_path / "models/mine.py"
    path.parent.mkdir()
    path.write_text("FACTOR = 2.0\n")
    monkeypatch.setattr(code_digest, "REPOSITORY", tmp_path)
    code_digest.read_project_files()
    before = code_digest._file_digest(path)
    path.write_text("FACTOR = 3.0\n")
    assert code_digest._file_digest(path) == before != code_digest._file_digest.__wrapped__(path)


# --- what a command does about a change -------------------------------------------------------------------------------

METHOD = """
import os, signal
from models.sgd import Sgd
from utils.config.registry import MODELS
{imports}

@MODELS.register("mine", help="a multiple of the loss")
class Mine(Sgd):
    def loss(self, batches, outputs, index):
        if os.environ.get("STOP_IN_STEP") == str(index.step):
            signal.raise_signal(signal.SIGTERM)
        return {{name: helper.FACTOR * term for name, term in super().loss(batches, outputs, index).items()}}
"""
HELPER = "FACTOR = 2.0\n"
TINY = ["--model", "mine", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4", "--debug_mode"]
TINY += ["--log_every", "1", "--num_threads", "1", "--non_verbose"]


def write(folder, imports, prefix=""):
    folder.mkdir(parents=True)
    (folder / f"{prefix}method.py").write_text(METHOD.format(imports=imports))
    (folder / f"{prefix}helper.py").write_text(HELPER)


class Mine:
    """A folder of plug-ins, and the commands that use it, each in a process of its own: none has it imported yet."""

    def __init__(self, folder):
        self.results = folder / "results"
        self.plugins = folder / "mine"
        write(self.plugins, "from . import helper")
        self.helper = self.plugins / "helper.py"

    def run(self, *words: str, stop_in: int | None = None) -> Finished:
        argv = [*TINY, *words, "--plugins", str(self.plugins), "--results_path", str(self.results)]
        return in_a_fork(argv, {} if stop_in is None else {"STOP_IN_STEP": str(stop_in)})

    def content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.results.glob("runs/*/*")}

    def refused(self, *words: str) -> str:
        """The one line, of a command that leaves everything as it is."""
        before = self.content()
        line = refusal(self.run(*words))
        assert self.content() == before
        return line


def in_a_fork(argv, environment=None) -> Finished:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(call_in, environment or {}, argv).result()


def call_in(environment, argv):
    os.environ.update(environment)
    return call(argv)


@pytest.fixture
def mine(tmp_path):
    return Mine(tmp_path)


def losses(finished):
    return [event["loss"] for event in logged(finished.folder) if event["event"] == "log"]


def own_files(finished):
    return {name for name in finished.record["sources"] if not (ROOT / name).exists()}


def test_loaded_files_of_a_plugin_folder_belong_to_the_run_wherever_it_lies(mine, tmp_path):
    finished = mine.run()
    assert (finished.code, finished.stderr) == (0, "")
    assert own_files(finished) == {"mine/method.py", "mine/helper.py"}
    assert "models/sgd.py" in finished.record["sources"]
    (tmp_path / "moved").mkdir()
    mine.plugins = mine.plugins.rename(tmp_path / "moved/mine")
    assert ANSWERED.fullmatch(mine.run().stderr)


@pytest.mark.parametrize(
    ("where", "own"), [("lib", {"my_method.py", "my_helper.py"}), ("site-packages", {"my_method.py"})]
)
def test_module_by_name_brings_what_it_loads_unless_it_is_installed(tmp_path, monkeypatch, where, own):
    write(tmp_path / where, "import my_helper as helper", prefix="my_")
    monkeypatch.syspath_prepend(str(tmp_path / where))
    argv = [*TINY, "--plugins", "my_method", "--results_path", str(tmp_path / "results")]
    finished = in_a_fork(argv, {"PYTHONPATH": str(tmp_path / where)})
    assert (finished.code, finished.stderr) == (0, "")
    assert own_files(finished) == own


def test_finished_run_of_other_code_is_refused_with_the_file(mine):
    first = mine.run()
    mine.helper.write_text("FACTOR = 3.0\n")
    line = mine.refused()
    assert all(word in line for word in (" mine/helper.py;", "--rerun", "--accept_changed_code"))
    taken = mine.run("--accept_changed_code")
    assert (taken.code, taken.record) == (0, first.record)
    assert "mine/helper.py" in taken.stderr
    assert "mine/helper.py" in mine.refused()  # it was accepted once
    mine.helper.write_text(HELPER)
    (mine.plugins / "new.py").write_text("FACTOR = 9.0\n")
    answered = mine.run()
    assert ANSWERED.fullmatch(answered.stderr)
    assert answered.record == first.record


def test_interrupted_run_of_other_code_is_refused_with_the_file(mine, tmp_path):
    assert mine.run(stop_in=4).code == 143
    mine.helper.write_text("FACTOR = 3.0\n")
    line = mine.refused()
    assert all(word in line for word in ("step 5", " mine/helper.py;", "--rerun", "--accept_changed_code"))
    over = mine.run("--rerun")
    assert (over.code, over.stderr) == (0, "")
    mine.results = tmp_path / "straight"
    assert losses(over) == losses(mine.run())


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
    note, first, second = mine.run().stderr.splitlines(keepends=True)
    assert ANSWERED.fullmatch(note)  # the code of its end is today's
    assert "step 5" in first
    assert "step 8" in second
