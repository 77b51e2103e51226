"""What a step asks of a device, seen without one: tensors of the device `meta` take part in every operation and have
no values.

An operation that would have to wait for a value (`item`, a mask as an index, a condition on a tensor) raises there, and
every copy from the host is a dispatched operation that can be counted. The code treats it as it treats CUDA: as a
device that is not the host.
"""

from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers import make_spec, make_stream, run_config
from utils.data.augment import Crop, Flip
from utils.run.build import build_method, build_network
from utils.run.eval_statistics import eval_statistics_applied
from utils.run.evaluation import count_correct
from utils.step import StepIndex

DEVICE = torch.device("meta")
SPEC = make_spec(n_tasks=3, n_classes=6, image_shape=(3, 16, 16), augmentation=(Crop(2), Flip()), train_sizes=(12,) * 3)


class Copies(TorchDispatchMode):
    """Counts copies from the host to the device; one in the other direction would raise."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source = args[1] if function is torch.ops.aten.copy_.default else args[0]
            self.count += (source.device.type, result.device.type) == ("cpu", "meta")
        return result


@pytest.fixture(autouse=True)
def no_pinning(monkeypatch):
    """It asks the driver; that the copy itself is asynchronous is `to_device`'s part."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)


@contextmanager
def no_blocking_copies():
    """Values of the host as a new tensor on the device: a copy that waits, and that no operation shows."""

    def refusing(make):
        def made(*arguments, device=None, **keywords):
            assert device is None or torch.device(device).type == "cpu", "a tensor from values of the host"
            return make(*arguments, device=device, **keywords)

        return made

    with pytest.MonkeyPatch.context() as patch:
        for name in ("tensor", "as_tensor"):
            patch.setattr(torch, name, refusing(getattr(torch, name)))
        yield


def in_second_task(model: str, norm: str, **options):
    """(method, stream) of a run that has trained one batch of its first task and begun the second."""
    impl = {"norm_impl": "fused"} if norm in ("adab2n", "bnt", "tbbn_weighted", "cma") else {}
    config = run_config(model, norm, "resnet18", **impl, **options)
    stream = make_stream(SPEC).to(DEVICE)
    method = build_method(config, SPEC, build_network(config, SPEC, DEVICE), DEVICE)
    method.grow()
    method.begin_task(0, stream)
    method.net.train()
    method.step(next(stream.batches(0, 0, 0)), StepIndex(0, 0))
    method.grow()
    return method, stream


def copies_of_a_step(model: str, norm: str, **options) -> int:
    method, stream = in_second_task(model, norm, **options)
    batch = next(stream.batches(1, 0, 0))  # the order of an epoch is one copy for all its batches
    method.step(batch, StepIndex(1, 1))  # once before, so that constants are on the device
    with Copies() as copies, no_blocking_copies():
        step = method.step(batch, StepIndex(1, 2))
    assert step.loss.device == DEVICE
    return copies.count


@pytest.mark.parametrize(
    "norm", ["bn", "ln", "gn", "cn", "adab2n", "bnt", "tbbn", "tbbn_weighted", "cma", "brn", "sn", "none", "bn_frozen"]
)
@pytest.mark.parametrize("model", ["er_ace", "derpp"])
def test_a_step_waits_for_nothing_and_copies_twice(model, norm):
    """One copy for all that the host decides before the forward, one for where the buffer puts the batch."""
    assert copies_of_a_step(model, norm) == 2


def test_nor_do_the_splits_of_tbbn():
    assert copies_of_a_step("er_ace", "tbbn", minibatch_size=2) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"fidelity": "paper"},
        {"replay_forward": "separate"},
        {"optim_mom": 0.9},
        {"balance_groups": "class"},
        {"balance_groups": "source"},
        {"balance_groups": "none"},
        {"current_share": "1/3", "balance_replay": True},
    ],
)
def test_options_do_not_change_that(options):
    assert copies_of_a_step("derpp", "adab2n", **options) == 2


@pytest.mark.parametrize(
    ("model", "copies"),
    [("sgd", 1), ("er", 2), ("der", 2), ("agem_r", 2), ("ewc_on", 1), ("icarl", 1), ("er_ace_lider", 4)],
)
@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_copies_of_the_other_methods(model, norm, copies):
    """LiDER's two more hold the starts of its power iterations."""
    assert copies_of_a_step(model, norm) == copies


@pytest.mark.parametrize("which", ["running", "buffer", "batch"])
def test_an_evaluation_waits_for_nothing_until_its_end(which):
    """Right answers, NaN scores and confusions of classes are counted where the network is."""
    method, stream = in_second_task("derpp", "adab2n", eval_statistics=which)
    method.net.eval()
    confusion = torch.zeros(6, 6, dtype=torch.int64, device=DEVICE)
    with torch.no_grad(), eval_statistics_applied(method):
        right = torch.stack([count_correct(method, stream, task, confusion) for task in range(3)])
    assert (right.shape, right.device) == ((3, 3), DEVICE)
