"""AdaB2N over steps and tasks, recomputed by a plain numpy version of its definition.

Three layers, three tasks, twelve steps with random task mixes, some without replay and some with two forwards. The
numpy version keeps its own weights, statistics, momentum, penalties and psi; psi's gradient comes from complex steps,
f'(x) = Im f(x + ih) / h, which are exact to rounding because nothing is subtracted.
"""

import numpy as np
import pytest
import torch

from backbone.norms import norm_factory
from tests.helpers import NORM_IMPLS, assert_close
from utils.config.resolve import resolve

EPS = 1e-5
STEP = 1e-30
SHAPES = ((3, 4, 4), (5, 2, 3), (4, 1, 1))  # channels and map of every layer
RATE = 0.5  # of the gradient descent on psi
OFFICIAL = {
    "absent_tasks": "counted",
    "variance": "mixture",
    "eta_start": "eta0",
    "penalty_norm": "mean",
    "running_var_start": 1,
    "penalty_steps": "replay",
}
PAPER = {
    "absent_tasks": "ignored",
    "variance": "within",
    "eta_start": "eta1",
    "penalty_norm": "sum",
    "running_var_start": 0,
    "penalty_steps": "all",
}
COMMON = {"kappa": 0.7, "lambd": 0.3, "eta": 0.1, "ada_t0": 0}
SETTINGS = {
    "official": COMMON | OFFICIAL,
    "paper": COMMON | PAPER,
    "official, kappa 0": COMMON | OFFICIAL | {"kappa": 0.0},
    "paper, kappa 0": COMMON | PAPER | {"kappa": 0.0},
    "official, kappa .4": COMMON | OFFICIAL | {"kappa": 0.4, "ada_t0": 1},
    "paper, kappa 1": COMMON | PAPER | {"kappa": 1.0, "ada_t0": 1},
    "within, kappa 1": COMMON | OFFICIAL | {"kappa": 1.0, "variance": "within", "eta": 0.25},
    "ignored, kappa .4": COMMON | OFFICIAL | {"kappa": 0.4, "absent_tasks": "ignored", "penalty_steps": "all"},
    "mixture, kappa .7": COMMON | PAPER | {"variance": "mixture", "running_var_start": 1, "lambd": 0.05},
    "no penalty": COMMON | PAPER | {"lambd": 0.0, "absent_tasks": "counted"},
}


# --- what happens ------------------------------------------------------------------------------------------------


def make_steps() -> list[dict]:
    """Twelve steps: the task, whether it replays, and its forwards of (tasks or None, input of every layer)."""
    rng = np.random.default_rng(5)
    kinds = ["plain", "joint", "separate", "joint"] * 3

    def forward(tasks):
        n = 6 if tasks is None else len(tasks)
        return tasks, [rng.normal(rng.normal(0, 1, (n, 1, 1, 1)), 1.5, (n, *shape)) for shape in SHAPES]

    steps = []
    for number, kind in enumerate(kinds):
        task = number // 4
        if kind == "plain":
            forwards = [forward(None)]
        else:
            mixes = [rng.integers(0, task + 1, size) for size in ((7,) if kind == "joint" else (4, 5))]
            if kind == "joint" and task:
                mixes[0][:3] = task  # then some task is often absent, and some has one sample
            forwards = [forward(mix) for mix in mixes]
        steps.append({"task": task, "replayed": kind != "plain", "forwards": forwards})
    return steps


STEPS = make_steps()
AFFINE = [np.random.default_rng(9).normal(1, 0.5, (2, shape[0])) for shape in SHAPES]


def target_of(layer: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.sin(np.arange(np.prod(shape)) + layer).reshape(shape) * 2


# --- in numpy ----------------------------------------------------------------------------------------------------


def weights_by_numpy(psi: list, tasks, settings) -> list[tuple[list[int], complex]]:
    """(samples, p) of every task in the batch."""
    groups = [[n for n, own in enumerate(tasks) if own == task] for task in range(len(psi))]
    phi = [np.exp(value) for value in psi]
    counted = [t for t in range(len(psi)) if groups[t] or settings["absent_tasks"] == "counted"]
    normalizer = sum(phi[t] + len(groups[t]) for t in counted)
    return [(groups[t], (phi[t] + len(groups[t])) / normalizer) for t in range(len(psi)) if groups[t]]


def statistics_by_numpy(a: np.ndarray, groups, variance: str):
    mu = sum(p / len(samples) * a[n].mean((1, 2)) for samples, p in groups for n in samples)
    sigma2 = 0
    for samples, p in groups:
        center = mu if variance == "mixture" else sum(a[n].mean((1, 2)) for n in samples) / len(samples)
        for n in samples:
            distance = a[n] - center[:, None, None]
            sigma2 = sigma2 + p / len(samples) * (distance * distance).mean((1, 2))
    return mu, sigma2


def normalized_by_numpy(a, mu, sigma2, affine) -> np.ndarray:
    gamma, beta = (vector[:, None, None] for vector in affine)
    return gamma * (a - mu[:, None, None]) / np.sqrt(sigma2 + EPS)[:, None, None] + beta


class ByNumpy:
    def __init__(self, settings):
        self.settings = settings
        self.psi: list[np.ndarray] = []  # (layers,) of every task
        self.mean = [np.zeros(shape[0]) for shape in SHAPES]
        self.var = [np.full(shape[0], float(settings["running_var_start"])) for shape in SHAPES]
        self.etas = [settings["eta"] ** settings["kappa"]]
        for _ in range(40):
            self.etas.append(self.etas[-1] / (self.etas[-1] + (1 - settings["eta"]) ** settings["kappa"]))
        if settings["eta_start"] == "eta1":
            self.etas = self.etas[1:]
        self.updates = 0

    def forward(self, layer: int, psi: list, tasks, a):
        """Output and statistics of a layer, in the numbers that psi has, which may be complex."""
        groups = [(range(len(a)), 1)] if tasks is None else weights_by_numpy(psi, tasks, self.settings)
        mu, sigma2 = statistics_by_numpy(a, groups, self.settings["variance"])
        return normalized_by_numpy(a, mu, sigma2, AFFINE[layer]), mu, sigma2

    def penalty_of(self, mu, sigma2, mean, var):
        squares = (mu - mean) * (mu - mean) + (sigma2 - var) * (sigma2 - var)
        return squares.mean() if self.settings["penalty_norm"] == "mean" else squares.sum()

    def step(self, step) -> dict:
        settings = self.settings
        while len(self.psi) <= step["task"]:
            self.psi.append(np.zeros(len(SHAPES)))
        due = step["task"] >= settings["ada_t0"] and (step["replayed"] or settings["penalty_steps"] == "all")
        outputs, penalty, gradient = [], 0.0, np.zeros((len(self.psi), len(SHAPES)))
        for tasks, inputs in step["forwards"]:
            eta = self.etas[self.updates]
            self.updates += 1
            for layer, a in enumerate(inputs):
                psi = [of_task[layer] for of_task in self.psi]
                out, mu, sigma2 = self.forward(layer, psi, tasks, a)
                outputs.append(out)
                self.mean[layer] = (1 - eta) * self.mean[layer] + eta * mu
                self.var[layer] = (1 - eta) * self.var[layer] + eta * sigma2
                constants = self.mean[layer], self.var[layer]  # the penalty's gradient takes them as they are
                if due and settings["lambd"]:
                    penalty += self.penalty_of(mu, sigma2, *constants)
                for task in range(len(psi)):
                    moved = [value + 1j * STEP * (task == t) for t, value in enumerate(psi)]
                    out, mu, sigma2 = self.forward(layer, moved, tasks, a)
                    distance = out - target_of(layer, a.shape)
                    loss = (distance * distance).mean() / 2
                    if due:
                        loss = loss + settings["lambd"] * self.penalty_of(mu, sigma2, *constants)
                    gradient[task, layer] += np.imag(loss) / STEP
        self.psi = [psi - RATE * change for psi, change in zip(self.psi, gradient, strict=True)]
        return {"outputs": outputs, "penalty": penalty, "factor": settings["lambd"] if due else 0.0}


# --- in the product, and both ------------------------------------------------------------------------------------


class ByProduct:
    def __init__(self, options):
        factory = norm_factory("adab2n", **options)
        self.shared = factory.shared.double()
        self.layers = [factory(shape[0], spatial=shape[1:]).double() for shape in SHAPES]
        with torch.no_grad():
            for layer, (gamma, beta) in zip(self.layers, AFFINE, strict=True):
                layer.weight.copy_(torch.from_numpy(gamma))
                layer.bias.copy_(torch.from_numpy(beta))

    def step(self, step) -> dict:
        while len(self.shared.psi) <= step["task"]:
            self.shared.begin_task(n_classes=0)
        factor = self.shared.penalty_weight(step["task"], step["replayed"])
        outputs, loss, penalty = [], 0.0, torch.zeros(())
        for tasks, inputs in step["forwards"]:
            tensors = [torch.from_numpy(a) for a in inputs]
            tensors[1] = tensors[1].contiguous(memory_format=torch.channels_last)
            of_sample = None if tasks is None else torch.from_numpy(tasks)
            with self.shared.forward_pass(of_sample, penalized=factor > 0) as this:
                for number, (layer, a) in enumerate(zip(self.layers, tensors, strict=True)):
                    outputs.append(layer(a))
                    loss = loss + (outputs[-1] - torch.from_numpy(target_of(number, a.shape))).square().mean() / 2
            if factor:
                penalty = penalty + this.report.penalty
        (loss + factor * penalty).backward()
        with torch.no_grad():
            for psi in self.shared.psi:
                if psi.grad is not None:
                    psi -= RATE * psi.grad
                    psi.grad = None
        return {"outputs": [out.detach() for out in outputs], "penalty": penalty.detach(), "factor": factor}

    def evaluated(self, inputs) -> list[torch.Tensor]:
        results = [layer.eval()(torch.from_numpy(a)) for layer, a in zip(self.layers, inputs, strict=True)]
        for layer in self.layers:
            layer.train()
        return results


def options_of(name: str) -> dict:
    """For the two presets those that `--fidelity` sets, so that the presets are traced too."""
    if name not in ("official", "paper"):
        return SETTINGS[name]
    config = resolve({"model": "er", "norm": "adab2n", "dataset": "seq-digits", "fidelity": name, **COMMON})
    return config.options_of("norm")


def assert_equal(actual, expected) -> None:
    assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def assert_evaluates(product, mean, var) -> None:
    _, inputs = STEPS[1]["forwards"][0]
    for number, out in enumerate(product.evaluated(inputs)):
        assert_equal(out.detach(), normalized_by_numpy(inputs[number], mean[number], var[number], AFFINE[number]))


@pytest.mark.parametrize("impl", NORM_IMPLS)
@pytest.mark.parametrize("name", SETTINGS)
def test_trace(name, impl):
    expected = ByNumpy(SETTINGS[name])
    product = ByProduct(options_of(name) | {"norm_impl": impl})
    assert_evaluates(product, expected.mean, [np.ones_like(var) for var in expected.var])
    penalties = []
    for step in STEPS:
        mine, theirs = product.step(step), expected.step(step)
        for out, numbers in zip(mine["outputs"], theirs["outputs"], strict=True):
            assert_equal(out, numbers)
        assert_equal(mine["penalty"], theirs["penalty"])
        assert mine["factor"] == theirs["factor"]
        penalties.append(theirs["penalty"])
        for layer, mean, var in zip(product.layers, expected.mean, expected.var, strict=True):
            assert_equal(layer.running_mean, mean)
            assert_equal(layer.running_var, var)
            assert layer.num_batches_tracked == expected.updates
            assert layer.eta.item() == pytest.approx(expected.etas[expected.updates], rel=1e-12)
        assert_equal(torch.stack(list(product.shared.psi)).detach(), np.stack(expected.psi))
    assert_evaluates(product, expected.mean, expected.var)
    psi = np.stack(expected.psi)
    assert np.abs(psi[1:]).max() > 0.05  # it did move
    assert (np.array(penalties) > 0).any() == (SETTINGS[name]["lambd"] > 0)
