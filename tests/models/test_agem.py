"""A-GEM: the projection by hand, whole steps against a computation of their own, and runs that are cut off."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from models import agem
from tests.helpers import assert_close, build_run, make_spec, make_stream, run_config
from utils.step import StepIndex

EPS = 1e-5
LR, LAMBDA, KAPPA = 0.25, 0.7, 0.6
PLACE = StepIndex(task=1, step=6)


# --- the projection --------------------------------------------------------------------------------------------


def project(gradients, reference) -> list[list[float]]:
    vectors = ([torch.tensor(part, dtype=torch.float64) for part in parts] for parts in (gradients, reference))
    return [part.tolist() for part in agem.project(*vectors)]


@pytest.mark.parametrize("reference", [[[3.0, 1.0]], [[-2.0, 1.0]], [[0.0, 5.0]]])
def test_gradients_that_agree_or_are_orthogonal_stay(reference):
    assert project([[1.0, 2.0]], reference) == [[1.0, 2.0]]


def test_gradients_that_disagree_lose_their_part_along_the_reference():
    """g = (1, 2), r = (1, -3): g.r = -5, r.r = 10, so g + r / 2 = (1.5, 0.5), which is orthogonal to r."""
    assert project([[1.0, 2.0]], [[1.0, -3.0]]) == [[1.5, 0.5]]
    assert project([[-4.0, 0.0]], [[2.0, 0.0]]) == [[0.0, 0.0]]


def test_all_parts_are_one_vector():
    """g = (1, 0 | 2), r = (1, 1 | -1): g.r = -1, r.r = 3. By itself the first part agrees with the reference."""
    (first, second) = project([[1.0, 0.0], [2.0]], [[1.0, 1.0], [-1.0]])
    assert first == pytest.approx([4 / 3, 1 / 3], abs=1e-15)
    assert second == pytest.approx([5 / 3], abs=1e-15)
    assert first[0] + first[1] - second[0] == pytest.approx(0, abs=1e-15)


def test_a_zero_reference_changes_nothing():
    assert project([[1.0, -2.0], [3.0]], [[0.0, 0.0], [0.0]]) == [[1.0, -2.0], [3.0]]


# --- a network of our own ---------------------------------------------------------------------------------------


class ByHand:
    """The mlp with `bn` or `adab2n` in training, written out: weights by name, running statistics, momenta."""

    def __init__(self, net, norm: str):
        self.norm = norm
        self.weights = {name: value.detach().clone().requires_grad_() for name, value in net.named_parameters()}
        state = {name: value.clone() for name, value in net.state_dict().items()}
        self.running = [[state[f"norm{k}.running_mean"], state[f"norm{k}.running_var"]] for k in (1, 2)]
        self.eta = [state.get(f"norm{k}.eta") for k in (1, 2)]

    def share_of_samples(self, tasks, layer: int) -> torch.Tensor:
        """p_t / N_t for every sample, p_t = (exp psi_t + N_t) / (sum of exp psi + N)."""
        if self.norm == "bn" or tasks is None:
            return None
        psi = [value for name, value in self.weights.items() if name.startswith("norms.psi.")]
        everybody = sum(one[layer].exp() for one in psi) + len(tasks)
        counts = [tasks.count(task) for task in range(len(psi))]
        return torch.stack([(psi[t][layer].exp() + counts[t]) / everybody / counts[t] for t in tasks])

    def forward(self, x, tasks) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and the sum of the layers' penalties; running statistics move."""
        weights, penalty = self.weights, 0.0
        for layer in (0, 1):
            a = x @ weights[f"linear{layer + 1}.weight"].T + weights[f"linear{layer + 1}.bias"]
            share = self.share_of_samples(tasks, layer)
            share = torch.full((len(a),), 1 / len(a), dtype=a.dtype) if share is None else share
            mean = share @ a
            variance = share @ (a - mean) ** 2
            if self.norm == "adab2n":
                eta, old = self.eta[layer], self.running[layer]
                new = [(1 - eta) * o + eta * s.detach() for o, s in zip(old, (mean, variance), strict=True)]
                self.running[layer] = new
                self.eta[layer] = eta / (eta + 0.9**KAPPA)
                penalty = penalty + ((mean - new[0]) ** 2).mean() + ((variance - new[1]) ** 2).mean()
            normal = (a - mean) / (variance + EPS).sqrt()
            x = (normal * weights[f"norm{layer + 1}.weight"] + weights[f"norm{layer + 1}.bias"]).clamp(min=0)
        return x @ weights["classifier.weight"].T + weights["classifier.bias"], penalty

    def gradient(self, loss) -> torch.Tensor:
        """One vector over all parameters."""
        found = torch.autograd.grad(
            loss, list(self.weights.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([part.flatten() for part in found])

    def vector(self) -> torch.Tensor:
        return torch.cat([value.detach().flatten() for value in self.weights.values()])


def cross_entropy(logits, labels) -> torch.Tensor:
    return (logits.logsumexp(1) - logits[torch.arange(len(labels)), labels]).mean()


def flat(batch) -> torch.Tensor:
    return batch.images.flatten(1).double() / 255


def in_the_second_task(norm: str, **options):
    """A method with first weights, a buffer with samples of both tasks, and statistics and psi that have moved."""
    spec = make_spec(image_shape=(1, 2, 2), mean=(0.0,), std=(1.0,))
    stream = make_stream(spec, seed=1)
    if norm == "adab2n":
        options = {"lambd": LAMBDA, "kappa": KAPPA} | options
    config = run_config("agem", norm, hidden=5, dtype="float64", lr=LR, minibatch_size=8, **options)
    net, method = build_run(config, stream)
    net.train()
    step = 0
    for task in (0, 1):
        method.grow()
        for batch in stream.batches(task, 0, 0):
            net(flat(batch))
            method.remember(batch, {}, StepIndex(task, step))
            step += 1
    if norm == "adab2n":
        with torch.no_grad():
            for psi, values in zip(net.norms.psi, ([0.3, -0.5], [-0.8, 0.4]), strict=True):
                psi.copy_(torch.tensor(values))
    return method


def batch_that(method, *, disagrees: bool):
    """What the buffer holds, with its labels or with those of the other task."""
    batch = method.buffer.all_samples()
    if not disagrees:
        return batch
    labels = (batch.labels_host + 2) % 4
    return replace(batch, labels=torch.from_numpy(labels), labels_host=labels)


def vector_of(net) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
@pytest.mark.parametrize("disagree", [True, False])
def test_a_whole_step(norm, disagree):
    method = in_the_second_task(norm)
    batch = batch_that(method, disagrees=disagree)
    twin = ByHand(method.net, norm)
    done = method.step(batch, PLACE)
    replay = done.batches["replay"]
    assert (len(batch), len(replay)) == (12, 8)
    assert {0, 1} == set(replay.tasks.tolist())

    logits, penalty = twin.forward(flat(batch), batch.tasks.tolist())
    replayed, penalty_of_replay = twin.forward(flat(replay), replay.tasks.tolist())
    loss = cross_entropy(logits, batch.labels)
    if norm == "adab2n":
        assert penalty > 0
        assert penalty_of_replay > 0
        loss = loss + LAMBDA * (penalty + penalty_of_replay)
    g, r = twin.gradient(loss), twin.gradient(cross_entropy(replayed, replay.labels))
    assert (g @ r < 0) == disagree
    expected = g - (g @ r) / (r @ r) * r if disagree else g

    assert_close(done.loss.detach(), loss.detach())
    assert_close(vector_of(method.net), twin.vector() - LR * expected)
    if disagree:
        assert (expected - g).abs().max() > 1e-3
    if norm == "adab2n":
        psi = torch.cat([value.detach() for value in method.net.norms.psi])
        unmoved = torch.cat([twin.weights[f"norms.psi.{task}"].detach() for task in (0, 1)])
        assert (psi - unmoved).abs().min() > 1e-5
        for layer, (mean, variance) in zip((method.net.norm1, method.net.norm2), twin.running, strict=True):
            assert_close(layer.running_mean, mean)
            assert_close(layer.running_var, variance)


def test_without_psi_the_projection_would_be_another_one():
    """So the whole step above shows that psi is part of the vector."""
    method = in_the_second_task("adab2n")
    batch = batch_that(method, disagrees=True)
    twin = ByHand(method.net, "adab2n")
    replay = method.step(batch, PLACE).batches["replay"]
    (logits, first), (replayed, second) = (twin.forward(flat(b), b.tasks.tolist()) for b in (batch, replay))
    g = twin.gradient(cross_entropy(logits, batch.labels) + LAMBDA * (first + second))
    r = twin.gradient(cross_entropy(replayed, replay.labels))
    is_psi = torch.cat(
        [torch.full((value.numel(),), name.startswith("norms.psi")) for name, value in twin.weights.items()]
    )
    assert is_psi.sum() == 4
    whole, part = (g @ r) / (r @ r), (g[~is_psi] @ r[~is_psi]) / (r[~is_psi] @ r[~is_psi])
    assert abs(whole - part) > 1e-6


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_the_first_step_is_plain_sgd(norm):
    spec = make_spec(image_shape=(1, 2, 2), mean=(0.0,), std=(1.0,))
    stream = make_stream(spec)
    options = {"kappa": KAPPA} if norm == "adab2n" else {}
    net, method = build_run(run_config("agem", norm, hidden=5, dtype="float64", lr=LR, **options), stream)
    method.grow()
    twin = ByHand(net.train(), norm)
    batch = next(iter(stream.batches(0, 0, 0)))
    done = method.step(batch, StepIndex(0, 0))
    loss = cross_entropy(twin.forward(flat(batch), None)[0], batch.labels)
    assert list(done.batches) == ["current"]
    assert_close(done.loss.detach(), loss.detach())
    assert_close(vector_of(net), twin.vector() - LR * twin.gradient(loss))


def test_a_step_does_not_increase_the_loss_on_what_it_replays():
    """To first order: with a small learning rate, where plain SGD does increase it."""
    method = in_the_second_task("bn")
    batch = batch_that(method, disagrees=True)
    before = ByHand(method.net, "bn")
    for group in method.optimizer.param_groups:
        group["lr"] = 1e-4
    replay = method.step(batch, PLACE).batches["replay"]

    def loss_on_replay(twin):
        return cross_entropy(twin.forward(flat(replay), None)[0], replay.labels).item()

    plain = deepcopy(method.net)
    g = before.gradient(cross_entropy(before.forward(flat(batch), None)[0], batch.labels))
    torch.nn.utils.vector_to_parameters(before.vector() - 1e-4 * g, plain.parameters())
    change, change_of_sgd = (loss_on_replay(ByHand(net, "bn")) - loss_on_replay(before) for net in (method.net, plain))
    assert change_of_sgd > 1e-6
    assert change < change_of_sgd / 50


# --- the forward of its own -------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
@pytest.mark.parametrize("fidelity", ["official", "paper"])
def test_the_reference_always_has_a_forward_of_its_own(norm, fidelity):
    method = in_the_second_task(norm, fidelity=fidelity)
    layer = method.net.norm1
    before = {name: value.clone() for name, value in layer.named_buffers()}
    method.step(method.buffer.all_samples(), PLACE)
    assert (layer.num_batches_tracked - before["num_batches_tracked"]).item() == 2
