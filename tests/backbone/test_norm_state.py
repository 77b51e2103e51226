"""The state of norm layers is parameters and buffers: networks can be copied, frozen, run in part and compiled."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from backbone.network import Network
from backbone.norms import norm_factory
from tests.helpers import build_run, make_spec, make_stream, run_config
from tests.models.test_compiled_step import steps_of
from utils.config.registry import NORMS
from utils.step import StepIndex

SPEC = make_spec(n_tasks=3, n_classes=6, image_shape=(3, 8, 8), train_sizes=(12,) * 3)
ALL_NORMS = sorted(NORMS.entries())
FAMILY = ("adab2n", "bnt", "tbbn_weighted", "cma")
OTHERS = ("brn", "sn", "none", "bn_frozen", "tbbn")


def started(norm: str, model: str = "er", backbone: str = "resnet18", **options):
    config = run_config(model, norm, backbone, lr=0.003, **options)
    stream = make_stream(SPEC_OF.get(norm, SPEC))
    _, method = build_run(config, stream)
    return method, stream


# Instance normalization, of which `sn` has some, needs more than one value in the last stage's maps.
SPEC_OF = dict.fromkeys(("in", "sn"), make_spec(n_tasks=3, n_classes=6, image_shape=(3, 16, 16), train_sizes=(12,) * 3))


def assert_equal_networks(one: nn.Module, other: nn.Module) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("norm", ALL_NORMS)
@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_copy_goes_on_identically_and_shares_nothing(norm, when):
    """Before the first task, in the middle of the second, after it: copy, then train both on the same samples."""
    method, stream = started(norm)
    if when != "before":
        list(steps_of(method, stream, [0]))
    batches = list(stream.batches(1, 0, 0))
    if when == "within":
        method.grow()
        method.step(batches[0], StepIndex(1, 3))
    elif when == "after":
        list(steps_of(method, stream, [1], number=3))
    untouched = deepcopy(method.net)
    twin = deepcopy(method.net)
    assert_equal_networks(method.net, twin)
    losses = [learn(net.train(), batches[2]) for net in (method.net, twin)]
    assert losses[0] == losses[1]
    assert_equal_networks(method.net, twin)
    assert any(not torch.equal(a, b) for a, b in zip(twin.parameters(), untouched.parameters(), strict=True))
    for name, tensor in twin.state_dict().items():
        if tensor.numel():
            assert tensor.data_ptr() != method.net.state_dict()[name].data_ptr(), name


def learn(net: Network, batch) -> float:
    net.zero_grad()  # a copy has no gradients
    inputs = torch.sin(batch.images.float())
    tasks = batch.tasks if len(getattr(net.norms, "psi", [1, 1])) > 1 else None
    output = net.output(inputs, tasks, penalized=net.norms.penalty_weight(1, True) > 0)
    loss = nn.functional.cross_entropy(output.logits, batch.labels)
    if output.norms.penalty is not None:
        loss = loss + output.norms.penalty
    loss.backward()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
    return loss.item()


class TwoWays(Network):
    """A network that leaves out its second norm when told to."""

    def __init__(self, factory):
        super().__init__(factory)
        self.norm1, self.norm2, self.norm3 = factory(3), factory(3), factory(3)
        self.classifier = nn.Linear(3, 2)
        self.skips = False

    def body(self, x):
        x = self.norm1(x)
        x = x if self.skips else self.norm2(x)
        return self.norm3(x).mean((2, 3)), ()


@pytest.mark.parametrize("norm", FAMILY)
def test_a_layer_that_does_not_run_keeps_its_state(norm):
    net = TwoWays(norm_factory(norm)).double().train()
    net.begin_task(n_classes=2)
    net.begin_task(n_classes=2)
    x, tasks = torch.randn(6, 3, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 1])
    net.skips = True
    before = {name: tensor.clone() for name, tensor in net.norm2.state_dict().items()}
    output = net.output(x, tasks, penalized=True)
    assert output.norms.layers == (0, 2)
    (output.logits.sum() + (0 if output.norms.penalty is None else output.norms.penalty)).backward()
    assert {name: tensor.tolist() for name, tensor in net.norm2.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in before.items()
    }
    assert net.norm1.num_batches_tracked == net.norm3.num_batches_tracked == 1
    net.skips = False
    assert net.output(x, tasks).norms.layers == (0, 1, 2)
    assert (net.norm1.num_batches_tracked, net.norm2.num_batches_tracked) == (2, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_momentum_is_double_precision_whatever_the_network_is(dtype):
    net = TwoWays(norm_factory("adab2n")).to(dtype).float().to(dtype)
    eta = 0.1**0.7
    assert net.norm1.eta.dtype == torch.float64
    assert net.norm1.eta.item() == eta
    net = net.float().train()
    for _ in range(5):
        net.output(torch.randn(4, 3, 2, 2))
        eta = eta / (eta + 0.9**0.7)
        assert net.norm1.eta.item() == eta
    assert deepcopy(net).norm1.eta.item() == eta
    fresh = TwoWays(norm_factory("adab2n"))
    fresh.load_state_dict(net.state_dict())
    assert fresh.norm1.eta.item() == eta
    assert fresh.norm1.num_batches_tracked.item() == 5


@pytest.mark.parametrize("norm", ["bn", "cn", "gn", *FAMILY, *OTHERS])
def test_steps_of_a_compiled_network_do_not_compile_again(norm):
    """Momentum and counters change with every forward; they are tensors, so that one graph serves all."""
    options = {"norm_impl": "reference"} if norm in FAMILY else {"groups": 3} if norm in ("gn", "cn") else {}
    torch.manual_seed(0)
    net = TwoWays(norm_factory(norm, **options)).train()
    eager = deepcopy(net)
    for each in (net, eager):
        each.begin_task(n_classes=2)
        each.begin_task(n_classes=2)
    x, tasks = torch.randn(6, 3, 4, 4), torch.tensor([0, 1, 1, 0, 1, 1])
    torch._dynamo.reset()
    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x, tasks: net.output(x, tasks, penalized=True), backend=counted, fullgraph=True)
    counts = []
    for _ in range(5):
        actual, expected = compiled(x, tasks), eager.output(x, tasks, penalized=True)
        torch.testing.assert_close(actual.logits, expected.logits)
        counts.append(counted.frame_count)
    assert counts[0] >= 1
    assert set(counts) == {counts[0]}
    assert_close_networks(net, eager)


def assert_close_networks(one: nn.Module, other: nn.Module) -> None:
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, other.state_dict()[name], msg=name)
