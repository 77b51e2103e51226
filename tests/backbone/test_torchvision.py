"""`--backbone torchvision`: its networks with our norms, and with BN exactly its own."""

import shlex
from collections import Counter

import pytest
import torch
from conftest import call
from torch import nn
from torchvision import models
from torchvision.ops import StochasticDepth

from backbone.norms import NormFactory
from tests.helpers import CPU, build_run, make_spec, make_stream, weights_of
from tests.models.cut_off import Steps, assert_same, finished, killed, watched_by
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.run.build import build_network
from utils.step import StepIndex

ARCHS = ["resnet34", "mobilenet_v2", "regnet_y_400mf", "resnet50"]
NORMS = ["bn", "ln", "in", "gn", "cn", "adab2n", "brn", "sn", "none", "bn_frozen"]
GROUPS = {"gn": {"groups": 8}, "cn": {"groups": 8}}  # 32 do not divide the channels of all of them
COLOUR = make_spec(image_shape=(3, 64, 64))  # with 64 pixels the last map has more than one


def config_of(arch, norm="bn", **flags):
    selected = {"model": "er", "dataset": "seq-cifar10", "backbone": "torchvision", "arch": arch, "norm": norm}
    small = {"buffer_size": 12, "batch_size": 3, "minibatch_size": 3, "device": "cpu", "lr": 0.01}
    return resolve(selected | small | GROUPS.get(norm, {}) | flags)


def torchvisions_own(arch):
    return models.get_model(arch, num_classes=COLOUR.n_classes)


def count(net, kind):
    return sum(isinstance(layer, kind) for layer in net.modules())


@pytest.fixture(scope="module")
def norm_layers():
    """Return the number of BatchNorm layers in torchvision's own networks."""
    return {arch: count(torchvisions_own(arch), nn.BatchNorm2d) for arch in ARCHS}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("arch", ARCHS)
def test_builds_and_trains_a_step_with_every_norm(arch, norm, norm_layers, monkeypatch):
    made, original = [], NormFactory.__call__
    monkeypatch.setattr(NormFactory, "__call__", lambda self, *a, **k: made.append(original(self, *a, **k)) or made[-1])
    stream = make_stream(COLOUR, batch_size=2)
    net, method = build_run(config_of(arch, norm), stream)
    assert len(made) == norm_layers[arch]
    assert {id(layer) for layer in made} <= {id(layer) for layer in net.modules()}
    if norm != "bn":
        assert count(net, nn.BatchNorm2d) == 0

    used = Counter()
    for layer in made:
        layer.register_forward_hook(lambda module, *_: used.update([id(module)]))
    before, drawn_from = weights_of(net), torch.get_rng_state()
    method.grow()
    net.train()
    step = method.step(next(stream.batches(0, 0, 0)), StepIndex(0, 0))
    assert torch.isfinite(step.loss)
    assert set(used.values()) == {1}
    assert len(used) == norm_layers[arch]
    assert torch.equal(torch.get_rng_state(), drawn_from)
    trained = dict(net.named_parameters())
    changed = [name for name in trained if name in before and not torch.equal(trained[name], before[name])]
    assert {"classifier.weight", "classifier.bias"} <= set(changed)
    first_convolution = next(name for name in trained if name.startswith("trunk."))
    if norm == "none":  # what arrives there may be too small to change a weight
        assert trained[first_convolution].grad.any()
    else:
        assert first_convolution in changed
    net.eval()
    with torch.no_grad():
        assert net(torch.zeros(2, 3, 64, 64)).isfinite().all()


def with_weights_of(ours, arch):
    """Return torchvision's own network with the weights of ours, and without dropout."""
    theirs = torchvisions_own(arch).double()
    missing, unexpected = theirs.load_state_dict(ours.trunk.state_dict(), strict=False)
    assert unexpected == []
    linear = [layer for layer in theirs.modules() if isinstance(layer, nn.Linear)][-1]
    linear.load_state_dict(ours.classifier.state_dict())
    assert len(missing) == 2  # the weight and bias of the head
    for layer in theirs.modules():
        if isinstance(layer, nn.Dropout | StochasticDepth):
            layer.p = 0.0
    return theirs


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("arch", ARCHS)
def test_with_bn_it_is_torchvisions_own(arch):
    ours = build_network(config_of(arch, dtype="float64"), COLOUR, CPU)
    theirs = with_weights_of(ours, arch)
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64, generator=draw)

    def evaluated():
        with torch.no_grad():
            exactly(ours.eval()(images), theirs.eval()(images))

    evaluated()  # with the statistics that a network starts with
    mine, own = ours.train()(images), theirs.train()(images)
    assert mine.shape == (4, COLOUR.n_classes)
    exactly(mine, own)
    for logits in (mine, own):
        nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
    gradients = dict(theirs.named_parameters())
    for name, parameter in ours.trunk.named_parameters():
        exactly(parameter.grad, gradients[name].grad)
    statistics = dict(theirs.named_buffers())
    for name, buffer in ours.trunk.named_buffers():
        exactly(buffer, statistics[name])
    evaluated()  # with those that have moved


@pytest.mark.parametrize(("arch", "kind"), [("efficientnet_b0", StochasticDepth), ("mobilenet_v3_small", nn.Dropout)])
def test_dropout_and_stochastic_depth_are_off(arch, kind):
    own = torchvisions_own(arch)
    assert any(isinstance(layer, kind) and layer.p > 0 for layer in own.modules())
    net = build_network(config_of(arch), COLOUR, CPU).train()
    assert {layer.p for layer in net.modules() if isinstance(layer, nn.Dropout | StochasticDepth)} <= {0.0}
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    with torch.no_grad():
        assert torch.equal(net(images), net(images))
    assert torch.equal(torch.get_rng_state(), before)


UNSUITABLE = {
    "vgg11": "norm_layer",
    "swin_t": "not suitable",
    "vit_b_16": "not suitable",
    "convnext_tiny": "LayerNorm",
    "resnet35": "did you mean resnet",
    "nonsense": "no such network",
    "": "no such network",
}


@pytest.mark.parametrize("arch", UNSUITABLE)
@pytest.mark.parametrize("flags", [[], ["--dry_run"]])
def test_unsuitable_network_is_refused_in_one_line(run_main, results, arch, flags):
    ended = run_main("--model", "er", "--dataset", "seq-digits", "--backbone", "torchvision", "--arch", arch, *flags)
    assert (ended.code, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: --arch {arch}")
    assert UNSUITABLE[arch] in line
    assert not results.exists()


@pytest.mark.parametrize(
    ("norm", "model", "keyword"), [("in", "er", "single value"), ("bn", "derpp_lider", "feature maps")]
)
def test_norm_or_method_that_does_not_fit_the_maps_is_refused(norm, model, keyword):
    with pytest.raises(UsageError, match=keyword):
        build_network(config_of("resnet34", norm, model=model), make_spec(image_shape=(3, 8, 8)), CPU)


RUN = shlex.split(
    "--model derpp --norm adab2n --dataset seq-digits --backbone torchvision --arch resnet18 --debug_mode "
    "--batch_size 6 --n_tasks 2 --save_model --checkpoint_every 2"
)


def test_resumed_run_is_identical(tmp_path):
    expected = finished(tmp_path / "straight", *RUN)
    assert expected["record"]["identity"]["arch"] == "resnet18"
    with watched_by(Steps(4)):
        killed(tmp_path / "killed", *RUN)
    assert_same(finished(tmp_path / "killed", *RUN, resumed=3), expected)  # after the end of the first task
    (path,) = tmp_path.glob("killed/runs/*/model.safetensors")
    assert call(["--eval_only", str(path)]).code == 0
