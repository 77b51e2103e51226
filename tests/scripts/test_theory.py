"""The paper's theorems against brute force, corollaries within their bounds or refuted, and the best kappa."""

import math
from fractions import Fraction
from itertools import chain, pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from backbone.norms import norm_factory
from scripts.theory import main, share
from utils.data.random import generator
from utils.theory import (
    SEEN,
    batch_weights,
    best_kappa,
    cma,
    distance,
    distances,
    effective_weights,
    ema,
    kappa_momentum,
    kappa_weights,
    replay_cma,
    squared_gradients,
    statistical_weights,
    task_masses,
)

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "theory.md").read_text()
ROUNDING = 1e-15
CMA_OF_FIVE = [0.408333333333, 0.208333333333, 0.158333333333, 0.125, 0.1]  # ten batches each, r = 1/2
EQUAL = [(tasks, batches, eta) for tasks in (2, 3, 5, 20) for batches in (1, 7, 40) for eta in (0.02, 0.1, 0.6)]
each_equal = pytest.mark.parametrize(("tasks", "batches", "eta"), EQUAL)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


def random_setting(number: int):
    """(momenta that differ from batch to batch, shares that differ from task to task, lengths)."""
    draw = generator(number, "theory")
    lengths = draw.integers(1, 30, size=draw.integers(1, 9))
    return draw.uniform(0.001, 0.6, lengths.sum()), draw.uniform(0.01, 1, len(lengths)), lengths


def by_hand(etas, r, lengths, printed: bool) -> np.ndarray:
    """The recursion on plain numbers, one task's statistics being 1 and all others' 0, once for each task."""
    weights = []
    for of_task in range(len(lengths)):
        running, step = 0.0, 0
        for task, length in enumerate(lengths):
            share = 1.0 if task == 0 and not printed else r[task]
            replayed_tasks = len(lengths) - 1 if printed else task
            batch = share if task == of_task else (1 - share) / replayed_tasks if of_task < task else 0.0
            for eta in etas[step : step + length]:
                running = (1 - eta) * running + eta * batch
            step += length
        weights.append(running)
    return np.array(weights)


# --- Theorem 1 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("printed", [False, True], ids=["as it is", "as printed"])
@pytest.mark.parametrize("number", range(30))
def test_theorem_is_the_recursion(number, printed):
    etas, r, lengths = random_setting(number)
    raw = by_hand(etas, r, lengths, printed)
    close(statistical_weights(etas, r, lengths, printed=printed), raw / raw.sum())
    if not printed:
        close(raw.sum() + np.prod(1 - etas), 1)  # the rest is the initial statistics'


def test_share_of_one_over_the_tasks_seen():
    close(statistical_weights(ema(6), 0.3, [6]), [1])
    each = np.array([1, 1 / 2, 1 / 3])
    close(statistical_weights(ema(9), SEEN, [2, 3, 4]), statistical_weights(ema(9), each, [2, 3, 4]))


def test_effective_weights_after_every_batch_of_several_layers():
    """Shares need not sum to 1."""
    shares = np.array([[[1, 0], [0, 0]], [[0.2, 0.6], [0, 0.4]]])
    close(effective_weights([0.5, 0.25], shares), [[[0.5, 0], [0, 0]], [[0.375 + 0.05, 0.15], [0, 0.1]]])


# --- momenta ----------------------------------------------------------------------------------------------------------


def test_kappa_at_its_ends():
    close(kappa_momentum(50, 1.0, 0.3), ema(50, 0.3))
    close(kappa_momentum(50, 0.0, 0.3), cma(50))
    close(cma(4), [1, 1 / 2, 1 / 3, 1 / 4])


@pytest.mark.parametrize("start", ["eta0", "eta1"])
@pytest.mark.parametrize("kappa", [0.0, 0.01, 0.7, 1.0])
def test_kappa_and_weights_are_those_of_the_layer(kappa, start):
    """Samples are one-hot in their task: the layer's running mean is what each task has of it."""
    factory = norm_factory("adab2n", kappa=kappa, eta=0.2, eta_start=start, norm_impl="reference")
    layer, shared = factory(3, spatial=()).double(), factory.shared.double()
    etas, shares = [], []
    for tasks in ([0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 1, 1], [0, 1, 2, 2], [2, 1, 2, 2]):
        if max(tasks) == len(shared.psi):
            shared.begin_task(n_classes=2)
        etas.append(layer.eta.item())
        of_samples = torch.tensor(tasks)
        with shared.forward_pass(of_samples) as this:
            layer(nn.functional.one_hot(of_samples, 3).double())
        present = torch.bincount(of_samples, minlength=len(shared.psi)) > 0
        of_tasks = (this.report.group_weights[:, 0] * present).detach().numpy()
        shares.append(np.pad(of_tasks, (0, 3 - len(of_tasks))))
    close(etas, kappa_momentum(7, kappa, 0.2)[["eta0", "eta1"].index(start) :][:6])
    close(effective_weights(etas, np.array(shares))[-1], layer.running_mean.numpy())


@pytest.mark.parametrize("kappa", [0.0, 0.003, 0.4, 0.7, 1.0])
def test_kappa_weighs_batches_as_an_ema_does(kappa):
    """The lemma: consecutive batches differ by (1 - eta)^kappa, whatever the first momentum is."""
    for etas in (kappa_momentum(80, kappa), kappa_momentum(81, kappa)[1:]):
        weights = batch_weights(etas)
        close(weights[:-1], 0.9**kappa * weights[1:])
        for r in (0.5, SEEN):
            close(kappa_weights(kappa, [10, 30, 15, 25], r), statistical_weights(etas, r, [10, 30, 15, 25]))


# --- corollaries: T tasks; u = (1 - eta)^batches is what a task leaves of what was there before ----------------------


def no_replay(lengths, eta) -> np.ndarray:
    """Corollary 1, exact, for any lengths."""
    ends = np.cumsum(lengths)
    after, from_start = ends[-1] - ends, ends[-1] - ends + lengths
    return ((1 - eta) ** after - (1 - eta) ** from_start) / (1 - (1 - eta) ** ends[-1])


def no_replay_printed(lengths, eta) -> np.ndarray:
    """The printed formula has m_{T-t} for m_T - m_t: the same only if the lengths are the same backwards."""
    ends = np.append(0, np.cumsum(lengths))[::-1]  # m_T ... m_0
    return ((1 - eta) ** ends[1:] - (1 - eta) ** ends[:-1]) / (1 - (1 - eta) ** ends[0])


@pytest.mark.parametrize("number", range(10))
def test_corollary_1_for_any_lengths(number):
    _, _, lengths = random_setting(number)
    close(no_replay(lengths, 0.15), statistical_weights(ema(sum(lengths), 0.15), 1.0, lengths))


@each_equal
def test_corollary_1_for_equal_lengths(tasks, batches, eta):
    exact, u = no_replay([batches] * tasks, eta), (1 - eta) ** batches
    close(no_replay_printed([batches] * tasks, eta), exact)
    about = u ** np.arange(tasks - 1, -1, -1)
    assert np.abs(exact - about).max() <= u / (1 - u**tasks) + ROUNDING
    close(about / about.sum(), exact)


@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 5])
def test_corollary_1_as_printed_holds_for_palindromic_lengths(tasks):
    assert "palindromic" in DOCS
    for lengths in product((1, 2, 5), repeat=tasks):
        printed = no_replay_printed(lengths, 0.1)
        close(printed, no_replay(lengths[::-1], 0.1))
        assert np.allclose(printed, no_replay(lengths, 0.1), rtol=0, atol=1e-12) == (lengths == lengths[::-1])
    as_it_is, printed = (formula([10, 1], 0.1)[0] for formula in (no_replay, no_replay_printed))
    assert f"{as_it_is:.3f} and not {printed:.3f}".replace("0.", ".") in DOCS


@each_equal
def test_corollary_2(tasks, batches, eta):
    """As printed, a share near 1/T balances. As it is, r = 1/T does up to a bound, and what balances is that close."""
    u, etas, lengths = (1 - eta) ** batches, ema(tasks * batches, eta), [batches] * tasks
    r = 1 / (tasks - u * (tasks - 1))
    close(statistical_weights(etas, r, lengths, printed=True), np.full(tasks, 1 / tasks))
    assert abs(r - 1 / tasks) - ROUNDING <= u / (tasks - u * (tasks - 1)) <= u
    weights, bound = statistical_weights(etas, 1 / tasks, lengths), (1 - 1 / tasks) * (u - u**tasks) / (1 - u**tasks)
    assert np.abs(weights - 1 / tasks).max() - ROUNDING <= bound <= u
    for r in np.linspace(0.05, 1, 20):
        deviation = np.abs(statistical_weights(etas, r, lengths) - 1 / tasks).max()
        assert abs(r - 1 / tasks) <= deviation + u + ROUNDING
        assert tasks == 2 or deviation > 1e-12 or u < 1e-9
    if tasks == 2:
        close(weights[0] - 0.5, bound)  # it is attained
        close(statistical_weights(etas, (1 + u) / 2, lengths), [0.5, 0.5])


@pytest.mark.parametrize(("tasks", "r"), list(product((2, 3, 5, 20), (0.05, 0.3, 0.5, 1.0))))
def test_corollary_3_as_it_is(tasks, r):
    """For equal lengths, the first task is furthest from 1/T."""
    weights = statistical_weights(cma(tasks * 10), r, [10] * tasks)
    later = np.append(np.cumsum(1 / np.arange(tasks - 1, 0, -1))[::-1], 0.0)  # sum over g > t of 1 / (g - 1)
    close(weights, (np.append(1.0, np.full(tasks - 1, r)) + (1 - r) * later) / tasks)
    close(statistical_weights(1 / np.arange(2, tasks * 10 + 2), r, [10] * tasks), weights)
    close(np.abs(weights - 1 / tasks).max(), (1 - r) * sum(1 / g for g in range(1, tasks)) / tasks)


@pytest.mark.parametrize("r", sorted({Fraction(part, whole) for whole in range(1, 9) for part in range(1, whole + 1)}))
def test_corollary_3_holds_for_lengths_that_grow_with_replay_only(r):
    """For m_t = r t n_t, checked for all short lengths of two and three tasks."""
    for lengths in chain(product(range(1, 9), range(1, 9)), product(range(1, 6), range(1, 11), range(1, 13))):
        balanced = all(sum(lengths[:t]) == r * t * lengths[t - 1] for t in range(2, len(lengths) + 1))
        assert (distance(statistical_weights(cma(sum(lengths)), float(r), lengths)) < 1e-12) == balanced


def test_shares_and_lengths_that_a_cumulative_average_balances():
    lengths = np.array([12, 15, 14, 30, 25])
    r = np.cumsum(lengths) / np.arange(1, 6) / lengths
    close(statistical_weights(cma(sum(lengths)), r, lengths), np.full(5, 1 / 5))
    assert r.max() == 1
    assert "10, 20, 24 and 27" in DOCS
    close(statistical_weights(cma(81), 3 / 4, [10, 20, 24, 27]), np.full(4, 1 / 4))


def test_corollary_3_does_not_hold_as_printed():
    close(statistical_weights(cma(50), 0.5, [10] * 5), CMA_OF_FIVE)
    printed = statistical_weights(cma(50), 0.5, [10] * 5, printed=True)
    close(printed, np.array([4, 3.5, 3, 2.5, 2]) / 15)  # 0.5 + 0.125 for each later task
    close(statistical_weights(cma(60), 1.0, [10, 20, 30]), [1 / 6, 1 / 3, 1 / 2])


# --- Theorem 2 --------------------------------------------------------------------------------------------------------

SHAPES = [(20, 3, 1), (4, 6, 5), (3, 5, 1), (3, 4, 7), (2, 6, 3), (2, 16, 5)]  # samples, channels, positions


def through_bn(shape, loss, eps=1e-14):
    """(squared gradients by autograd, what `squared_gradients` takes); BN is written out."""
    draw = generator(sum(shape), "Theorem 2")
    scale, shift = (torch.tensor(draw.normal(size=shape[1])) for _ in range(2))
    before = torch.tensor(draw.normal(3, 2, (shape[0] * shape[2], shape[1])), requires_grad=True)
    deviation = (before.var(0, correction=0) + eps).sqrt()
    normalized = (before - before.mean(0)) / deviation
    after = scale * normalized + shift
    at_input, at_output = torch.autograd.grad(loss(after, before.detach(), normalized.detach()), (before, after))
    slopes = (scale / deviation).detach().numpy()
    return (at_input**2).sum(0).numpy(), (at_output.numpy(), normalized.detach().numpy(), slopes)


def random_loss(after, before, normalized):
    mix = torch.tensor(generator(1, "random loss").normal(size=(len(after), len(after), 2)))
    return ((mix[..., 0] @ after).tanh() * (mix[..., 1] @ after**2)).sum()


@pytest.mark.parametrize("eps", [1e-14, 1e-5, 2.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_theorem_2_is_the_gradient(shape, eps):
    measured, (after, normalized, slopes) = through_bn(shape, random_loss, eps)
    exact = squared_gradients(after, normalized, slopes)
    rounding = 1e-12 * (slopes**2 * (after**2).sum(0)).max()
    np.testing.assert_allclose(measured, exact, rtol=0, atol=rounding)
    products = after.sum(0) ** 2 + (after * normalized).sum(0) ** 2
    bounds = slopes**2 * ((after**2).sum(0) - products / len(after))
    assert (measured <= bounds + rounding).all()
    assert np.allclose(measured, bounds, rtol=0, atol=rounding) == (eps == 1e-14)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_theorem_2_as_printed_holds_where_there_are_as_many_channels_as_values(shape):
    measured, given = through_bn(shape, random_loss)
    excess = np.round(squared_gradients(*given, printed=True) / measured - 1, 9)
    assert (np.sign(excess) == np.sign(shape[1] - shape[0] * shape[2])).all()


def test_bound_of_theorem_2_as_printed_can_be_negative():
    """Half the square of what BN returns does not depend on its input, and the gradient is zero."""
    measured, (after, normalized, slopes) = through_bn((4, 6, 5), lambda after, *_: (after**2).sum() / 2)
    close(measured, 0)
    printed = squared_gradients(after, normalized, slopes, printed=True)
    close(printed, (1 - 20 / 6) * slopes**2 * (after**2).sum(0))


def test_gradient_of_theorem_2_is_that_at_the_output():
    """A loss that is smallest at BN's input has no gradient there without BN, and the printed bound is zero."""
    measured, _ = through_bn((4, 6, 5), lambda after, before, _: ((after - before) ** 4).sum())
    assert measured.min() > 0.01


@pytest.mark.parametrize("sign", [1, -1])
def test_similarity_of_gradient_and_normalized_values_makes_gradients_smaller(sign):
    """The gradient at the output has length 1, and the cosine given to what BN normalized."""

    def loss(after, _, normalized):
        draws = torch.tensor(generator(0, "direction").normal(size=after.shape))
        draws = draws - draws.mean(0)
        across = draws - normalized * (draws * normalized).mean(0)
        direction = sign * cosine * normalized / normalized.norm(dim=0)
        return (after * (direction + (1 - cosine**2) ** 0.5 * across / across.norm(dim=0))).sum()

    for cosine in (0.0, 0.3, 0.9, 1.0):
        measured, (_, _, slopes) = through_bn((4, 6, 5), loss)
        close(measured, slopes**2 * (1 - cosine**2))


# --- what kappa balances best -----------------------------------------------------------------------------------------


def shortest(lengths, r, eta=0.1) -> float:
    return distances([best_kappa(lengths, r, eta)], lengths, r, eta)[0]


@pytest.mark.parametrize("number", range(8))
def test_best_kappa_beats_a_fine_grid(number):
    draw = generator(number, "best kappa")
    tasks, r, eta = int(draw.integers(2, 7)), draw.uniform(0.1, 1), draw.uniform(0.02, 0.4)
    lengths = draw.integers(1, 1000, tasks)
    grid = np.append(0, np.geomspace(1e-5, 1, 1500))
    assert shortest(lengths, r, eta) <= distances(grid, lengths, r, eta).min() + 1e-12


def test_best_of_several_minima():
    lengths, r = [900, 1000, 50], 0.8
    first, between, second = distances([0.01325, 0.03, 0.103], lengths, r)
    assert between > first > second
    assert best_kappa(lengths, r) == pytest.approx(0.103, abs=1e-3)


@pytest.mark.parametrize("tasks", [2, 3, 5, 10, 30])
def test_tasks_of_one_length_have_one_minimum(tasks):
    for r in np.linspace(0.02, 0.99, 12):
        steps = np.diff(distances(np.append(0, np.geomspace(1e-4, 1, 300)), [200] * tasks, r))
        ways = np.sign(steps[np.abs(steps) > 1e-12])
        assert (np.diff(ways) >= 0).all()  # down, and then up


@pytest.mark.parametrize("r", [0.55, 0.75, 0.99])
def test_two_tasks_are_balanced_exactly(r):
    """u = 2r - 1, that is kappa = ln(2r - 1) / (m ln(1 - eta))."""
    best = best_kappa([400] * 2, r)
    assert best == pytest.approx(np.log(2 * r - 1) / (400 * np.log(0.9)), rel=1e-8)
    close(kappa_weights(best, [400] * 2, r), [0.5, 0.5])


def test_without_replay_the_cumulative_average_balances():
    assert [best_kappa([300] * tasks, 1.0) for tasks in (2, 5, 20)] == [0, 0, 0]


@pytest.mark.parametrize(("tasks", "r"), [(2, 0.5), (5, 0.2), (5, 0.07), (10, 0.1), (2, SEEN), (7, SEEN)])
@pytest.mark.parametrize("batches", [1, 30, 3000])
def test_up_to_one_over_the_tasks_the_shortest_memory_balances_best(tasks, r, batches):
    assert best_kappa([batches] * tasks, r) == 1
    assert (np.diff(distances(np.linspace(0, 1, 50), [batches] * tasks, r)) <= ROUNDING).all()


def test_best_kappa_is_inverse_to_the_batches_and_settles_over_the_tasks():
    constants = [best_kappa([1000] * tasks, 0.5) * tasks * 1000 for tasks in (5, 20, 100, 400)]
    assert constants == pytest.approx([23.5, 19.95, 19.0, 18.9], abs=0.1)
    for batches, eta in product((50, 1000, 15_650), (0.05, 0.1)):
        theta = -best_kappa([batches] * 5, 0.5, eta) * batches * np.log(1 - eta)
        assert theta == pytest.approx(0.49451, abs=1e-5)
        assert shortest([batches] * 5, 0.5, eta) == pytest.approx(0.056495, abs=1e-6)


def test_the_grid_of_the_paper_is_the_ema_for_long_tasks():
    assert distances([0.1, 0.4, 0.7, 1], [1000] * 5, 0.5) == pytest.approx([0.3] * 4, abs=2e-5)
    assert distances([0], [1000] * 5, 0.5)[0] == pytest.approx(0.216667, abs=1e-6)


@pytest.mark.parametrize(("tasks", "r"), [(3, 0.4), (5, 0.5), (20, 0.1)])
def test_kappa_of_the_printed_theorem(tasks, r):
    kappa = math.log(1 - (1 / r - 1) / (tasks - 1)) / (300 * math.log(0.9))
    etas = kappa_momentum(300 * tasks, kappa)
    close(statistical_weights(etas, r, [300] * tasks, printed=True), np.full(tasks, 1 / tasks))


@pytest.mark.parametrize(("tasks", "r"), [(2, 0.5), (5, 0.5), (7, 0.6), (4, 1.0), (6, 1 / 3), (5, 1 / 5), (60, 1 / 49)])
def test_masses_that_balance_and_the_momentum_that_makes_them(tasks, r):
    """After every task, once there are as many as 1/r. A task's mass follows from that of the next."""
    masses, lengths = np.ones(tasks), np.arange(3, 3 + tasks)
    for g in range(tasks, 1, -1):  # task g - 1, counted from 1, from task g
        keep = 2 * r - 1 if g == 2 else 1 - (1 / r - 1) / (g - 1)
        masses[g - 2] = masses[g - 1] * (0 if abs(keep) < 1e-12 else keep)
    of_batches = np.repeat(masses / masses.sum() / lengths, lengths)
    so_far = np.cumsum(of_batches)
    etas = np.divide(of_batches, so_far, out=np.ones_like(so_far), where=so_far > 0)
    for seen in range(max(2, round(1 / r)), tasks + 1):
        end = sum(lengths[:seen])
        close(statistical_weights(etas[:end], r, lengths[:seen]), np.full(seen, 1 / seen))


def test_cumulative_average_under_replay():
    close(replay_cma(6, 0.5), [1, 1, 2 / 3, 1 / 2, 2 / 5, 1 / 3])
    close(replay_cma(9, 1.0), cma(9))
    apart = [distance(statistical_weights(replay_cma(t * 1000, 0.5), 0.5, [1000] * t)) for t in (5, 10, 20, 40)]
    assert apart == pytest.approx([0.0433, 0.0199, 0.0096, 0.0047], abs=1e-4)
    assert all(more < 0.52 * less for less, more in pairwise(apart))  # about one over the tasks


def test_masses_of_tasks():
    close(task_masses(0.0, [1, 3]), [1 / 4, 3 / 4])
    close(task_masses(1e-14, [1, 3]), [1 / 4, 3 / 4])
    close(task_masses(1.0, [1, 2], eta=0.5), [1 / 7, 6 / 7])
    u = 0.9**0.1  # a kappa of 1e-7 over a million batches
    close(task_masses(1e-7, [10**6] * 2), [u / (1 + u), 1 / (1 + u)])


def test_table_of_the_documentation():
    rows = [line.strip("| ").split(" | ") for line in DOCS.splitlines() if line.count("|") == 9][2:]
    assert [tuple(row[:2]) for row in rows] == list(product(("5", "10", "20"), ("2/3", "1/2", "1/3", "1/5")))
    for tasks, r, constant, short, long, *apart in rows:
        bests = [best_kappa([batches] * int(tasks), share(r)) for batches in (100, 1000)]
        assert [f"{best:.3g}" for best in bests] == [short, long]
        assert constant == ("–" if bests[1] == 1 else f"{bests[1] * 1000 * int(tasks):.1f}")
        assert [f"{value:.3f}" for value in distances([bests[1], 0, 1], [1000] * int(tasks), share(r))] == apart


# --- the command ------------------------------------------------------------------------------------------------------


def output(capsys, words: str) -> list[str]:
    assert main(words.split()) == 0
    return capsys.readouterr().out.splitlines()


def test_command_prints_weights_side_by_side(capsys):
    lines = output(capsys, "weights --tasks 5 --batches 10 --share 0.5 --momentum cma")
    rows = [line.split() for line in lines]
    assert rows[0] == ["task", "as", "it", "is", "as", "printed"]
    assert [float(row[1]) for row in rows[1:6]] == pytest.approx(CMA_OF_FIVE, abs=1e-4)
    assert [row[2] for row in rows[1:6]] == ["0.2667", "0.2333", "0.2000", "0.1667", "0.1333"]
    assert rows[6:] == [["distance", "to", "equal", "0.2167", "0.1000"], ["largest", "/", "smallest", "4.083", "2"]]
    assert all(f"    {line}\n" in DOCS for line in lines[:6])


def test_command_takes_lengths_and_momenta(capsys):
    lines = output(capsys, "weights --tasks 2 --batches 1,2 --share 1/2 --eta 0.5")
    assert [line.split()[1:] for line in lines[1:3]] == [["0.5714", "0.5385"], ["0.4286", "0.4615"]]  # 4/7 and 7/13
    assert output(capsys, "weights --tasks 3 --batches 9 --share seen --momentum kappa --kappa 1") == output(
        capsys, "weights --tasks 3 --batches 9 --share seen"
    )
    assert "0.2416" in output(capsys, "weights --tasks 5 --batches 1000 --share 1/2 --momentum replay-cma")[1]


def test_command_prints_gradients_beside_both_theorems(capsys):
    lines = output(capsys, "gradients")
    assert all(f"    {line}\n" in DOCS for line in lines)
    _, total, above, negative = [line.split()[-3:] for line in lines]
    assert total[0] == total[1]
    assert (above[1:], negative[1:]) == (["0", "64"], ["0", "29"])
    lines = output(capsys, "gradients --samples 2 --channels 3 --positions 1")
    assert [line.split()[-2:] for line in lines[2:]] == [["0", "0"], ["0", "0"]]


def test_command_finds_the_best_kappa(capsys):
    kappa, weights, apart = output(capsys, "best-kappa --tasks 5 --batches 1000 --share 0.5")
    assert kappa.split()[1] == "0.004693"
    assert "0.000494" in kappa  # the momentum of the EMA that weighs batches alike
    assert weights.split()[1:] == ["0.2435", "0.1845", "0.1758", "0.1832", "0.2130"]
    assert [number in apart for number in ("0.0565", "0.2167", "0.3000")] == [True] * 3
