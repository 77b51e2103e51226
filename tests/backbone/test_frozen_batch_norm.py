"""`bn_frozen` across tasks, copies, saved states and runs that are cut off."""

import pytest
import torch
from conftest import call
from torch import nn

from backbone.norms import norm_factory
from tests.helpers import assert_close
from tests.models.cut_off import assert_a_cut_off_run_ends_the_same

EPS = 1e-5
SHAPE = (6, 3, 2, 4)


class TwoNorms(nn.Module):
    def __init__(self, **options):
        super().__init__()
        factory = norm_factory("bn_frozen", **options)
        self.first, self.second, self.norms = factory(3, spatial=(2, 4)), factory(3, spatial=(2, 4)), factory.shared

    def forward(self, x):
        return self.second(self.first(x))


def begun(tasks: int, **options) -> TwoNorms:
    net = TwoNorms(**options).double()
    for task in range(tasks):
        net.norms.begin_task(n_classes=2 * (task + 1))
    return net


def inputs(count: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    return [2 * torch.randn(SHAPE, dtype=torch.float64, generator=draw) + 1 for _ in range(count)]


def statistics(layer: nn.Module) -> list[list]:
    return [layer.running_mean.tolist(), layer.running_var.tolist(), layer.num_batches_tracked.tolist()]


def moves(net: TwoNorms) -> bool:
    """Do the statistics of all layers move in training? They do or do not together."""
    before = [statistics(layer) for layer in (net.first, net.second)]
    net.train()(inputs(1)[0])
    (moved,) = {now != then for now, then in zip(map(statistics, (net.first, net.second)), before, strict=True)}
    return moved


@pytest.mark.parametrize(("options", "moving"), [({}, 1), ({"freeze_after": 1}, 1), ({"freeze_after": 3}, 3)])
def test_statistics_move_in_the_first_tasks_only(options, moving):
    net, moved = begun(0, **options), []
    for task in range(4):
        net.norms.begin_task(n_classes=2 * (task + 1))
        moved.append(moves(net))
    assert moved == [task < moving for task in range(4)]


def test_across_two_tasks_by_hand():
    """One channel, values 1, 3, 5, 7: mean 4, unbiased variance 20/3, of which the running statistics take a tenth."""
    factory = norm_factory("bn_frozen")
    layer = factory(1, spatial=(1, 2)).double()
    nn.init.constant_(layer.weight, 2.0)
    nn.init.constant_(layer.bias, -1.0)
    x = torch.tensor([[1.0, 3.0], [5.0, 7.0]], dtype=torch.float64).view(2, 1, 1, 2)
    factory.shared.begin_task(n_classes=2)
    assert_close(layer(x), 2 * (x - 4) / (5 + EPS) ** 0.5 - 1)
    factory.shared.begin_task(n_classes=4)
    mean, var = 0.4, 0.9 + 0.1 * 20 / 3
    other = (x + 100).requires_grad_()
    out = layer(other)
    assert_close(out, 2 * (x + 100 - mean) / (var + EPS) ** 0.5 - 1)
    direction = torch.tensor([1.0, -2.0, 0.5, 4.0], dtype=torch.float64).view_as(x)
    (out * direction).sum().backward()
    assert_close(other.grad, 2 * direction / (var + EPS) ** 0.5)  # nothing comes through the statistics
    assert_close(layer.weight.grad, (direction * (x + 100 - mean) / (var + EPS) ** 0.5).sum().view(1))
    assert_close(layer.bias.grad, direction.sum().view(1))
    assert_close(layer.running_mean, [mean])
    assert_close(layer.running_var, [var])
    assert_close(layer.eval()(x + 100), out)


def test_a_single_value_is_refused_only_where_it_would_be_the_statistics():
    single = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        begun(1).first(single)
    assert_close(begun(2).first(single), single / (1 + EPS) ** 0.5)


@pytest.mark.parametrize(("saved", "there"), [(0, 2), (1, 0), (1, 5), (2, 0), (2, 1), (3, 3)])
def test_a_loaded_network_has_begun_as_many_tasks_as_the_saved_one(saved, there):
    """Whatever it had begun itself: a resumed run repeats the beginnings, an evaluation does not."""
    net = begun(there)
    net.load_state_dict(begun(saved).state_dict())
    assert [tensor.shape for name, tensor in net.state_dict().items() if "begun" in name] == [(saved,)]  # kept once
    assert moves(net) == (saved < 2)


def test_a_method_that_builds_its_network_anew_is_refused(run_main):
    refused = run_main("--model", "gdumb", "--norm", "bn_frozen", "--dataset", "seq-digits", "--backbone", "mlp")
    assert refused.code == 2
    (line,) = refused.stderr.splitlines()
    assert "--model gdumb" in line


def test_a_run_that_is_cut_off_ends_the_same_and_its_network_is_evaluated_as_it_was(tmp_path):
    """In the first task, at the first step of the second, in the middle of the third."""
    command = ["--model", "derpp", "--norm", "bn_frozen", "--buffer_size", "50", "--lr", "0.02", "--freeze_after", "2"]
    record = assert_a_cut_off_run_ends_the_same(tmp_path, *command, at=(5, 8, 19))["record"]
    (path,) = tmp_path.glob("killed/runs/*/model.safetensors")
    evaluated = call(["--eval_only", str(path), "--num_threads", "1"])
    assert evaluated.code == 0
    last = [f"{accuracy:.2f}" for accuracy in record["results"]["class_il"]["matrix"][-1]]
    assert " ".join(last) in " ".join(evaluated.stdout.split())
