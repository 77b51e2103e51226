"""Networks: sizes, features, and that the seed alone decides their weights."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from backbone.norms import norm_factory
from backbone.resnet18 import ResNet18
from tests.helpers import CPU, make_spec, run_config
from utils.config.registry import NORMS
from utils.run.build import build_network


def small_resnet(size: int) -> ResNet18:
    return ResNet18((3, size, size), 10, norm_factory("bn"), num_filters=4)


def images(size: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_resnet18_is_the_usual_one_for_cifar():
    net = ResNet18((3, 32, 32), 10, norm_factory("bn"), num_filters=64)
    assert sum(p.numel() for p in net.parameters()) == 11_173_962
    assert sum(isinstance(module, nn.Conv2d) for module in net.modules()) == 20


def test_features_are_taken_before_the_relu():
    net = small_resnet(16)
    given, returned = {}, {}

    def record(module, inputs, output):
        given[module], returned[module] = inputs[0], output

    sources = [net.norm1, *(stage[1] for stage in net.stages)]
    for module in (*sources, *(stage[0] for stage in net.stages)):
        module.register_forward_hook(record)
    output = net.output(images(16))
    features = output.features
    for feature, source in zip(features, sources, strict=True):
        assert feature is returned[source]
        assert (feature < 0).float().mean() > 0.05
    for stage, feature in zip(net.stages, features, strict=False):
        assert torch.equal(given[stage[0]], F.relu(feature))
    assert torch.equal(output.embedding, F.relu(features[4]).mean((2, 3)))
    assert torch.equal(output.logits, net.classifier(output.embedding))


@pytest.mark.parametrize("size", [(32, 32), (33, 33), (84, 84), (129, 129), (224, 224), (16, 41)])
def test_norms_are_built_for_the_size_they_see(size):
    """A layer norm has the shape of its map, and refuses another one."""
    net = ResNet18((3, *size), 10, norm_factory("ln"), num_filters=4)
    assert net(torch.randn(2, 3, *size)).shape == (2, 10)
    channels = [layer.normalized_shape[0] for layer in net.modules() if isinstance(layer, nn.LayerNorm)]
    assert channels == [4] * 5 + [8] * 5 + [16] * 5 + [32] * 5


def linear_weights(net: nn.Module) -> list[torch.Tensor]:
    return [p for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear) for p in m.parameters()]


@pytest.mark.parametrize("norm", NORMS.names())
def test_the_seed_alone_decides_the_weights(norm):
    spec = make_spec(image_shape=(3, 16, 16))
    before = torch.get_rng_state()
    net, with_bn, other_seed, again = (
        build_network(run_config(norm=name, backbone="resnet18", seed=seed), spec, CPU)
        for name, seed in ((norm, 3), ("bn", 3), (norm, 4), (norm, 3))
    )
    assert torch.equal(torch.get_rng_state(), before)
    weights = linear_weights(net)
    assert len(weights) == 22
    for weight, same, other in zip(weights, linear_weights(with_bn), linear_weights(other_seed), strict=True):
        assert torch.equal(weight, same)
        assert not torch.equal(weight, other)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
