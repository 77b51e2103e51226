"""Code of others may draw from the global generators of torch, numpy and Python: a run is the same every time."""

import random

import numpy as np
import pytest
import torch
from conftest import call, runner
from stopped_runs import stopped
from torch import nn

from models.er import Er
from tests.helpers import CPU, run_config
from utils.config.registry import MODELS, NORMS
from utils.data.random import seed_global_generators
from utils.run.build import StreamBuilder, build_network

RUN = ["--model", "drawing", "--norm", "dropped", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8"]
RUN += ["--debug_mode", "--save_model", "--replay_iters", "2"]


def draws():
    return torch.rand(()).item() + np.random.rand() + random.random()  # noqa: NPY002


class Drawing(Er):
    """Draws in every hook."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.weights = [draws()]

    def begin_task(self, task, stream):
        self.weights.append(draws())

    def extra_task_samples(self, task):
        self.epoch_weight = draws()

    def loss(self, batches, outputs, index):
        factor = draws() + self.weights[0] + self.weights[-1] + self.epoch_weight
        return {name: factor * term for name, term in super().loss(batches, outputs, index).items()}

    def end_task(self, task, stream):
        self.weights.append(draws())

    def predict(self, inputs):
        return super().predict(inputs) + torch.rand(self.n_classes) + draws()

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    for registry in (MODELS, NORMS):
        monkeypatch.setattr(registry, "_entries", dict(registry.entries()))
    MODELS.register("drawing")(Drawing)
    NORMS.register("dropped")(lambda channels, *, spatial: nn.Sequential(nn.BatchNorm1d(channels), nn.Dropout(0.3)))


def train(results, *words):
    """Train in what might be another process: its global generators are elsewhere."""
    torch.seed()
    np.random.seed(None)  # noqa: NPY002
    random.seed()
    ended = runner(results)(*RUN, *words)
    assert ended.code == 0, ended.stderr
    return ended


def numbers(ended):
    return ended.record["results"], (ended.folder / "model.safetensors").read_bytes()


def test_another_process_a_resumed_run_and_one_with_more_evaluations_have_the_same_numbers(tmp_path):
    straight = train(tmp_path / "straight")
    assert numbers(train(tmp_path / "again")) == numbers(straight)
    stopped(tmp_path / "stopped", *RUN, at=4)  # within the second task
    assert numbers(train(tmp_path / "stopped")) == numbers(straight)
    probed = train(tmp_path / "probed", "--late_evaluations", "2", "--final_statistics")
    assert numbers(probed)[1] == numbers(straight)[1]
    assert probed.record["results"]["class_il"]["matrix"] == straight.record["results"]["class_il"]["matrix"]
    often = train(tmp_path / "often", "--eval_every", "2")
    assert numbers(often)[1] == numbers(straight)[1]


def test_a_saved_network_has_the_same_random_predictions(tmp_path):
    """Otherwise, there would be a warning."""
    evaluated = call(["--eval_only", str(train(tmp_path).folder)])
    assert (evaluated.code, evaluated.stderr) == (0, "")


def test_a_network_draws_from_its_own_address_and_leaves_the_generators_as_they_were():
    class Noise(nn.BatchNorm1d):
        def __init__(self, channels):
            super().__init__(channels)
            self.register_buffer("noise", torch.tensor([np.random.rand(), random.random()]))  # noqa: NPY002

    NORMS.register("noisy")(lambda channels, *, spatial: Noise(channels))
    config = run_config(norm="noisy")
    spec, values = StreamBuilder(run_config(dataset="seq-digits")).spec, []
    for address in (1, 2):
        seed_global_generators(0, "elsewhere", address)
        expected = draws()
        seed_global_generators(0, "elsewhere", address)
        net = build_network(config, spec, CPU)
        assert draws() == expected
        values.append([buffer.tolist() for name, buffer in net.named_buffers() if "noise" in name])
    assert values[0] == values[1]
