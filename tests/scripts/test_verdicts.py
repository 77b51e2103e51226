"""Paired differences, their intervals, and what they say of the paper's statements."""

from __future__ import annotations

from dataclasses import replace
from statistics import stdev

import numpy as np
import pytest
from scipy.stats import t

from scripts.reproduce import main as reproduce
from tests.scripts.records import finish, made_up_verdict, selection_of
from utils.studies.claims import ALIKE, CLAIMS, NOT_ABOVE, Claim, minus
from utils.studies.compare import Paired, averaged, stratified_estimate
from utils.studies.plans import CLASS_IL, Experiment, faa
from utils.studies.presets import NARROW, PAPER, SMOKE
from utils.studies.selection import Selection
from utils.studies.verdicts import FAILS, HOLDS, NO_VERDICT, OPEN, correct_p_values, judge

OURS, BN = Experiment("derpp", "adab2n", "cifar10", 50), Experiment("derpp", "bn", "cifar10", 50)
OTHER_OURS, OTHER_BN = replace(OURS, model="er_ace"), replace(BN, model="er_ace")


def selection(folder, preset=SMOKE, seeds=(3, 4, 5)) -> Selection:
    return selection_of(folder, preset, seeds)


def fill(chosen: Selection, experiment: Experiment, values) -> None:
    for run, value in zip(chosen.final(experiment), values, strict=False):
        finish(run, value)


# --- paired differences and their mean over cells ---------------------------------------------------------------------


def test_interval_by_hand():
    """Differences 1, 2, 3: mean 2, standard deviation 1, t of 2 degrees of freedom 4.302653."""
    paired = Paired((1.0, 2.0, 3.0))
    assert (paired.n, paired.mean) == (3, 2.0)
    assert paired.interval == pytest.approx((2 - 4.3026527 / 3**0.5, 2 + 4.3026527 / 3**0.5))
    assert paired.p == pytest.approx(0.0742, abs=1e-4)
    assert not paired.is_above
    assert Paired((2.0, 2.1, 1.9)).is_above
    assert Paired((-2.0, -2.1, -1.9)).is_below
    assert Paired((5.0,)).interval is None
    assert Paired((5.0, 5.0)).interval is None
    assert Paired((0.3 - 0.1, 0.2)).interval is None  # equal but for rounding
    assert Paired(()).mean is None


FULL, SHORT = {3: 1.0, 4: 2.0, 5: 6.0, 6: 3.0}, {3: 0.0, 4: 4.0, 5: 1.0}


def test_blocks_keep_their_own_variance():
    """By hand: variances of means, added up; Satterthwaite's degrees of freedom."""
    pooled = averaged([FULL, SHORT], ["a", "b"])
    variances = [stdev(cell.values()) ** 2 / len(cell) / 4 for cell in (FULL, SHORT)]
    df = sum(variances) ** 2 / (variances[0] ** 2 / 3 + variances[1] ** 2 / 2)
    assert pooled.pooled == pytest.approx(((3.0 + 5 / 3) / 2, sum(variances) ** 0.5, df))
    assert pooled.text(1).endswith("n = 3 to 4")


def test_cells_of_a_block_are_averaged_seed_by_seed():
    other = {3: 3.0, 4: 1.0, 5: 2.0, 6: 7.0}
    by_seed = Paired(tuple((FULL[seed] + other[seed]) / 2 for seed in FULL))
    assert averaged([FULL, other]).interval == pytest.approx(by_seed.interval)
    assert averaged([FULL, FULL]).interval == pytest.approx(Paired(tuple(FULL.values())).interval)
    assert averaged([]).mean is None


def test_a_cell_with_one_seed_counts_with_the_spread_of_the_others():
    pooled = averaged([SHORT, {3: 9.0}], ["a", "b"])
    variance = stdev(SHORT.values()) ** 2
    assert pooled.mean == pytest.approx((5 / 3 + 9.0) / 2)
    assert pooled.pooled[1] == pytest.approx(((variance / 3 + variance) / 4) ** 0.5)
    assert averaged([{3: 1.0}, {3: 9.0}]).interval is None


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize(
    ("within", "across", "least"),
    [(0.0, 0.0, 0.93), (0.5, 0.0, 0.93), (0.5, 0.2, 0.93), (0.25, 0.25, 0.93), (0.5, 0.5, 0.915)],
)
@pytest.mark.parametrize("spreads", [(1.0, 1.0, 1.0, 1.0), (4.0, 5.0, 1.4, 1.4)], ids=["equal", "unequal"])
def test_the_interval_covers_the_truth_as_often_as_it_says(n, within, across, least, spreads):
    """Two methods on two data sets. Cells of a seed are correlated, within and across data sets."""
    rng = np.random.default_rng(0)
    of_seed, of_data, own = (rng.standard_normal((20_000, *shape, n)) for shape in ((1, 1), (2, 1), (2, 2)))
    cells = np.sqrt(across) * of_seed + np.sqrt(within - across) * of_data + np.sqrt(1 - within) * own
    values = cells.reshape(-1, 4, n) * np.array(spreads)[:, None]
    center, error, df = stratified_estimate(values, np.array(["a", "a", "b", "b"]), np.full(4, 0.25))
    halves = t.isf(0.025, df) * error
    assert least < np.mean(np.abs(center) < halves) < 0.97
    if n == 3:  # narrower than the interval of the seeds' means, which has two degrees of freedom
        assert halves.mean() < (t.isf(0.025, 2) * values.mean(1).std(-1, ddof=1) / n**0.5).mean()


# --- statements -------------------------------------------------------------------------------------------------------


def claim(*cells: tuple[Experiment, Experiment], **facts) -> Claim:
    chosen = [(str(number), minus(*pair, faa(CLASS_IL))) for number, pair in enumerate(cells)]
    return Claim("made-up", "ours is above", "nowhere", lambda preset: iter(chosen), **facts)


@pytest.mark.parametrize(
    ("differences", "says", "finding", "conclusion"),
    [
        ((5.0, 5.1, 4.9), "above", "above", HOLDS),
        ((-5.0, -5.1, -4.9), "above", "below", FAILS),
        ((0.1, -0.1, 0.0), "above", "equivalent", FAILS),
        ((1.0, 1.1, 0.9), "above", "above", HOLDS),  # within the margin too
        ((5.0, 0.1, -3.0), "above", OPEN, OPEN),
        ((5.0, 5.1), "above", "no quorum", NO_VERDICT),
        ((), "above", "no runs", NO_VERDICT),
        ((5.0, 5.0, 5.0), "above", OPEN, OPEN),
        ((0.1, -0.1, 0.0), ALIKE, "equivalent", HOLDS),
        ((5.0, 5.1, 4.9), ALIKE, "above", FAILS),
        ((2.0, 2.1, 1.9), ALIKE, "above", OPEN),
        ((0.1, -0.1, 0.0), NOT_ABOVE, "equivalent", HOLDS),
        ((-3.0, -1.0, -2.0), NOT_ABOVE, OPEN, HOLDS),  # not below, but not above by more than the margin
        ((5.0, 5.1, 4.9), NOT_ABOVE, "above", FAILS),
    ],
)
def test_what_follows_from_an_interval(tmp_path, differences, says, finding, conclusion):
    chosen = selection(tmp_path)
    fill(chosen, OURS, [50 + difference for difference in differences])
    fill(chosen, BN, [50.0] * 3)
    verdict = judge(claim((OURS, BN), says=says), chosen)
    assert (verdict.verdict.split(" (")[0], verdict.conclusion) == (finding, conclusion)


def test_there_is_no_verdict_without_a_quorum(tmp_path):
    """Of three confirmatory seeds in a third of the cells."""
    chosen = selection(tmp_path, seeds=(0, 1, 2, 3, 4, 5))
    for experiment in (OURS, BN):
        fill(chosen, experiment, [50.0 + (5 + 0.1 * seed) * (experiment is OURS) for seed in range(6)])
    without_runs = [(OURS, replace(OURS, buffer=200))] * 3
    for seeds, n_missing, conclusion in (
        ((3, 4, 5), 2, HOLDS),
        ((3, 4, 5), 3, NO_VERDICT),
        ((3, 4), 0, NO_VERDICT),
        ((0, 1, 2), 0, NO_VERDICT),
        ((2, 3, 4, 5), 0, NO_VERDICT),
    ):
        verdict = judge(claim((OURS, BN), *without_runs[:n_missing]), replace(chosen, seeds=seeds))
        assert (verdict.tendency, verdict.conclusion) == (HOLDS, conclusion), (seeds, n_missing)
        assert verdict.share.startswith(f"above in 1 of {1 + n_missing} cells")


def test_runs_that_diverge_count_against_a_statement(tmp_path):
    """One cell is clearly above; of the second, AdaB2N's run diverged."""
    chosen = selection(tmp_path)
    for experiment, values in ((OURS, [60.0, 60.1, 59.9]), (BN, [50.0] * 3), (OTHER_BN, [50.0] * 3)):
        fill(chosen, experiment, values)
    statement = claim((OURS, BN), (OTHER_OURS, OTHER_BN))
    assert judge(statement, chosen).conclusion == HOLDS
    finish(chosen.final(OTHER_OURS)[0], 0.0, status="failed", reason="the run diverged in task 1")
    verdict = judge(statement, selection(tmp_path))
    assert (verdict.conclusion, verdict.share) == (OPEN, "above in 1 of 2 cells, diverged in 1")


def test_comparisons_of_one_cell_are_averaged_seed_by_seed(tmp_path):
    chosen = selection(tmp_path)
    for experiment, values in ((OURS, [60.0, 61.0, 62.0]), (BN, [50.0] * 3), (OTHER_BN, [40.0, 42.0])):
        fill(chosen, experiment, values)
    pairs = [("here", minus(OURS, other, faa(CLASS_IL))) for other in (BN, OTHER_BN)]
    verdict = judge(Claim("made-up", "", "", lambda preset: iter(pairs)), chosen)
    assert verdict.values == {"here": {3: 15.0, 4: 15.0}}
    assert verdict.dropped == {"here": [5]}


def test_holm_corrects_within_the_papers_statements_and_within_ours():
    """By hand: the smallest p times 3, the next times 2, the largest times 1, and never less than the one before."""
    cells = [{3: 5.0, 4: 5.5, 5: 4.5}, {3: 2.0, 4: 3.5, 5: 2.5}, {3: 1.0, 4: 1.6, 5: 2.2}]
    verdicts = [made_up_verdict(cell, id=str(i), source="Table 2") for i, cell in enumerate(cells)]
    verdicts.append(made_up_verdict(cells[0], id="ours", source="our question"))
    p = [verdict.difference.p for verdict in verdicts]
    assert p[0] < p[1] < p[2] < 0.1
    expected = [3 * p[0], max(3 * p[0], 2 * p[1]), max(2 * p[1], p[2]), p[0]]
    assert [verdict.corrected_p for verdict in correct_p_values(verdicts)] == pytest.approx(expected)
    assert verdicts[1].verdict == "above"
    assert correct_p_values(verdicts)[1].verdict.startswith(OPEN)  # 0.026 alone


def test_how_many_seeds_would_decide():
    """Mean 1.5 and deviation 2, by trying: the interval of that many seeds excludes zero, of one fewer it does not."""
    verdict = made_up_verdict({3: -0.5, 4: 1.5, 5: 3.5})
    halves = {n: t.isf(0.025, n - 1) * 2 / n**0.5 for n in range(3, 30)}
    needed = min(n for n, half in halves.items() if half < 1.5)
    assert verdict.seeds_to_decide == needed > 3
    assert str(needed) in verdict.verdict
    assert made_up_verdict({3: 5.0, 4: 5.5, 5: 4.5}).seeds_to_decide is None


def test_methods_are_shown_where_they_differ():
    gains = {3: 5.0, 4: 5.5, 5: 4.5}
    verdict = made_up_verdict(gains, {seed: -value for seed, value in gains.items()}, methods=["derpp", "er_ace"])
    assert verdict.differs_by_method
    assert {name: part.difference.mean for name, part in verdict.by_method.items()} == {"DER++": 5.0, "ER-ACE": -5.0}
    assert not made_up_verdict(gains, gains, methods=["derpp", "er_ace"]).differs_by_method


# --- the paper's statements -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "mean", "interval"),
    [
        ("offline", 0.55, (-0.38, 1.48)),
        ("permuted-mnist", 12.26, None),  # Table 9 has no deviations
        ("batch-32-class", None, None),  # Figure 2 has no numbers
        ("width-64-class", 4.95, (0.37, 9.53)),  # DER++ in one cell: Welch's test
    ],
)
def test_the_papers_own_evidence(tmp_path, id, mean, interval):
    published = judge(CLAIMS[id], selection(tmp_path, NARROW)).published
    assert (None if published is None else published.mean) == (mean if mean is None else pytest.approx(mean))
    if interval:
        assert published.interval == pytest.approx(interval, abs=0.005)
    elif published:
        assert published.interval is None


def test_smaller_than_published_allows_for_the_papers_spread(tmp_path):
    """DER++ on CIFAR-10 with 500: 59.44 - 52.85 = +6.59, with deviations of 2.65 and 4.34 over three seeds."""
    chosen = selection(tmp_path, NARROW)
    for gain, is_smaller in ((1.0, False), (-3.0, True)):
        for norm, extra in (("bn", 0.0), ("adab2n", gain)):
            experiment = Experiment("derpp", norm, "cifar10", 500)
            fill(chosen, experiment, [50 + extra + shift for shift in ((0.0, 0.1, -0.1) if extra else (0.0,) * 3)])
        verdict = judge(CLAIMS["adab2n-bn-class"], selection(tmp_path, NARROW))
        assert verdict.published.mean == pytest.approx(6.59)
        assert verdict.difference.interval[1] < 6.59
        assert ("smaller than published" in verdict.findings) == is_smaller


@pytest.mark.parametrize("preset", [PAPER, NARROW, SMOKE], ids=lambda preset: preset.name)
def test_every_claim_has_cells_whose_runs_can_be_named(preset, tmp_path):
    chosen = selection(tmp_path, preset, (0,))
    for statement in CLAIMS.values():
        cells = [cell for _, cell in statement.cells(preset)]
        assert cells or preset is SMOKE
        assert all(sum(sign for sign, _ in cell.terms) == 0 for cell in cells)
        assert all(chosen.final(experiment) for cell in cells for experiment in cell.experiments)
        assert not judge(statement, chosen).values
        setting = statement.id.rpartition("-")[2]
        if setting in ("class", "task"):
            assert {cell.metric[1] for cell in cells} <= {f"{setting}_il"}


def test_gain_with_large_batches_is_a_difference_of_differences(tmp_path):
    """Gains of 1 with batches of ten and of 4 with large ones."""
    chosen = selection(tmp_path)
    for _, cell in CLAIMS["batch-32-class"].cells(SMOKE):
        values = {("adab2n", True): 44.0, ("bn", True): 40.0, ("adab2n", False): 31.0, ("bn", False): 30.0}
        for experiment in cell.experiments:
            value = values[experiment.norm, bool(experiment.flags)]
            fill(chosen, experiment, [value, value + 0.1 * (value == 44.0), value])
    verdict = judge(CLAIMS["batch-32-class"], chosen)
    assert verdict.difference.mean == pytest.approx(3 + 0.1 / 3)
    assert verdict.conclusion == HOLDS


def test_command_prints_both_kinds_of_seeds_side_by_side(tmp_path, capsys):
    chosen = selection(tmp_path, seeds=(0, 1, 3, 4, 5))
    for experiment in {e for _, cell in CLAIMS["cn-bn-class"].cells(SMOKE) for e in cell.experiments}:
        gains = (-1.0, -1.2, 1.0, 1.2, 1.1) if experiment.norm == "cn" else [0.0] * 5
        fill(chosen, experiment, [50.0 + gain for gain in gains])
    assert reproduce(["claims", "--preset", "smoke", "--seeds", "0,1", "--results_path", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if "CN is above BN, Class-IL" in line)
    assert lines[place].startswith(HOLDS)
    assert "above; +1.10 [+0.85, +1.35], n = 3, above in 8 of 8 cells" in lines[place + 1]
    assert "no quorum; -1.10 [-2.37, +0.17], n = 2, above in 0 of 8 cells, below in 8" in lines[place + 2]
    assert sum(line.startswith((HOLDS, FAILS, OPEN, NO_VERDICT)) for line in lines) == len(CLAIMS)
