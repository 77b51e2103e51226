"""`make soak`: every method is killed at random moments and resumed, and ends bit by bit like an uninterrupted run.

SOAK_KILLS sets the number of kills (200), SOAK_SEED the seed of the moments (the time).
"""

import os
import random
import time

import pytest

from tests.kills import AIMS, combinations, kill_and_resume

KILLS = int(os.environ.get("SOAK_KILLS", "200"))
SEED = int(os.environ.get("SOAK_SEED", time.time()))


def shares() -> list:
    """Spread the kills over the combinations, in random order."""
    runs = combinations()
    random.Random(SEED).shuffle(runs)
    each, rest = divmod(KILLS, len(runs))
    counts = [each + (number < rest) for number in range(len(runs))]
    return [
        pytest.param(options, count, SEED % 1000 + number, id=f"{count}-{options[1]}-{options[3]}-{number}")
        for number, (options, count) in enumerate(zip(runs, counts, strict=True))
        if count
    ]


@pytest.fixture(scope="module")
def kills():
    """All kills so far; at the end they are counted."""
    kills = []
    yield kills
    hits = ", ".join(f"{sum(kill.hit for kill in kills if kill.aim == aim)} {aim}" for aim in AIMS)
    print(f"\nseed {SEED}: {len(kills)} kills ({hits})")


@pytest.mark.parametrize(("options", "count", "seed"), shares())
def test_killed_run_ends_like_an_uninterrupted_one(options, count, seed, kills, tmp_path):
    done, differing = kill_and_resume(options, count, seed, tmp_path)
    kills += done
    assert differing == [], options
    assert len(done) == count


@pytest.mark.skipif(KILLS < 100, reason="too few kills")
def test_every_aim_was_hit(kills):
    assert {kill.aim for kill in kills if kill.hit} == set(AIMS)
