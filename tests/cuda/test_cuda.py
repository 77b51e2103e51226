"""On a GPU, `make test-cuda`: golden curves, traces of the released code, kernels, and that no step waits.

Golden curves and traces are float64 there too; sums are in another order, which training enlarges.
"""

import logging
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from backbone.adab2n.weighted import SampleWeights, weighted_batch_norm
from tests import test_golden, test_traces
from tests.helpers import make_spec, make_stream, run_config
from utils.data.augment import Crop, Flip
from utils.run.build import build_method, build_network
from utils.step import StepIndex

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICE = torch.device("cuda", 0)
SPEC = make_spec(n_tasks=2, n_classes=4, image_shape=(3, 16, 16), augmentation=(Crop(2), Flip()), train_sizes=(80, 80))
NORMS = ["bn", "ln", "gn", "cn", "adab2n", "bnt", "tbbn", "tbbn_weighted", "cma", "brn", "sn", "none", "bn_frozen"]


def steps_of(model: str, norm: str, **options):
    """One after the other, through two tasks."""
    config = run_config(model, norm, "resnet18", **options)
    stream = make_stream(SPEC).to(DEVICE)
    method = build_method(config, SPEC, build_network(config, SPEC, DEVICE), DEVICE)
    number = 0
    for task in range(2):
        method.grow()
        method.begin_task(task, stream)
        method.net.train()
        for batch in stream.batches(task, 0, 0):
            yield number, partial(method.step, batch, StepIndex(task, number))
            number += 1


@pytest.mark.parametrize("path", test_traces.PATHS, ids=lambda path: path.stem)
def test_steps_are_those_of_the_released_code(path):
    worst = test_traces.deviations(path, DEVICE)
    assert all(value <= test_traces.BOUND for value in worst.values()), worst


@pytest.mark.parametrize(("model", "norm"), test_golden.RUNS)
def test_curve(model, norm):
    test_golden.assert_is_golden(test_golden.curve(model, norm, DEVICE), model, norm)


def test_fused_passes_compute_what_the_plain_operations_do():
    draw = torch.Generator().manual_seed(0)
    a, g = (torch.randn(12, 40, 9, 7, generator=draw).to(DEVICE) for _ in range(2))
    weights = torch.rand(12, generator=draw).to(DEVICE) / 7
    found = []
    for way in ("fused", "reference"):
        leaves = [tensor.clone().requires_grad_() for tensor in (a, weights, *torch.ones(2, 40, device=DEVICE))]
        normalized = weighted_batch_norm(leaves[0], SampleWeights(leaves[1]), *leaves[2:], 1e-5, way)
        loss = (normalized.out * g).sum() + normalized.mu.square().sum() + normalized.sigma2.sum()
        found.append([normalized.out, *torch.autograd.grad(loss, leaves)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("model", ["er_ace", "derpp"])
def test_no_step_waits(model, norm):
    waits(steps_of(model, norm), first=24)  # in the second task, when all that is made once is there


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
@pytest.mark.parametrize("model", ["er_ace", "derpp"])
def test_no_compiled_step_waits_and_all_are_cuda_graphs(model, norm, monkeypatch):
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    torch._dynamo.reset()
    counters.clear()
    waits(steps_of(model, norm, compile=True), first=30)  # compiled, warmed up and captured
    assert not counters["graph_break"]
    assert counters["inductor"]["cudagraph_skips"] == 0


def waits(steps, first: int) -> None:
    """Raises where a step from the `first` on does."""
    for number, step in steps:
        torch.cuda.set_sync_debug_mode("error" if number >= first else "default")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("model", "norm"), [("er_ace", "adab2n"), ("derpp", "bn")])
def test_compiled_losses_are_those_without(model, norm, monkeypatch):
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    torch._dynamo.reset()
    losses = [
        [step().loss.item() for _, step in steps_of(model, norm, dtype="float64", lr=0.003, compile=way)]
        for way in (True, False)
    ]
    assert len(losses[0]) == 40
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-9)
