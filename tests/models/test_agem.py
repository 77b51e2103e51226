"""A-GEM: the projection by hand, and whole steps against a network written out here."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from models import agem
from tests.helpers import assert_close, build_run, make_spec, make_stream, record_steps, run_config, sample_numbers
from utils.errors import UsageError
from utils.run.build import check_together
from utils.step import StepIndex

EPS = 1e-5
LR, LAMBDA, KAPPA = 0.25, 0.7, 0.6
INDEX = StepIndex(task=1, step=6)


@pytest.mark.parametrize(
    ("gradients", "reference", "expected"),
    [
        ([[1.0, 2.0]], [[3.0, 1.0]], [[1.0, 2.0]]),  # agree
        ([[1.0, 2.0]], [[-2.0, 1.0]], [[1.0, 2.0]]),  # orthogonal
        ([[1.0, 2.0]], [[1.0, -3.0]], [[1.5, 0.5]]),  # g.r = -5, r.r = 10: g + r / 2, orthogonal to r
        ([[-4.0, 0.0]], [[2.0, 0.0]], [[0.0, 0.0]]),
        ([[1.0, -2.0], [3.0]], [[0.0, 0.0], [0.0]], [[1.0, -2.0], [3.0]]),  # a zero reference changes nothing
        # All parts are one vector: g.r = -1, r.r = 3. By itself the first part agrees with the reference.
        ([[1.0, 0.0], [2.0]], [[1.0, 1.0], [-1.0]], [[4 / 3, 1 / 3], [5 / 3]]),
    ],
)
def test_projection_by_hand(gradients, reference, expected):
    vectors = ([torch.tensor(part, dtype=torch.float64) for part in parts] for parts in (gradients, reference))
    for part, values in zip(agem.project(*vectors), expected, strict=True):
        assert_close(part, values, atol=1e-15)


# --- whole steps ------------------------------------------------------------------------------------------------


class ByHand:
    """The mlp with `bn` or `adab2n` in training, written out: weights by name, running statistics, momenta."""

    def __init__(self, net, norm: str):
        self.norm = norm
        self.weights = {name: value.detach().clone().requires_grad_() for name, value in net.named_parameters()}
        state = {name: value.clone() for name, value in net.state_dict().items()}
        self.running = [[state[f"norm{k}.running_mean"], state[f"norm{k}.running_var"]] for k in (1, 2)]
        self.eta = [state.get(f"norm{k}.eta") for k in (1, 2)]

    def sample_weights(self, count: int, tasks, layer: int) -> torch.Tensor:
        """Return p_t / N_t for every sample, p_t = (exp psi_t + N_t) / (sum of exp psi + N)."""
        if self.norm == "bn" or tasks is None:
            return torch.full((count,), 1 / count, dtype=torch.float64)
        psi = [value for name, value in self.weights.items() if name.startswith("norms.psi.")]
        normalizer = sum(value[layer].exp() for value in psi) + count
        counts = [tasks.count(task) for task in range(len(psi))]
        return torch.stack([(psi[t][layer].exp() + counts[t]) / normalizer / counts[t] for t in tasks])

    def forward(self, x, tasks) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and the sum of the layers' penalties; running statistics move."""
        weights, penalty = self.weights, 0.0
        for layer in (0, 1):
            a = x @ weights[f"linear{layer + 1}.weight"].T + weights[f"linear{layer + 1}.bias"]
            share = self.sample_weights(len(a), tasks, layer)
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
        """Return one vector over all parameters, psi included."""
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        parts = torch.autograd.grad(loss, list(self.weights.values()), **options)
        return torch.cat([part.flatten() for part in parts])

    def vector(self) -> torch.Tensor:
        return torch.cat([value.detach().flatten() for value in self.weights.values()])


def flat(batch) -> torch.Tensor:
    return batch.images.flatten(1).double() / 255


def vector_of(net) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def build(norm: str, **options):
    stream = make_stream(make_spec(image_shape=(1, 2, 2), mean=(0.0,), std=(1.0,)), seed=1)
    options |= {"lambd": LAMBDA, "kappa": KAPPA} if norm == "adab2n" else {}
    config = run_config("agem_r", norm, hidden=5, dtype="float64", lr=LR, minibatch_size=8, **options)
    _, method = build_run(config, stream)
    method.net.train()
    return method, stream


def in_second_task(norm: str, **options):
    """Return a method with first weights, samples of both tasks in the buffer, and statistics and psi that moved."""
    method, stream = build(norm, **options)
    step = 0
    for task in (0, 1):
        method.grow()
        for batch in stream.batches(task, 0, 0):
            method.net(flat(batch))
            method.remember(batch, {}, StepIndex(task, step))
            step += 1
    if norm == "adab2n":
        with torch.no_grad():
            for psi, values in zip(method.net.norms.psi, ([0.3, -0.5], [-0.8, 0.4]), strict=True):
                psi.copy_(torch.tensor(values))
    return method


def buffered_batch(method, *, disagrees: bool):
    """Return what the buffer holds, with its labels or with those of the other task."""
    batch = method.buffer.all_samples()
    labels = (batch.labels_host + 2) % 4
    return replace(batch, labels=torch.from_numpy(labels), labels_host=labels) if disagrees else batch


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
@pytest.mark.parametrize("disagree", [True, False])
def test_a_whole_step(norm, disagree):
    method = in_second_task(norm)
    batch = buffered_batch(method, disagrees=disagree)
    twin = ByHand(method.net, norm)
    step = method.step(batch, INDEX)
    replay = step.batches["replay"]
    assert (len(batch), len(replay), set(replay.tasks.tolist())) == (12, 8, {0, 1})

    logits, penalty = twin.forward(flat(batch), batch.tasks.tolist())
    replayed, replay_penalty = twin.forward(flat(replay), replay.tasks.tolist())
    loss = F.cross_entropy(logits, batch.labels) + LAMBDA * (penalty + replay_penalty)
    g, r = twin.gradient(loss), twin.gradient(F.cross_entropy(replayed, replay.labels))
    assert (g @ r < 0) == disagree
    expected = g - (g @ r) / (r @ r) * r if disagree else g
    assert_close(step.loss.detach(), loss.detach())
    assert_close(vector_of(method.net), twin.vector() - LR * expected)
    if disagree:
        assert (expected - g).abs().max() > 1e-3
    if norm == "adab2n":
        assert min(penalty, replay_penalty) > 0
        for layer, (mean, variance) in zip((method.net.norm1, method.net.norm2), twin.running, strict=True):
            assert_close(layer.running_mean, mean)
            assert_close(layer.running_var, variance)


# --- the buffers of agem and agem_r -----------------------------------------------------------------------------


def replayed_tasks(step) -> tuple[int, list[int]]:
    replay = step.batches.get("replay")
    return step.index.task, [] if replay is None else sorted(replay.tasks.tolist())


@pytest.mark.parametrize("setting", ["class", "domain"])
def test_agem_stores_samples_of_a_task_at_its_end(setting, monkeypatch, capsys):
    """Ten slots for three tasks are three for each; the second task has only two samples."""
    monkeypatch.setattr(agem, "CHUNK", 16)
    stream = make_stream(make_spec(setting, n_tasks=3, n_classes=6, train_sizes=(12, 2, 40)))
    chosen = []
    for seed in (0, 0, 1):
        steps, method, _ = record_steps(run_config("agem", buffer_size=10, seed=seed), stream, replayed_tasks)
        assert steps[:4] == [(0, [])] * 3 + [(1, [0, 0, 0])]
        assert all(len(tasks) == 4 and set(tasks) == {0, 1} for task, tasks in steps[4:])
        stored = method.buffer.all_samples()
        assert stored.tasks.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
        chosen.append(sample_numbers(stored.images).tolist())
        assert [number >= 12 for number in chosen[-1]] == [task > 0 for task in stored.tasks]
        assert len(set(chosen[-1])) == 8
    assert chosen[0] == chosen[1] != chosen[2]
    assert capsys.readouterr().err == ""


def test_a_buffer_smaller_than_the_tasks_is_refused():
    with pytest.raises(UsageError, match="--buffer_size 2"):
        check_together(run_config("agem", buffer_size=2), make_spec(n_tasks=3, n_classes=6))
