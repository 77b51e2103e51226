"""Statistical weights of tasks against brute force, corollaries within their bounds or refuted, and the best kappa."""

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from backbone.norms import norm_factory
from scripts.theory import main
from tests.scripts import corollaries
from utils.data.random import generator
from utils.errors import UsageError
from utils.theory.kappa import best_kappa, distances, kappa_weights, task_masses
from utils.theory.weights import (
    SEEN,
    batch_shares,
    batch_weights,
    cma,
    distance,
    effective_weights,
    ema,
    kappa_momentum,
    ratio,
    replay_cma,
    statistical_weights,
    task_lengths,
    task_shares,
)

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "theory.md").read_text()
ROUNDING = 1e-15
CMA_OF_FIVE = [0.408333333333, 0.208333333333, 0.158333333333, 0.125, 0.1]  # ten batches each, r = 1/2
both = pytest.mark.parametrize("printed", [False, True], ids=["as it is", "as printed"])
EQUAL = [(tasks, batches, eta) for tasks in (2, 3, 5, 20) for batches in (1, 7, 40) for eta in (0.02, 0.1, 0.6)]
each_equal = pytest.mark.parametrize(("tasks", "batches", "eta"), EQUAL)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def random_setting(number: int):
    """(momenta, shares of the current task, lengths), all different from batch to batch."""
    draw = generator(number, "theory")
    lengths = draw.integers(1, 30, size=draw.integers(1, 9))
    return draw.uniform(0.001, 0.6, lengths.sum()), draw.uniform(0.01, 1, lengths.sum()), lengths


def by_hand(etas, r, lengths, printed: bool) -> list[float]:
    """The recursion on plain numbers, one task's statistics being 1 and all others' 0, once for each task."""
    found = []
    for of_task in range(len(lengths)):
        running, step = 0.0, 0
        for task, length in enumerate(lengths):
            for _ in range(length):
                share = 1.0 if task == 0 and not printed else r[step]
                replayed_tasks = len(lengths) - 1 if printed else task
                batch = share if task == of_task else (1 - share) / replayed_tasks if of_task < task else 0.0
                running = (1 - etas[step]) * running + etas[step] * batch
                step += 1
        found.append(running)
    return found


# --- Theorem 1 --------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("number", range(30))
def test_theorem_is_the_recursion(number, printed):
    etas, r, lengths = random_setting(number)
    raw = statistical_weights(etas, r, lengths, printed=printed, normalized=False)
    close(raw, by_hand(etas, r, lengths, printed))
    close(statistical_weights(etas, r, lengths, printed=printed), raw / raw.sum())
    close(effective_weights(etas, batch_shares(r, lengths, printed=printed))[-1], raw)
    if not printed:
        close(raw.sum() + np.prod(1 - etas), 1)  # the rest is the initial statistics'


def test_weights_are_the_running_means_of_batch_norm_whose_channels_are_the_tasks():
    """Twelve samples, one-hot in their task: six of the current one, the others from the tasks before."""
    layer, lengths, tasks = nn.BatchNorm1d(4, momentum=0.3, dtype=torch.float64), [3, 2, 4, 1], []
    for task, length in enumerate(lengths):
        old = [[], [0] * 6, [0, 1] * 3, [0, 1, 2] * 2][task]
        tasks += [torch.tensor(old + [task] * (12 - len(old)))] * length
    for of_samples in tasks:
        layer(nn.functional.one_hot(of_samples, 4).double())
    found = statistical_weights(ema(10, 0.3), 0.5, lengths, normalized=False)
    close(found, layer.running_mean)


def test_first_task_has_all_of_its_batches_whatever_r_says():
    close(statistical_weights(ema(6), 0.3, [6]), [1])
    close(batch_shares(0.25, [1, 1, 2]), [[1, 0, 0], [0.75, 0.25, 0], [0.375, 0.375, 0.25], [0.375, 0.375, 0.25]])
    close(batch_shares(0.25, [1, 1, 1], printed=True), [[0.25, 0, 0], [0.375, 0.25, 0], [0.375, 0.375, 0.25]])


def test_share_of_one_over_the_tasks_seen():
    close(batch_shares(SEEN, [1, 1, 1]), [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
    each = np.repeat([1, 1 / 2, 1 / 3], [2, 3, 4])
    close(statistical_weights(ema(9), SEEN, [2, 3, 4]), statistical_weights(ema(9), each, [2, 3, 4]))


def test_effective_weights_after_every_batch():
    """Also of several layers at once, and of shares that do not sum to 1."""
    close(effective_weights([0.5, 0.25], [[1, 0], [0.2, 0.6]]), [[0.5, 0], [0.375 + 0.05, 0.15]])
    etas, r, lengths = random_setting(3)
    found = effective_weights(etas, batch_shares(r, lengths))
    for task in range(1, len(lengths) + 1):
        end = sum(lengths[:task])
        close(found[end - 1, :task], statistical_weights(etas[:end], r[:end], lengths[:task], normalized=False))
        assert not found[end - 1, task:].any()
    layers = np.stack([batch_shares(r, lengths), batch_shares(0.5, lengths)], axis=1)
    close(effective_weights(etas, layers)[:, 0], found)


def test_measures_of_balance():
    assert distance(np.array([3.0, 1.0, 0.0])) == pytest.approx(3 / 4 - 1 / 3)
    assert ratio(np.array([0.6, 0.3, 0.1])) == pytest.approx(6)
    assert ratio(np.array([1.0, 0.0])) == float("inf")
    assert distance(np.full(7, 0.2)) == pytest.approx(0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: task_shares(0, 3),
        lambda: task_shares(float("nan"), 3),
        lambda: task_shares([0.5, 0.5], 3),
        lambda: task_lengths(3, [4, 4]),
        lambda: task_lengths(3, [4, 0, 4]),
        lambda: statistical_weights(ema(5), 1.0, [3, 3]),
        lambda: effective_weights(ema(5), np.ones((6, 2))),
    ],
)
def test_numbers_that_do_not_fit_are_refused(call):
    with pytest.raises(UsageError):
        call()


# --- momenta ----------------------------------------------------------------------------------------------------------


def test_kappa_at_its_ends():
    close(kappa_momentum(50, 1.0, 0.3), ema(50, 0.3))
    close(kappa_momentum(50, 0.0, 0.3), cma(50))
    close(cma(4), [1, 1 / 2, 1 / 3, 1 / 4])
    close(kappa_momentum(3, 0.0, start="eta1"), [1 / 2, 1 / 3, 1 / 4])  # the paper's 1 / (1 + i)


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
    close(etas, kappa_momentum(6, kappa, 0.2, start))
    close(effective_weights(etas, shares)[-1], layer.running_mean.numpy())


@pytest.mark.parametrize("start", ["eta0", "eta1"])
@pytest.mark.parametrize("kappa", [0.0, 0.003, 0.4, 0.7, 1.0])
def test_kappa_weighs_batches_as_an_ema_does(kappa, start):
    """The lemma: consecutive batches differ by (1 - eta)^kappa, whatever the first momentum is."""
    found = batch_weights(kappa_momentum(80, kappa, 0.1, start))
    close(found[:-1], 0.9**kappa * found[1:])
    for r in (0.5, SEEN):
        lengths = [10, 30, 15, 25]
        etas = kappa_momentum(80, kappa, 0.1, start)
        close(kappa_weights(kappa, lengths, r), statistical_weights(etas, r, lengths))


# --- corollaries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(10))
def test_corollary_1_for_any_lengths(number):
    _, _, lengths = random_setting(number)
    close(corollaries.no_replay(lengths, 0.15), statistical_weights(ema(sum(lengths), 0.15), 1.0, lengths))


@each_equal
def test_corollary_1_for_equal_lengths(tasks, batches, eta):
    exact = corollaries.no_replay([batches] * tasks, eta)
    close(corollaries.no_replay_printed([batches] * tasks, eta), exact)
    about, bound = corollaries.no_replay_approximation(tasks, batches, eta)
    assert np.abs(exact - about).max() <= bound + ROUNDING
    close(about / about.sum(), exact)


def test_corollary_1_as_printed_is_wrong_for_other_lengths():
    close(corollaries.no_replay([10, 1], 0.1)[0], (0.9 - 0.9**11) / (1 - 0.9**11))
    close(corollaries.no_replay_printed([10, 1], 0.1)[0], (0.9**10 - 0.9**11) / (1 - 0.9**11))
    assert ".854 and not .051" in DOCS


@each_equal
def test_corollary_2_as_printed(tasks, batches, eta):
    r, bound = corollaries.balancing_share_printed(tasks, batches, eta)
    close(statistical_weights(ema(tasks * batches, eta), r, [batches] * tasks, printed=True), np.full(tasks, 1 / tasks))
    assert abs(r - 1 / tasks) - ROUNDING <= bound <= (1 - eta) ** batches


@each_equal
def test_corollary_2_as_it_is(tasks, batches, eta):
    """r = 1/T balances up to the bound; what balances up to some deviation has an r that close to 1/T, and u."""
    u, bound = (1 - eta) ** batches, corollaries.balance_bound(tasks, batches, eta)
    weights = statistical_weights(ema(tasks * batches, eta), 1 / tasks, [batches] * tasks)
    assert np.abs(weights - 1 / tasks).max() - ROUNDING <= bound <= u
    for r in np.linspace(0.05, 1, 20):
        found = statistical_weights(ema(tasks * batches, eta), r, [batches] * tasks)
        deviation = np.abs(found - 1 / tasks).max()
        assert abs(r - 1 / tasks) <= deviation + u + ROUNDING
        assert tasks == 2 or deviation > 1e-12 or u < 1e-9
    if tasks == 2:
        close(statistical_weights(ema(2 * batches, eta), (1 + u) / 2, [batches] * 2), [0.5, 0.5])


def test_corollary_2_bound_is_attained():
    """Two tasks, r = 1/2: the first has all of its own batches and half of the others."""
    weights = statistical_weights(ema(14), 0.5, [7, 7])
    close(weights[0] - 0.5, corollaries.balance_bound(2, 7))


@pytest.mark.parametrize(("tasks", "r"), list(product((2, 3, 5, 20), (0.05, 0.3, 0.5, 1.0))))
def test_corollary_3_as_it_is(tasks, r):
    found = statistical_weights(cma(tasks * 10), r, [10] * tasks)
    close(found, corollaries.cumulative(tasks, r))
    close(statistical_weights(1 / np.arange(2, tasks * 10 + 2), r, [10] * tasks), found)
    deviation = np.abs(found - 1 / tasks)
    assert deviation.max() == pytest.approx(corollaries.cumulative_bound(tasks, r)) == pytest.approx(deviation[0])
    assert (ratio(found) == pytest.approx(1)) == (r == 1)


def test_corollary_3_does_not_hold_as_printed():
    close(statistical_weights(cma(50), 0.5, [10] * 5), CMA_OF_FIVE)
    printed = statistical_weights(cma(50), 0.5, [10] * 5, printed=True)
    close(printed, np.array([4, 3.5, 3, 2.5, 2]) / 15)  # 0.5 + 0.125 for each later task
    close(statistical_weights(cma(60), 1.0, [10, 20, 30]), [1 / 6, 1 / 3, 1 / 2])


# --- what kappa balances best -----------------------------------------------------------------------------------------


def searched(lengths, r, eta=0.1) -> float:
    """The shortest distance on a fine grid."""
    return distances(np.append(0, np.geomspace(1e-5, 1, 1500)), lengths, r, eta).min()


@pytest.mark.parametrize("number", range(8))
def test_best_kappa_beats_a_fine_grid(number):
    draw = generator(number, "best kappa")
    tasks, r, eta = int(draw.integers(2, 7)), draw.uniform(0.1, 1), draw.uniform(0.02, 0.4)
    lengths = draw.integers(1, 1000, tasks)
    found = best_kappa(tasks, lengths, r, eta)
    assert 0 <= found.kappa <= 1
    assert found.distance <= searched(lengths, r, eta) + 1e-12
    close(found.weights, statistical_weights(kappa_momentum(sum(lengths), found.kappa, eta), r, lengths))


def test_best_of_several_minima_is_found():
    lengths, r = [900, 1000, 50], 0.8
    first, between, second = distances([0.01325, 0.03, 0.103], lengths, r)
    assert between > first > second
    found = best_kappa(3, lengths, r)
    assert found.kappa == pytest.approx(0.103, abs=1e-3)
    assert found.distance <= searched(lengths, r)


@pytest.mark.parametrize("tasks", [2, 3, 5, 10, 30])
def test_tasks_of_one_length_have_one_minimum(tasks):
    for r in np.linspace(0.02, 0.99, 12):
        steps = np.diff(distances(np.append(0, np.geomspace(1e-4, 1, 300)), [200] * tasks, r))
        ways = np.sign(steps[np.abs(steps) > 1e-12])
        assert (np.diff(ways) >= 0).all()  # down, and then up


@pytest.mark.parametrize("r", [0.55, 0.75, 0.99])
def test_two_tasks_are_balanced_exactly(r):
    """u = 2r - 1, that is kappa = ln(2r - 1) / (m ln(1 - eta))."""
    found = best_kappa(2, 400, r)
    assert found.kappa == pytest.approx(np.log(2 * r - 1) / (400 * np.log(0.9)), rel=1e-8)
    close(found.weights, [0.5, 0.5])


@pytest.mark.parametrize(("tasks", "r"), [(2, 0.5), (5, 0.2), (5, 0.07), (10, 0.1), (2, SEEN), (7, SEEN)])
@pytest.mark.parametrize("batches", [1, 30, 3000])
def test_up_to_one_over_the_tasks_the_shortest_memory_balances_best(tasks, r, batches):
    assert best_kappa(tasks, batches, r).kappa == 1
    assert (np.diff(distances(np.linspace(0, 1, 50), [batches] * tasks, r)) <= ROUNDING).all()


@pytest.mark.parametrize("tasks", [2, 5, 20])
def test_without_replay_the_cumulative_average_balances(tasks):
    found = best_kappa(tasks, 300, 1.0)
    assert found.kappa == 0
    close(found.weights, np.full(tasks, 1 / tasks))


def test_best_kappa_is_inverse_to_the_batches_and_settles_over_the_tasks():
    constants = [best_kappa(tasks, 1000, 0.5).kappa * tasks * 1000 for tasks in (5, 20, 100, 400)]
    assert constants == pytest.approx([23.5, 19.95, 19.0, 18.9], abs=0.1)
    for batches, eta in product((50, 1000, 15_650), (0.05, 0.1)):
        found = best_kappa(5, batches, 0.5, eta)
        theta = -found.kappa * batches * np.log(1 - eta)
        assert theta == pytest.approx(0.49451, abs=1e-5)
        assert found.distance == pytest.approx(0.056495, abs=1e-6)


def test_the_grid_of_the_paper_is_the_ema_for_long_tasks():
    found = distances([0.1, 0.4, 0.7, 1], [1000] * 5, 0.5)
    assert found == pytest.approx([0.3] * 4, abs=2e-5)
    assert distances([0], [1000] * 5, 0.5)[0] == pytest.approx(0.216667, abs=1e-6)


@pytest.mark.parametrize(("tasks", "r"), [(3, 0.4), (5, 0.5), (20, 0.1)])
def test_kappa_of_the_printed_theorem(tasks, r):
    kappa = corollaries.kappa_printed(tasks, 300, r)
    etas = kappa_momentum(300 * tasks, kappa)
    close(statistical_weights(etas, r, [300] * tasks, printed=True), np.full(tasks, 1 / tasks))
    assert corollaries.kappa_printed(tasks, 300, 1 / tasks) > 1


@pytest.mark.parametrize(("tasks", "r"), [(2, 0.5), (5, 0.5), (7, 0.6), (4, 1.0), (6, 1 / 3), (5, 1 / 5), (60, 1 / 49)])
def test_masses_that_balance_and_the_momentum_that_makes_them(tasks, r):
    """After every task, once there are as many as 1/r."""
    lengths = np.arange(3, 3 + tasks)
    of_batches = np.repeat(corollaries.balancing_masses(tasks, r) / lengths, lengths)
    so_far = np.cumsum(of_batches)
    etas = np.divide(of_batches, so_far, out=np.ones_like(so_far), where=so_far > 0)
    for seen in range(max(2, round(1 / r)), tasks + 1):
        end = sum(lengths[:seen])
        close(statistical_weights(etas[:end], r, lengths[:seen]), np.full(seen, 1 / seen))


@pytest.mark.parametrize(("tasks", "r"), [(2, 0.4), (5, 0.4), (3, 0.25), (5, 0.1)])
def test_where_no_momentum_balances(tasks, r):
    with pytest.raises(ValueError, match="no momentum balances"):
        corollaries.balancing_masses(tasks, r)


def test_cumulative_average_under_replay():
    close(replay_cma(6, 0.5), [1, 1, 2 / 3, 1 / 2, 2 / 5, 1 / 3])
    close(replay_cma(9, 1.0), cma(9))
    found = [distance(statistical_weights(replay_cma(t * 1000, 0.5), 0.5, [1000] * t)) for t in (5, 10, 20, 40)]
    assert found == pytest.approx([0.0433, 0.0199, 0.0096, 0.0047], abs=1e-4)
    assert all(more < 0.52 * less for less, more in pairwise(found))  # about one over the tasks


def test_masses_of_tasks():
    close(task_masses(0.0, [1, 3]), [1 / 4, 3 / 4])
    close(task_masses(1e-14, [1, 3]), [1 / 4, 3 / 4])
    close(task_masses(1.0, [1, 2], eta=0.5), [1 / 7, 6 / 7])
    u = 0.9**0.1  # a kappa of 1e-7 over a million batches
    close(task_masses(1e-7, [10**6] * 2), [u / (1 + u), 1 / (1 + u)])


# --- the command ------------------------------------------------------------------------------------------------------


def said(capsys, words: str) -> list[str]:
    assert main(words.split()) == 0
    return capsys.readouterr().out.splitlines()


def test_command_prints_weights_side_by_side(capsys):
    lines = said(capsys, "weights --tasks 5 --batches 10 --share 0.5 --momentum cma")
    rows = [line.split() for line in lines]
    assert rows[0] == ["task", "as", "it", "is", "as", "printed"]
    assert [float(row[1]) for row in rows[1:6]] == pytest.approx(CMA_OF_FIVE, abs=1e-4)
    assert [row[2] for row in rows[1:6]] == ["0.2667", "0.2333", "0.2000", "0.1667", "0.1333"]
    assert rows[6:] == [["distance", "to", "equal", "0.2167", "0.1000"], ["largest", "/", "smallest", "4.083", "2"]]
    assert all(f"    {line}\n" in DOCS for line in lines[:6])


def test_command_takes_lengths_momenta_and_the_initial_statistics(capsys):
    lines = said(capsys, "weights --tasks 2 --batches 1,2 --share 1/2 --eta 0.5 --unnormalized")
    assert [line.split() for line in lines[1:4]] == [
        ["1", "0.5000", "0.4375"],  # 1/8 and half of 3/4; half of 1/8 as printed
        ["2", "0.3750", "0.3750"],
        ["start", "0.1250", "0.1250"],
    ]
    assert said(capsys, "weights --tasks 3 --batches 9 --share seen --momentum kappa --kappa 1") == said(
        capsys, "weights --tasks 3 --batches 9 --share seen"
    )
    assert "0.2416" in said(capsys, "weights --tasks 5 --batches 1000 --share 1/2 --momentum replay-cma")[1]


def test_command_finds_the_best_kappa(capsys):
    assert said(capsys, "best-kappa --tasks 5 --batches 1000 --share 0.5") == [
        "kappa     0.004693 (weighs batches as an EMA of momentum 0.000494 does)",
        "weights   0.2435 0.1845 0.1758 0.1832 0.2130",
        "distance  0.0565 to equal (kappa 0, CMA: 0.2167; kappa 1, EMA: 0.3000)",
    ]


def test_table_of_the_documentation_is_the_command_s(capsys):
    lines = said(capsys, "best-kappa --table")
    assert len(lines) == 2 + 3 * 5
    assert "\n".join(lines) in DOCS


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        ("", "command"),
        ("weights --tasks 5 --share 0.5", "--batches"),
        ("best-kappa --table --tasks 5", "--table"),
        ("weights --tasks 5 --batches 1,2 --share 0.5", "5 of them"),
        ("weights --tasks 5 --batches 5 --share 1/0", "--share"),
        ("weights --tasks 5 --batches 5 --share nan", "--share"),
        ("weights --tasks 5 --batches 5 --share 1 --kappa 0.5", "--kappa"),
        ("weights --tasks 5 --batches 5 --share 1 --momentum cma --eta 0.5", "--eta"),
        ("weights --tasks 5 --batches 5 --share seen --momentum replay-cma", "--share"),
        ("weights --tasks 1000 --batches 10000000 --share 1", "10000000"),
    ],
)
def test_refusals_are_one_line(words, keyword, capsys):
    try:
        code = main(words.split())
    except SystemExit as ended:
        code = ended.code
    output = capsys.readouterr()
    assert (code, output.out, output.err.count("\n")) == (2, "", 1)
    assert output.err.startswith("error: ")
    assert keyword in output.err
