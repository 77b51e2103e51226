"""The layers of the package `adab2n`, used without the framework."""

import copy
import doctest
import io

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import backbone.adab2n as adab2n
from backbone.adab2n import adab2n as algorithm
from backbone.adab2n import continual_norm, conversion, statistics
from backbone.adab2n.tbbn import number_of_splits

SHAPES = {1: (6, 5, 7), 2: (6, 5, 4, 3), 3: (6, 5, 2, 3, 2)}
LAYERS = {1: adab2n.AdaB2N1d, 2: adab2n.AdaB2N2d, 3: adab2n.AdaB2N3d}
PLAIN = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
IDS = [2, 0, 2, 2, 1, 2]


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 2


def small_net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_one_task_and_kappa_one_is_batch_norm(dimensions):
    plain, layer = PLAIN[dimensions](5).double(), LAYERS[dimensions](5, kappa=1.0).double()
    biased = torch.ones(5, dtype=torch.float64)
    for step in range(3):
        x, twin = random(*SHAPES[dimensions], seed=step).requires_grad_(), random(*SHAPES[dimensions], seed=step)
        twin.requires_grad_()
        with adab2n.tasks([0] * 6):
            out = layer(x)
        expected = plain(twin)
        out.square().sum().backward()
        expected.square().sum().backward()
        over = [0, *range(2, x.dim())]
        biased = biased.lerp(twin.detach().var(over, correction=0), 0.1)
        for ours, theirs in (
            (out, expected), (x.grad, twin.grad), (layer.weight.grad, plain.weight.grad),
            (layer.bias.grad, plain.bias.grad), (layer.running_mean, plain.running_mean), (layer.running_var, biased),
        ):  # fmt: skip
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_statistics_and_weights_by_hand():
    layer = adab2n.AdaB2N1d(1, kappa=1.0, affine=False).double()
    x = torch.tensor([[1.0], [3.0], [8.0]], dtype=torch.float64)
    with adab2n.tasks([0, 0, 2]):  # phi = 1 for three tasks, of which the second is absent: sum phi + N = 6
        out = layer(x)
        assert layer.task_weights.tolist() == pytest.approx([3 / 6, 1 / 6, 2 / 6])
    mu = 1 / 4 * (1 + 3) + 1 / 3 * 8
    sigma2 = 1 / 4 * ((1 - mu) ** 2 + (3 - mu) ** 2) + 1 / 3 * (8 - mu) ** 2
    assert out.flatten().tolist() == pytest.approx([(a - mu) / (sigma2 + 1e-5) ** 0.5 for a in (1, 3, 8)])
    assert layer.running_mean.item() == pytest.approx(0.1 * mu)
    penalty = (mu - 0.1 * mu) ** 2 + (sigma2 - (0.9 + 0.1 * sigma2)) ** 2
    assert layer.penalty().item() == pytest.approx(penalty)


@pytest.mark.parametrize("kappa", [0.0, 0.4, 1.0])
def test_momentum_follows_the_recurrence_of_the_paper(kappa):
    eta = 0.1**kappa
    for i in range(50):
        assert algorithm.momentum_of_batch(torch.tensor(i), 0.1, kappa).item() == pytest.approx(eta, rel=1e-12)
        eta = eta / (eta + 0.9**kappa)


def test_without_tasks_statistics_are_plain():
    layer, plain = adab2n.AdaB2N2d(5).double(), nn.BatchNorm2d(5).double()
    x = random(*SHAPES[2])
    torch.testing.assert_close(layer(x), plain(x))
    torch.testing.assert_close(layer.eval()(x), F.batch_norm(x, layer.running_mean, layer.running_var))


@pytest.mark.parametrize("ids", [[0.5, 1, 1, 0, 0, 0], [[0] * 6], [-1, 0, 0, 0, 0, 0], [], [0] * 5, [True] * 6])
def test_wrong_ids_are_one_clear_error(ids):
    layer = adab2n.AdaB2N2d(5)
    with pytest.raises(ValueError, match="tasks") as error, adab2n.tasks(ids):
        layer(torch.randn(6, 5, 4, 3))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("option", ["absent_tasks", "penalty_norm", "eta_start"])
def test_unknown_choice_is_an_error(option):
    with pytest.raises(ValueError, match=option):
        adab2n.AdaB2N2d(5, **{option: "both"})


def test_psi_grows_and_the_optimizer_gets_it():
    model = adab2n.convert(small_net(), "adab2n")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for newest in (0, 1, 3):
        with adab2n.tasks([0, newest, newest]):
            out = model(torch.randn(3, 3, 4, 4))
        new = adab2n.new_parameters(model, optimizer)
        assert [id(p) for p in new] == [id(p) for p in adab2n.new_parameters(model)]
        optimizer.add_param_group({"params": new})
        (out.sum() + adab2n.penalty(model)).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert len(model[1].psi) == newest + 1
        assert not adab2n.new_parameters(model, optimizer)
        assert not adab2n.new_parameters(model)
    assert all(psi.item() != 0 for psi in model[1].psi[:2])
    assert adab2n.weights(model)["1"].shape == (4,)


def test_state_dict_and_copies():
    model = adab2n.convert(small_net(), "adab2n")
    with adab2n.tasks(IDS):
        model(torch.randn(6, 3, 4, 4)).sum().backward()
        twin = copy.deepcopy(model)
    twin[1].psi[0].data.fill_(1.0)
    assert model[1].psi[0].item() == 0
    other = adab2n.convert(small_net(), "adab2n")
    other.load_state_dict(twin.state_dict())
    assert other[1].psi[0].item() == 1
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    with adab2n.tasks(IDS):  # copies take part
        for each in (twin, other, loaded):
            assert each.train()(torch.randn(6, 3, 4, 4)).shape == (6, 2)
            assert each[1].sample_weights is not None
    adab2n.convert(small_net(), "adab2n").load_state_dict(small_net().state_dict())  # a network trained with BatchNorm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_and_half_precision(dtype):
    model = adab2n.convert(small_net(), "adab2n").to(dtype)
    x = torch.randn(6, 3, 4, 4, dtype=dtype)
    with adab2n.tasks(np.array(IDS)), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        out = model(x)
    (out.sum() + adab2n.penalty(model)).backward()
    assert model[1].running_var.dtype == dtype
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_frozen_layers():
    model = adab2n.convert(small_net(), "adab2n")
    model[1].requires_grad_(False)
    model[1].eval()
    before = copy.deepcopy(model[1].state_dict())
    with adab2n.tasks(IDS):
        model(torch.randn(6, 3, 4, 4)).sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in model[1].state_dict().items())


@pytest.mark.parametrize(
    ("norm", "backend"), [("adab2n", "aot_eager"), ("adab2n", "inductor"), ("cn", "aot_eager"), ("tbbn", "aot_eager")]
)
def test_compiles_into_one_graph_with_the_same_numbers(norm, backend):
    options = {"groups": 2} if norm == "cn" else {}
    model = adab2n.convert(small_net(), norm, **options).double()
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, fullgraph=True, backend=backend)
    for newest in range(4):
        ids = [0, newest, newest, newest, 0, 0]
        outs = []
        for net, call in ((model, model), (twin, compiled)):
            with adab2n.tasks(ids):
                out = call(random(6, 3, 4, 4, seed=newest))
            loss = out.square().sum()
            if norm == "adab2n":
                loss = loss + adab2n.penalty(net)
            loss.backward()
            outs.append(out)
        torch.testing.assert_close(outs[0], outs[1], rtol=1e-10, atol=1e-10)
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-9, msg=name)
    for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_number_of_splits():
    cases = {(10, 10, 4): 2, (10, 10, 5): 5, (20, 10, 3): 5, (32, 32, 4): 4, (10, 0, 3): 1, (7, 10, 3): 1}
    assert {case: number_of_splits(*case) for case in cases} == cases


def trained(model, shape):
    """A network with statistics that are not those of the start."""
    model.train()
    for seed in range(2):
        model(random(*shape, seed=seed).float())
    return model.eval()


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
@pytest.mark.parametrize("norm", ["adab2n", "tbbn"])
def test_converted_networks_evaluate_to_the_same_bits(name, norm):
    shape = (4, 3, 64, 64)
    model = trained(torchvision.models.get_model(name, num_classes=4), shape)
    x = random(*shape, seed=7).float()
    with torch.no_grad():
        expected = model(x)
        assert adab2n.convert(model, norm) is model
        assert not [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        assert torch.equal(model(x), expected)
        adab2n.convert(model, "bn")
        assert [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        assert torch.equal(model(x), expected)


class WithActivation(nn.BatchNorm2d):
    """As timm has it: the activation belongs to the norm."""

    def __init__(self, channels):
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(super().forward(x))


def test_activation_inside_the_norm_is_kept():
    model = trained(nn.Sequential(WithActivation(3)), (4, 3, 5, 5))
    x = torch.randn(4, 3, 5, 5)
    expected = model(x)
    assert torch.equal(adab2n.convert(model, "adab2n")(x), expected)
    assert torch.equal(adab2n.convert(model, "bn")(x), expected)


def test_convert_keeps_parameters_options_and_shared_layers():
    shared = nn.BatchNorm1d(4, eps=1e-3, momentum=0.2).double().eval()
    shared.weight.requires_grad_(False)
    model = adab2n.convert(nn.ModuleList([shared, shared, nn.BatchNorm3d(2, momentum=None, affine=False)]), "adab2n")
    first, second, third = model
    assert first is second
    assert first.weight is shared.weight
    assert (first.eps, first.eta, first.training, first.running_mean.dtype) == (1e-3, 0.2, False, torch.float64)
    assert (third.kappa, third.affine, third.weight) == (0, False, None)
    back = adab2n.convert(model, "bn")
    assert (type(back[0]), back[0].eps, back[0].momentum) == (nn.BatchNorm1d, 1e-3, 0.2)
    assert (type(back[2]), back[2].momentum) == (nn.BatchNorm3d, None)
    assert type(adab2n.convert(adab2n.convert(nn.BatchNorm1d(4), "cn", groups=2), "bn")) is nn.BatchNorm1d


def test_converting_a_trained_network_does_not_forget_its_statistics():
    layer = adab2n.convert(trained(nn.BatchNorm2d(3, momentum=None), (4, 3, 5, 5)), "adab2n").train()
    before = layer.running_mean.clone()
    x = random(4, 3, 5, 5, seed=5).float()
    layer(x)
    torch.testing.assert_close(layer.running_mean, before + (x.mean((0, 2, 3)) - before) / 3)


@pytest.mark.parametrize(
    ("model", "norm", "word"),
    [
        (nn.BatchNorm2d(4), "gn", "norm"),
        (nn.SyncBatchNorm(4), "adab2n", "SyncBatchNorm"),
        (nn.BatchNorm2d(4, track_running_stats=False), "adab2n", "track_running_stats"),
        (nn.BatchNorm2d(4), "cn", "groups"),
    ],
)
def test_what_cannot_be_converted(model, norm, word):
    with pytest.raises(ValueError, match=word):
        adab2n.convert(model, norm)


def test_functions_of_a_model_without_adab2n_say_what_to_do():
    for function in (adab2n.penalty, adab2n.weights, adab2n.new_parameters):
        with pytest.raises(ValueError, match="convert"):
            function(small_net())
    with pytest.raises(ValueError, match="forward pass"):
        adab2n.penalty(adab2n.convert(small_net(), "adab2n"))


@pytest.mark.parametrize("norm", ["bn", "adab2n", "cn", "tbbn"])
def test_reestimated_statistics_by_hand(norm):
    model = adab2n.convert(nn.Sequential(nn.BatchNorm1d(4)), norm, **({"groups": 2} if norm == "cn" else {})).train()
    batches = [random(5, 4, seed=1).float(), random(3, 4, seed=2).float()]
    adab2n.reestimate(model, batches)
    seen = [F.group_norm(x, 2) for x in batches] if norm == "cn" else batches
    torch.testing.assert_close(model[0].running_mean, torch.stack([x.mean(0) for x in seen]).mean(0))
    torch.testing.assert_close(model[0].running_var, torch.stack([x.var(0, correction=0) for x in seen]).mean(0))
    assert model.training
    assert model[0].training


def test_reestimated_with_balanced_tasks():
    model = adab2n.convert(nn.Sequential(nn.BatchNorm1d(1)), "adab2n")
    x, ids = torch.tensor([[1.0], [1.0], [1.0], [5.0]]), torch.tensor([0, 0, 0, 1])
    adab2n.reestimate(model, [(x, ids)], weights=lambda batch: adab2n.balanced_weights(batch[1]))
    assert model[0].running_mean.item() == 3
    assert model[0].running_var.item() == 4


def test_examples_in_docstrings_run():
    attempted = 0
    for module in (algorithm, conversion, continual_norm, statistics):
        results = doctest.testmod(module, extraglobs={"torch": torch, "nn": nn, "tasks": adab2n.tasks})
        assert results.failed == 0
        attempted += results.attempted
    assert attempted >= 10
