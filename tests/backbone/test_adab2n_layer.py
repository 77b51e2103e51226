"""The layer `AdaB2N` by itself: the same numbers as the framework's, which computes all layers of a network at once."""

import doctest

import pytest
import torch

from backbone.adab2n import adab2n
from backbone.adab2n.adab2n import AdaB2N, tasks
from backbone.norms import norm_factory
from tests.helpers import assert_close

BATCHES = [[0] * 6, [0, 1, 1, 0, 1, 1], [2, 0, 2, 2, 1, 2], None]  # tasks of the samples; None: not known


@pytest.mark.parametrize("absent_tasks", ["counted", "ignored"])
@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 4, 3), (6, 5, 2, 3, 2)], ids=["1d", "2d", "3d"])
def test_layer_alone_agrees_with_the_layer_of_a_network(absent_tasks, shape):
    factory = norm_factory("adab2n", kappa=0.4, absent_tasks=absent_tasks)
    twin, shared = factory(5).double(), factory.shared.double()
    layer = AdaB2N(5, kappa=0.4, absent_tasks=absent_tasks).double()
    layer.next_eta = layer.next_eta.double()
    for number, ids in enumerate(BATCHES):
        seen = 3 if ids is None else max(ids) + 1
        while len(shared.psi) < seen:
            shared.begin_task(n_classes=2)
        layer.grow(seen)
        for own, others in zip(layer.psi, shared.psi, strict=True):
            own.data.fill_(0.3 * (number + 1))
            others.data.fill_(0.3 * (number + 1))
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(number)) + 2
        groups = None if ids is None else torch.tensor(ids)
        with tasks(groups):
            out = layer(x)
        with shared.forward_pass(groups, penalized=True) as this:
            expected = twin(x)
        assert_close(out, expected.detach())
        assert_close(layer.penalty, this.report.penalty.detach())
        (out.square().sum() + layer.penalty).backward()
        (expected.square().sum() + this.report.penalty).backward()
        assert_close(layer.weight.grad, twin.weight.grad)
        if ids is not None:
            assert_close(torch.stack([psi.grad for psi in layer.psi]), torch.cat([psi.grad for psi in shared.psi]))
        assert_close(layer.running_mean, twin.running_mean)
        assert_close(layer.running_var, twin.running_var)
        layer.zero_grad()
        twin.zero_grad()
        shared.zero_grad()
    assert_close(layer.eval()(x), twin.eval()(x).detach())


def test_examples_in_docstrings_run():
    assert doctest.testmod(adab2n).failed == 0
    assert doctest.testmod(adab2n).attempted > 0
