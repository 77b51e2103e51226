"""`--compile`: a step as one graph. Counts and numbers here, with backends that generate no code; what Inductor makes
of such graphs is for `make test-compile` (tests/compiled)."""

import logging

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from models import compiled_step
from tests.helpers import build_run, make_spec, make_stream, run_config
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.step import StepIndex

SPEC = make_spec(n_tasks=3, n_classes=6, train_sizes=(42,) * 3)  # ten full batches a task, and one of two images


@pytest.fixture
def graphs(monkeypatch):
    """Counts the graphs that a test makes; `aot_eager` or `eager` computes them."""
    torch._dynamo.reset()
    counters.clear()
    # pytest listens to all that is logged, and so torch writes down all that it does.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])

    def with_backend(name: str) -> CompileCounterWithBackend:
        counted = CompileCounterWithBackend(name)
        monkeypatch.setattr(compiled_step, "BACKEND", counted)
        return counted

    return with_backend


def started(model: str, norm: str, spec=SPEC, **options):
    stream = make_stream(spec)
    return build_run(run_config(model, norm, **options), stream)[1], stream


def steps_of(method, stream, tasks, epochs: int = 1, number: int = 0):
    """One after the other, as the loop asks for them."""
    for task in tasks:
        method.grow()
        method.begin_task(task, stream)
        method.net.train()
        for epoch in range(epochs):
            for batch in stream.batches(task, epoch, 0):
                yield method.step(batch, StepIndex(task, number, epoch))
                number += 1


@pytest.mark.parametrize(
    ("model", "norm", "options", "most"),
    [
        ("derpp", "bn", {}, 1),
        ("derpp", "gn", {}, 1),
        ("derpp", "bn", {"classifier": "seen"}, 1),
        ("er_ace", "cn", {}, 2),  # without replay, and with it
        ("derpp", "adab2n", {}, 2),  # psi of one group, and of any other number
        ("derpp", "adab2n", {"balance_groups": "class"}, 1),
        ("derpp", "adab2n", {"ada_t0": 1}, 2),
        ("er_ace", "adab2n", {}, 2),
        ("er", "cma", {}, 1),
        ("sgd", "bn_frozen", {}, 3),  # one for every task
        ("er", "tbbn", {"minibatch_size": 2}, 3),  # likewise
        ("er", "bn", {"current_share": "1/T"}, 3),
    ],
)
def test_graphs_of_a_run_are_bounded(graphs, model, norm, options, most):
    """Whatever the number of tasks, the draws of the first steps and the last batches, which are smaller."""
    counted = graphs("eager")
    method, stream = started(model, norm, compile=True, **options)
    graphs_so_far = [counted.frame_count for _ in steps_of(method, stream, [0, 1, 2])]
    assert len(graphs_so_far) == 33
    assert graphs_so_far[0] == (model == "sgd")  # the first step of a run has no draw
    assert graphs_so_far[-1] == most
    assert not counters["graph_break"]


@pytest.mark.parametrize(
    ("model", "norm", "options"),
    [
        ("er_ace", "bn", {}),
        ("derpp", "gn", {"minibatch_size": 6, "classifier": "seen"}),
        ("derpp", "adab2n", {"lambd": 1.0, "kappa": 0.3}),
        ("er", "adab2n", {"fidelity": "paper", "lambd": 0.01}),
        ("er_ace", "tbbn", {"minibatch_size": 2}),  # two splits in later tasks
        ("er_ace", "brn", {"brn_warmup": 0}),  # whose gradient sees the running statistics, as the penalty's does
    ],
)
def test_the_numbers_are_those_of_the_step_without(graphs, model, norm, options):
    """Losses and the whole state, momentum of the optimizer included, through three tasks."""
    graphs("aot_eager")
    runs = [started(model, norm, dtype="float64", optim_mom=0.5, compile=way, **options) for way in (True, False)]
    losses = [[step.loss.item() for step in steps_of(*run, [0, 1, 2])] for run in runs]
    assert len(losses[0]) == 33
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-9)
    states = [run[0].net.state_dict() for run in runs]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=0, atol=1e-9, msg=name)
    for mine, theirs in zip(*(run[0].optimizer.state.values() for run in runs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


def count_in_nested_tensors(method, outputs):
    """A factor of the loss, so that the backward pass needs it; a pass that computes it anew must not count again."""
    method.seen["parts"][0].add_(1)
    method.seen["mean"].mul_(0.9).add_(outputs["current"].logits.detach().mean(0))
    return (outputs["current"].logits - method.seen["mean"]).square().mean() / method.seen["parts"][0]


def count_in_an_attribute(method, outputs):
    method.count += 1
    return outputs["current"].logits.mean() / method.count


def replace_a_tensor(method, outputs):
    method.seen["mean"] = outputs["current"].logits.detach().mean(0)
    return outputs["current"].logits.mean()


def read_the_optimizer(method, outputs):
    return outputs["current"].logits.mean() * method.optimizer.param_groups[0]["lr"]


def branch_on_a_value(method, outputs):
    return outputs["current"].logits.mean() * (1 if outputs["current"].logits.sum() > 0 else 2)


def with_state(monkeypatch, own_term, **options):
    """`er` with another term of the loss, which has state in attributes of the method."""
    method, stream = started("er", "bn", dtype="float64", **options)
    plain_loss = type(method).loss
    method.count = 0
    method.seen = {"mean": torch.zeros(6, dtype=torch.float64), "parts": [torch.tensor(0), "text"]}
    method.seen["running"] = [buffer for name, buffer in method.net.named_buffers() if "running" in name]
    with monkeypatch.context() as patch:
        patch.setattr(type(method), "loss", lambda *a: plain_loss(*a) | {"own": own_term(a[0], a[2])})
        for step in steps_of(method, stream, [0, 1]):
            for group in method.optimizer.param_groups:
                group["lr"] *= 0.9
            yield step.loss.item()
    yield method.seen


def test_nested_state_of_a_method_is_as_without(graphs, monkeypatch):
    counted = graphs("aot_eager")
    (*losses, seen), (*expected, expected_seen) = (
        list(with_state(monkeypatch, count_in_nested_tensors, compile=way)) for way in (True, False)
    )
    assert losses == pytest.approx(expected, rel=0, abs=1e-9)
    for name in ("mean", "running"):
        torch.testing.assert_close(seen[name], expected_seen[name], rtol=0, atol=1e-9)
    assert (seen["parts"], counted.frame_count) == (expected_seen["parts"], 1)


@pytest.mark.parametrize(
    ("own_term", "keyword"),
    [
        (count_in_an_attribute, "self.count"),
        (replace_a_tensor, "self.seen"),
        (read_the_optimizer, "every step"),
        (branch_on_a_value, "one graph"),
    ],
)
def test_a_loss_that_would_need_many_graphs_is_refused_in_one_line(graphs, monkeypatch, own_term, keyword):
    graphs("eager")
    with pytest.raises(UsageError, match=keyword) as refusal:
        list(with_state(monkeypatch, own_term, compile=True))
    assert "\n" not in str(refusal.value)


def test_only_full_steps_are_compiled(graphs):
    """The first has no draw, those after it small ones, the last batch of a task is small: by the run's state alone."""
    graphs("eager")
    method, stream = started("derpp", "bn", minibatch_size=10, compile=True)
    by_graph, compute = [], method.compiled.compute
    method.compiled.compute = lambda *arguments: by_graph.append(None) or compute(*arguments)
    done = [len(by_graph) for _ in steps_of(method, stream, [0, 1])]
    assert done == [0, 0, 0, *range(1, 8), 7, *range(8, 18), 17]


def test_a_resumed_run_comes_to_the_same_bits(graphs):
    graphs("eager")
    (whole, stream), (before, _), (after, _) = (started("er_ace", "bn", compile=True) for _ in range(3))
    expected = [step.loss.item() for step in steps_of(whole, stream, [0, 1])]
    losses = [step.loss.item() for step in steps_of(before, stream, [0])]
    after.grow()
    for part in ("net", "optimizer", "buffer"):
        getattr(after, part).load_state_dict(getattr(before, part).state_dict())
    after.load_state_dict(before.state_dict())
    assert losses + [step.loss.item() for step in steps_of(after, stream, [1], number=len(losses))] == expected


def test_a_record_says_so_and_the_run_is_the_same_run(graphs, run_main):
    counted = graphs("eager")
    flags = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--n_iters", "4"]
    compiled = run_main(*flags, "--compile")
    (condition,) = compiled.record["conditions"]
    assert (condition["compile"], counted.frame_count) == (True, 2)
    plain = run_main(*flags, "--rerun")
    assert (plain.folder, plain.record["conditions"][0]["compile"]) == (compiled.folder, False)


def test_a_machine_without_a_compiler_is_told_before_the_run(monkeypatch):
    def none():
        raise RuntimeError("no g++\nfound")

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", none)
    with pytest.raises(UsageError, match=r"no g\+\+"):
        started("er", "bn", compile=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "agem_r"}, "--model agem_r"),
        ({"model": "er_ace_lider"}, "--model er_ace_lider"),
        ({"model": "gdumb"}, "--model gdumb"),
        ({"batch_size": 1}, "batches of at least 2"),
        ({"probe": ("statistics",)}, "--probe"),
    ],
)
def test_what_cannot_be_one_graph_is_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        resolve({"model": "er", "dataset": "seq-digits", "compile": True} | options)
