"""What Inductor makes of a step: minutes of compilation, so it has a target of its own, `make test-compile`.

The traces of the released code once more, all with the graphs of `aot_eager` and two of them with generated code;
float64 steps of a convolutional network against those without `--compile`; bfloat16 in a graph; and the code that
Inductor generates for an A100.
"""

import logging

import pytest
import torch

from models import compiled_step
from scripts.bench.cuda_code import compile_kernels, cuda_code, launches
from tests import released_inputs as released
from tests import test_traces
from tests.helpers import build_run, make_spec, make_stream, run_config
from tests.models.test_compiled_step import steps_of
from tests.scripts import test_bench

FULL = 9  # of fifteen steps: not the first, nor the last of each of five tasks, which is smaller
GENERATED = ("er_ace-bn", "derpp-adab2n")
SPEC = make_spec(n_tasks=2, n_classes=4, image_shape=(3, 16, 16), train_sizes=(100, 100))


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    return lambda name: monkeypatch.setattr(compiled_step, "BACKEND", name)


def compiled_deviations(path, monkeypatch) -> tuple[dict[str, float], int]:
    """How far a trace's numbers are off, and how many of its steps a graph computed."""
    steps, replayed_run = [], test_traces.replayed_run

    def compiled_run(trace, device):
        method = replayed_run(trace | {"compile": True, "batch_size": max(released.SIZES)}, device)
        compute = method.compiled.compute
        method.compiled.compute = lambda *arguments: steps.append(None) or compute(*arguments)
        return method

    monkeypatch.setattr(test_traces, "replayed_run", compiled_run)
    return test_traces.deviations(path), len(steps)


@pytest.mark.parametrize("path", test_traces.PATHS, ids=lambda path: path.stem)
def test_graphs_follow_the_released_code(path, backend, monkeypatch):
    backend("aot_eager")
    worst, steps = compiled_deviations(path, monkeypatch)
    assert all(value <= test_traces.BOUND for value in worst.values()), worst
    assert steps == FULL


@pytest.mark.parametrize("name", GENERATED)
def test_generated_code_follows_the_released_code(name, backend, monkeypatch):
    backend("inductor")
    worst, steps = compiled_deviations(test_traces.FOLDER / f"{name}.json", monkeypatch)
    assert all(value <= test_traces.BOUND for value in worst.values()), worst
    assert steps == FULL


@pytest.mark.parametrize(
    ("model", "norm", "options"),
    [
        ("derpp", "bn", {}),
        ("er_ace", "adab2n", {}),
        ("er_ace", "adab2n", {"variance": "within"}),
        ("er", "bnt", {}),
        ("er", "cma", {}),
        ("er", "tbbn_weighted", {}),
        ("er", "tbbn", {}),
    ],
)
def test_fifty_steps_of_generated_code(model, norm, options, backend):
    backend("inductor")
    losses = []
    for way in (True, False):
        stream = make_stream(SPEC)
        config = run_config(model, norm, "resnet18", dtype="float64", compile=way, lr=0.003, **options)
        _, method = build_run(config, stream)
        losses.append([step.loss.item() for step in steps_of(method, stream, [0, 1])])
    assert len(losses[0]) == 50
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-9)


def test_cuda_code_compiles_and_launches_little_more_than_bn():
    """For an A100, without a GPU: AdaB2N launches at most 1.5 times what BN launches in the same joint forward."""
    total = {}
    for norm in ("bn", "adab2n"):
        code = cuda_code(model="derpp", norm=norm, num_filters=64, replay_forward="joint")
        assert "tl.atomic" not in "".join(code)  # sums in any order would make a run irreproducible
        assert compile_kernels(code) > 40
        total[norm] = sum(launches(code).values())
    assert 100 < total["bn"] < total["adab2n"] <= 1.5 * total["bn"]


def test_half_precision_in_a_graph(backend):
    """Statistics and penalty are of float32; the loss goes down as without."""
    backend("inductor")
    stream, losses = make_stream(SPEC), {}
    for way in (True, False):
        config = run_config("er_ace", "adab2n", compile=way, amp="bfloat16", lambd=1.0)
        _, method = build_run(config, stream)
        steps = list(steps_of(method, stream, [0, 1]))
        losses[way] = [step.loss.item() for step in steps]
        assert {step.loss.dtype for step in steps} == {method.net.norm1.running_mean.dtype} == {torch.float32}
    assert losses[True][:5] == pytest.approx(losses[False][:5], rel=0.02)


def test_benchmark_at_a_tiny_size(backend, tmp_path, capsys):
    backend("eager")
    test_bench.check_subject("compile", tmp_path, capsys)
