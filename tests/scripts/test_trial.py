"""A few steps that tell how long a run will take, before there is any."""

from dataclasses import replace

import pytest
import torch

from scripts.reproduce import trial
from scripts.reproduce.__main__ import main
from tests.helpers import make_spec, run_config
from utils.config.registry import MODELS

SPEC = make_spec(mean=(0.0,) * 3, std=(0.0,) * 3)  # as a folder's that has not been read


@pytest.fixture
def clock(monkeypatch):
    """Every step takes `clock.step` seconds, and nothing else takes any."""

    class Clock:
        now, step, places = 100.0, 0.1, []

    clock, original = Clock(), trial.Method.step
    clock.places = []

    def step(self, batch, place):
        clock.now += clock.step
        clock.places.append((place.step, len(batch), torch.get_num_threads()))
        return original(self, batch, place)

    monkeypatch.setattr(trial.Method, "step", step)
    monkeypatch.setattr(trial.time, "perf_counter", lambda: clock.now)
    return clock


def test_the_first_steps_are_not_counted(clock):
    found = trial.try_out(run_config("er", "adab2n"), SPEC)
    assert (found.steps, found.seconds) == (5, pytest.approx(0.5))
    assert str(found) == "measured over 5 steps on this machine's cpu"
    assert [place for place, _, _ in clock.places] == list(range(7))
    assert {size for _, size, _ in clock.places} == {4}


def test_slow_steps_are_fewer(clock):
    clock.step = 0.7
    assert trial.try_out(run_config("er"), SPEC).steps == 2
    clock.step, clock.places[:] = 30.0, []
    found = trial.try_out(run_config("er"), SPEC)
    assert (found.steps, found.seconds) == (1, 30.0)
    assert len(clock.places) == 2
    assert str(found).startswith("measured over 1 step on")


def test_a_cpu_takes_longer_for_larger_batches_and_a_gpu_does_not():
    assert trial.Trial(5, 1.0, "cpu", 10).seconds_per_step(30) == pytest.approx(0.6)
    assert trial.Trial(5, 1.0, "cuda", 10).seconds_per_step(30) == pytest.approx(0.2)


def test_the_runs_number_of_threads_is_tried_and_ours_stays(clock):
    before = torch.get_num_threads()
    trial.try_out(run_config("sgd"), SPEC, num_threads=2)
    assert {threads for _, _, threads in clock.places} == {2}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("model", sorted(MODELS.entries()))
def test_every_method_can_be_tried_but_one_that_learns_at_the_end_of_tasks(model):
    found = trial.try_out(run_config(model, "adab2n", "resnet18" if "lider" in model else "mlp"), SPEC)
    assert (found is None) == (model == "gdumb")


def test_what_cannot_be_built_here_is_not_known():
    config = run_config("er", "gn", "resnet18", groups=3)
    assert trial.try_out(config, SPEC) is None
    assert trial.try_out(run_config("er"), replace(SPEC, image_shape=(3, 1, 1))) is not None


def test_list_has_hours_before_the_first_run(tmp_path, capsys):
    assert main(["list", "table8", "--preset", "smoke", "--results_path", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.endswith("?") for line in lines)
    (line,) = [line for line in lines if line.startswith("hours of ")]
    assert line.startswith("hours of seq-digits: nothing comparable has been run yet; measured over 5 steps on this")
    assert list(tmp_path.iterdir()) == []
