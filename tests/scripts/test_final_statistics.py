"""docs/statistics.md: what it says follows from the records, and Theorem 1's weights from the recursion."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import product, takewhile
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy.stats import t

from scripts import evidence
from tests.scripts.records import finish, result_of, selection_of
from utils.figures.style import LIGHT, drawn_in
from utils.figures.tabled import final_statistics
from utils.run.training import steps_per_task
from utils.studies.claims import CLAIMS
from utils.studies.compare import Paired, averaged
from utils.studies.confirm import CONFIRMATORY_SEEDS, PAPER_WIDTH
from utils.studies.final_statistics import (
    arms_with_statistics,
    cost,
    gains_over_cells,
    last_task_weight,
    page_values,
    pairs_with,
    reading,
    text_of,
)
from utils.studies.plans import JOINT, SEPARATE, WEIGHTS_ALONE, Experiment
from utils.studies.presets import NARROW
from utils.studies.runs import MEASURED
from utils.studies.verdicts import judge
from utils.theory import effective_weights, ema, kappa_momentum


@pytest.fixture
def selection(tmp_path):
    return selection_of(tmp_path, NARROW)


def finish_with(selection, norm: str, seed: int, flags=(), place=("cifar10", 500), **kinds) -> None:
    """The record of a run of DER++ on this data with these accuracies by task, in both settings."""
    run = selection.runs.of(Experiment("derpp", norm, *place, flags), seed)
    result = result_of([[50.0, None], [50.0, 50.0]]) | {"final_statistics": kinds}
    data = {"train_sizes": [10000] * 5}
    finish(run, 50.0, results={"class_il": result, "task_il": result}, data=data)


def rows_of(table: str) -> list[list[str]]:
    lines = takewhile(lambda line: line.startswith("|"), table.splitlines())
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in [*lines][2:]]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_differences_are_paired_within_networks_and_by_seed(selection):
    for seed, more in ((3, 0.0), (4, 1.0), (5, 2.0), (0, 30.0)):  # 0 is exploratory
        finish_with(selection, "bn", seed, running=[40.0 + more, 60.0], buffer=[50.0 + more, 60.0 + 2 * more],
                    train=[40.0, 40.0], last_task=[20.0, 50.0])  # fmt: skip
        finish_with(selection, "adab2n", seed, running=[60.0 + more, 60.0], buffer=[58.0 + more, 60.0],
                    train=[50.0, 50.0], last_task=[60.0, 30.0])  # fmt: skip
    finish_with(selection, "gn", 3, **dict.fromkeys(("running", "buffer", "train", "last_task")))
    finish(selection.runs.of(Experiment("derpp", "bn", "cifar10", 500, JOINT), 3), 50.0)  # without final statistics
    page = evidence.render("statistics_page.md.j2", selection, **page_values(selection))
    gains, recency = (rows_of(part[part.index("\n| ") + 1 :]) for part in page.split("## ")[1:])
    half = t.ppf(0.975, 2) / 3**0.5  # of values that are 1 apart
    change = f"-7.0 ± {half:.1f}"
    assert gains == [["DER++, Split CIFAR-10, M = 500", "BN, separate", "3", "+10.0 / +10.0",
                      f"+3.0 ± {half:.1f} / +3.0 ± {half:.1f}", f"{change} / {change}"]]  # fmt: skip
    assert f"change {change} (n = 3): clear" in page
    assert [row[:3] for row in recency] == [["DER++, separate", "1", "3"], ["DER++, joint", "1", "3"]]
    assert [row[5:] for row in recency] == [["-5.0 / -5.0", "-20.0 / -20.0", "+10.0 / +10.0"],
                                            ["-5.0 / -5.0", "+10.0 / +10.0", "-20.0 / -20.0"]]  # fmt: skip
    assert "DER++, separate: +0.0, +19.0 ± 2.5, +30.0 (n = 3); DER++, joint: +0.0, -1.0 ± 2.5, -30.0 (n = 3)" in page


def test_arms_have_every_network_of_the_records():
    """Computed from the files alone, without the functions that the page uses."""
    networks: dict[str, list[list[dict]]] = defaultdict(list)
    for path in MEASURED.glob("*/record.json"):
        record = json.loads(path.read_text())
        parts = [part.get("final_statistics") for part in record.get("results", {}).values()]
        if record["status"] == "finished" and all(parts) and parts[0]["running"]:
            networks[json.dumps(record["identity"] | {"seed": None, "class_order_seed": None})].append(parts)
    expected = []
    for of_arm in networks.values():
        n, numbers = len(of_arm), [len(of_arm)]
        for kind, setting in product(("running", "buffer", "balanced", "train", "last_task"), range(len(of_arm[0]))):
            own, others = ([fmean(parts[setting][name]) for parts in of_arm] for name in ("running", kind))
            changes = [other - mean for other, mean in zip(others, own, strict=True)]
            is_own = kind == "running"
            numbers.append(fmean(own if is_own else changes))
            numbers += [] if is_own or n < 2 else [t.ppf(0.975, n - 1) * stdev(changes) / n**0.5]
        expected.append(numbers)
    arms = []
    for arm in arms_with_statistics(evidence.evidence()):
        arms.append([len(arm.records), *(fmean(arm.accuracy(name, "running").values()) for name in arm.settings)])
        for kind, setting in product(("buffer", "balanced", "train", "last_task"), arm.settings):
            change = averaged([arm.change(setting, kind)])
            arms[-1] += [change.mean, *([(change.interval[1] - change.interval[0]) / 2] if change.n > 1 else [])]
    assert len(arms) == len(expected) > 30
    for numbers in expected:
        assert any(arm == pytest.approx(numbers) for arm in arms), numbers


def test_a_width_is_named_once(selection):
    finish_with(selection, "bn", 3, PAPER_WIDTH, ("cifar100-10", 2000), running=[50.0], train=[50.0])
    [arm] = arms_with_statistics(selection)
    assert arm.cell.count("width 64") == 1


@pytest.mark.parametrize("setting", ["class", "task"])
def test_gains_with_running_statistics_are_those_of_the_verdicts(setting):
    selection = evidence.evidence()
    verdict = judge(CLAIMS[f"adab2n-bn-{setting}"], replace(selection, seeds=CONFIRMATORY_SEEDS))
    pairs = pairs_with(arms_with_statistics(selection), "BN, separate")
    gains = gains_over_cells({"BN": [pair for pair in pairs if pair[0].cell in verdict.values]})
    assert gains[f"{setting}_il"]["BN"][0].estimate == pytest.approx(verdict.difference.estimate)


@pytest.mark.parametrize(("values", "text", "word"), [
    ((1.0, 2.0), "+1.5 ± 6.4 (n = 2)", "too few"), ((1.0,), "+1.0 (n = 1)", "too few"), ((), "–", "too few"),
    ((1.0, 1.1, 1.2), "+1.1 ± 0.2", "clear"), ((-1.0, 0.5, 1.0), "+0.2 ± 2.6", "unclear"),
])  # fmt: skip
def test_a_difference_of_few_seeds_is_never_clear(values, text, word):
    assert text_of(Paired(values), 3) == text
    assert reading(Paired(values)).startswith(word)


def test_numbers_of_seeds_that_differ_by_cell_are_given():
    assert text_of(averaged([{3: 1.0, 4: 2.0}, {3: 1.0, 4: 2.0, 5: 1.0}])).endswith("(n = 2 to 3)")


@pytest.mark.parametrize(("values", "group", "text"), [
    ((-1.0, -1.1), -1.0, "too few"), ((-1.0, -1.1, -1.2), 0.0, "clear"), ((1.0, 1.1, 1.2), -1.0, "no clear cost over"),
    ((-1.0, 0.5, 1.0), 0.0, "no clear cost, so"),
])  # fmt: skip
def test_a_cost_of_recency_is_denied_only_if_no_group_has_one(values, group, text):
    assert cost(Paired(values), [Paired((group, group + 0.1, group - 0.1))]).startswith(text)


def test_figure_shows_the_changes(selection):
    with drawn_in(LIGHT):
        assert final_statistics(arms_with_statistics(selection)) is None
        finish_with(selection, "bn", 3, running=[40.0, 60.0], buffer=[50.0, 60.0], train=[40.0, 40.0])
        left, right = final_statistics(arms_with_statistics(selection)).axes
    assert [axes.get_title() for axes in (left, right)] == ["DER++, Class-IL", "DER++, Task-IL"]
    assert [line.get_ydata()[0] for line in left.lines if line.get_marker() == "o"] == [5.0, -10.0]
    assert [label.get_text() for label in left.get_xticklabels()] == ["buffer", "training"]


# --- Theorem 1 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "norm", "flags", "draws"),
    [
        ("er_ace", "bn", SEPARATE, 1),
        ("derpp", "bn", SEPARATE, 2),
        ("derpp", "bn", JOINT, 2),
        ("derpp", "adab2n", SEPARATE, 2),
        ("er_ace", "adab2n", (*JOINT, *WEIGHTS_ALONE), 1),
    ],
)
def test_weight_of_the_last_task_is_that_of_the_recursion(selection, model, norm, flags, draws):
    config = selection.runs.of(Experiment(model, norm, "cifar10", 500, flags), 3).config
    sizes = [30, 50, 40]  # 3, 5 and 4 steps
    lengths = [steps_per_task(config, size) for size in sizes]
    shares = []
    for task, length in enumerate(lengths):
        now, before = np.eye(3)[task], np.r_[np.full(task, 1 / max(task, 1)), np.zeros(3 - task)]
        passes = [now, *[before if task else now] * draws]
        shares += [np.mean(passes, axis=0)] * length if JOINT[0] in flags else passes * length
    steps = len(shares)
    etas = ema(steps) if norm == "bn" else kappa_momentum(steps, config.kappa)
    weights = effective_weights(etas, np.array(shares))[-1]
    record = {"config": config.values(), "data": {"train_sizes": sizes}}
    assert last_task_weight(record) == pytest.approx(weights[-1] / weights.sum())
