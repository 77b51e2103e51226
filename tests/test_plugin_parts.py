"""A buffer, a metric and an observer of a plug-in folder: in a study, killed and resumed; mistakes are one line."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import call, plugins_forgotten, runner
from stopped_runs import observers_added

from scripts.reproduce import main as reproduce
from scripts.results import main as show_results
from tests.helpers import CPU, make_samples, make_spec
from tests.models.cut_off import Killed, Steps
from tests.outcomes import logged
from tests.readme import GUIDE, examples
from utils.config.options import Rule
from utils.config.plugins import load_plugins
from utils.config.registry import BUFFERS, METRICS, OBSERVERS
from utils.config.resolve import resolve
from utils.data.buffer import Buffer
from utils.data.random import generator
from utils.errors import UsageError
from utils.run.metrics import _warn_once, per_class
from utils.run.observers import ExternalLogger
from utils.run.records import read_record
from utils.studies.runs import Runs
from utils.studies.selection import Selection, required_runs
from utils.studies.study import read_study
from utils.tables import MEASURED_METRICS

FILES = ("mine/hard_samples.py", "mine/worst_class.py", "mine/grad_norm.py")
STUDY = """
rows = ["buffer_mode"]
metrics = ["class_il_worst_class"]
plugins = ["mine"]

[common]
model = "derpp"
dataset = "seq-digits"
backbone = "mlp"
hidden = 8
batch_size = 64
probe = "grad_norm"
grad_every = 2

[vary]
buffer_mode = ["class_balanced", "hard_samples"]

[[with]]
when = { buffer_mode = "hard_samples" }
flags = { hardness = 2 }
"""
TINY = ["--model", "er", "--dataset", "seq-digits", "--backbone", "mlp", "--debug_mode", "--log_every", "1"]


@pytest.fixture
def mine(tmp_path):
    """The guide's files of the three kinds in a folder."""
    (tmp_path / "mine").mkdir()
    for name in FILES:
        (tmp_path / name).write_text(examples(GUIDE)[name])
    with plugins_forgotten():
        yield tmp_path / "mine"


def results_and_log(run):
    return read_record(run.folder / "record.json")["results"], logged(run.folder)


def test_one_of_each_kind_in_a_study_killed_and_resumed(mine, capsys):
    study, ends = mine.parent / "study.toml", {}
    study.write_text(STUDY)
    load_plugins([str(mine)])
    for results, last_step in (("straight", None), ("killed", 13)):
        runs = Runs(read_study(study).preset(), str(mine.parent / results), plugins=(str(mine),))
        wanted, _ = required_runs(list(read_study(study).plans().values()), Selection("fixed", runs, (0,)))
        for run in wanted.values():
            words = [*run.command(), "--log_every", "4", "--checkpoint_every", "3", "--non_verbose"]
            if last_step:
                with observers_added(Steps(last=last_step)), pytest.raises(Killed):
                    call(words)
            assert call(words).code == 0
            assert runs.is_done(run)
        ends[results] = {run.config.buffer_mode: results_and_log(run) for run in wanted.values()}
    assert ends["killed"] == ends["straight"]
    assert ends["killed"].keys() == {"class_balanced", "hard_samples"}
    assert reproduce(["report", str(study), "--results_path", str(mine.parent / "killed")]) == 0
    lines = csv.DictReader((mine.parent / "killed/reports/study/report.csv").read_text().splitlines())
    reported = {line["row"]: float(line["ours"]) for line in lines}
    for mode, (by_setting, log) in ends["killed"].items():
        metric = by_setting["class_il"]["metrics"]["worst_class"]
        assert reported[mode] == pytest.approx(metric) == min(per_class(by_setting["class_il"]["confusion"]))
        assert by_setting["task_il"]["metrics"]["worst_class"] is None
        lengths = [event["scalars"]["grad_norm/length"] for event in log if event["event"] == "log"]
        assert len(lengths) > 5
        assert max(lengths) > 0
    capsys.readouterr()


def test_options_of_a_policy_identify_a_run_and_those_of_an_observer_do_not(mine, run_main):
    words = [*TINY, "--plugins", str(mine), "--buffer_mode", "hard_samples"]
    first = run_main(*words, "--hardness", "2", "--probe", "grad_norm", "--grad_every", "3")
    assert (first.record["identity"]["hardness"], first.record["config"]["grad_every"]) == (2, 3)
    assert not {"grad_every", "probe", "ring_quota"} & first.record["identity"].keys()
    assert "not trained again" in run_main(*words, "--hardness", "2").stderr
    assert run_main(*words, "--hardness", "2", "--probe", "grad_norm").code == 2  # every gradient, not every third
    assert run_main(*words, "--hardness", "3").folder != first.folder
    assert run_main(*words, "--hardness", "3", "--probe", "grad_norm").code == 2  # finished without it
    assert any(name.endswith("hard_samples.py") for name in first.record["sources"])


@pytest.mark.parametrize(
    ("before", "every", "starts_over"),
    [(["--probe", "grad_norm", "--grad_every", "2"], "2", False),
     (["--probe", "grad_norm", "--grad_every", "2"], "3", True), ([], "2", True)],
)  # fmt: skip
def test_an_interrupted_run_starts_over_for_an_observer_that_it_lacks(mine, run_main, before, every, starts_over):
    words = [*TINY, "--plugins", str(mine), "--checkpoint_every", "3"]
    with observers_added(Steps(last=7)), pytest.raises(Killed):
        run_main(*words, *before)
    ended = run_main(*words, "--probe", "grad_norm", "--grad_every", every)
    assert ("starts over" in ended.stderr) == starts_over


def test_parts_with_options_of_one_name_see_their_own(mine, run_main):
    for name, flag in (("hard_samples", "hardness"), ("grad_norm", "grad_every")):
        path = mine / f"{name}.py"
        path.write_text(path.read_text().replace(flag, "power"))
    parts = ["--buffer_mode", "hard_samples", "--power", "3", "--plugins", str(mine)]
    watched = run_main(*TINY, *parts, "--probe", "grad_norm", "--probe_grad_norm_power", "2")
    config = watched.record["config"]
    assert (config["power"], config["probe_grad_norm_power"]) == (3, 2)
    assert run_main(*TINY, *parts).folder == watched.folder  # an observer renames no run


def test_loss_terms_and_scalars_reach_the_log_and_external_loggers(mine, results):
    class Sent(ExternalLogger):
        points = []

        def send(self, values, step):
            self.points.append((step, values))

    with observers_added(sent := Sent()):
        words = [*TINY, "--model", "derpp", "--norm", "adab2n", "--probe", "grad_norm,stability"]
        ended = runner(results)(*words, "--plugins", str(mine))
    events = {event["step"]: event for event in logged(ended.folder) if event["event"] == "log"}
    assert events[15]["terms"].keys() == {"current", "logits", "labels", "penalty"}
    assert events[15]["loss"] == pytest.approx(sum(events[15]["terms"].values()))
    curves = {step: values for step, values in sent.points if "lr" in values}
    for step, event in events.items():
        expected = {f"loss/{name}": value for name, value in event["terms"].items()} | event["scalars"]
        assert expected.items() <= curves[step].items()
    assert ended.record["recordings"].keys() == {"stability"}


def test_records_from_before_a_metric_have_it_when_they_are_read(mine, run_main, capsys):
    before = run_main(*TINY).record["results"]["class_il"]
    assert "worst_class" not in before["metrics"]
    folder = str(run_main(*TINY).folder.parent.parent)
    capsys.readouterr()
    assert (
        show_results(["--plugins", str(mine), "--results_path", folder, "--columns", "seed,class_il_worst_class"]) == 0
    )
    assert float(capsys.readouterr().out.splitlines()[1].split()[-1]) == min(per_class(before["confusion"]))
    again = run_main(*TINY, "--plugins", str(mine))
    assert "accuracy of the worst class" in again.stdout


def test_a_metric_that_was_changed_is_computed_again_when_a_record_is_read(mine, run_main):
    path = run_main(*TINY, "--plugins", str(mine)).folder / "record.json"
    METRICS.entries().pop("worst_class")
    METRICS.register("worst_class")(lambda run: 123)
    assert read_record(path)["results"]["class_il"]["metrics"]["worst_class"] == 123


def test_a_metric_has_no_name_of_one_that_the_loop_measures():
    for name in MEASURED_METRICS:
        with pytest.raises(ValueError, match="rename"):
            METRICS.register(name)


@pytest.mark.parametrize("body", ["return 1 / 0", "return float('inf')", "return 'high'"])
def test_a_metric_that_fails_costs_one_line_and_no_run(mine, run_main, body):
    _warn_once.cache_clear()
    (mine / "bad.py").write_text(f"from utils.config.registry import METRICS\n@METRICS.register('bad')\n"
                                 f"def bad(run):\n    'odd'\n    {body}\n")  # fmt: skip
    ended = run_main(*TINY, "--plugins", str(mine))
    (line,) = ended.stderr.splitlines()
    assert "metric bad" in line
    assert ended.record["results"]["class_il"]["metrics"]["bad"] is None
    METRICS.entries().pop("bad")  # and it is repaired
    METRICS.register("bad")(lambda run: -7)
    record = read_record(ended.folder / "record.json")
    assert record["results"]["class_il"]["metrics"]["bad"] == -7


@pytest.mark.parametrize("registry", [METRICS, OBSERVERS])
def test_what_changes_no_number_sets_no_defaults(registry):
    with pytest.raises(TypeError, match="rules"):
        registry.register("mine", rules=(Rule({"lr": 1.0}),))


def test_an_observer_without_hooks_works_with_compile(mine):
    load_plugins([str(mine)])
    command = {"model": "er", "dataset": "seq-digits", "compile": True}
    assert resolve(command | {"probe": ("grad_norm",)}).probe == ("grad_norm",)
    with pytest.raises(UsageError, match="stability"):
        resolve(command | {"probe": ("grad_norm", "stability")})


def test_a_policy_that_draws_by_loss_draws_those_with_large_ones(mine):
    load_plugins([str(mine)])
    spec = make_spec(image_shape=(1, 1, 1), mean=(0.0,), std=(1.0,))
    policies = [BUFFERS.get("hard_samples").build(8, spec, hardness=4.0) for _ in range(2)]
    buffer, restored = (Buffer(8, policy, spec, CPU) for policy in policies)
    logits = torch.zeros(8, 4).index_fill(1, torch.tensor([0]), 6.0)
    images = torch.zeros(8, 1, 1, 1, dtype=torch.uint8)
    batch = replace(make_samples([0, 0, 0, 0, 0, 0, 1, 2], logits=logits), images=images)
    buffer.add(batch, generator(0, "buffer", 0))
    assert torch.equal(buffer.losses, batch.losses)
    drawn = np.concatenate([buffer.sample_slots(2, generator(0, "replay", step)) for step in range(50)])
    assert set(drawn.tolist()) == {6, 7}
    restored.load_state_dict(buffer.state_dict())
    assert torch.equal(restored.losses, buffer.losses)
