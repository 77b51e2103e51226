"""Damaged records and saved networks: no damaged file ever gives a number, and commands end in one line."""

import json
import random

import pytest
from conftest import runner

TINY = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4"]
TINY += ["--debug_mode", "--save_model"]
ODD = [None, True, -1, 1e308, "", "x" * 5000, [], {}, [[]], {"a": {}}, "NaN", 10**400, "../../etc"]
REPLACEMENTS = [b"", b"\0" * 100, b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'{"run": NaN}', b"1" * 5000]
EACH = 100


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Return the content with a bit flipped, cut off, with its end repeated, or replaced."""
    place = dice.randrange(len(content))
    flipped = content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]
    return dice.choice([flipped, content[:place], content + content[place:], dice.choice(REPLACEMENTS)])


def with_odd_value(content: bytes, dice: random.Random) -> bytes:
    """Return the JSON with another value of one entry somewhere inside, or without it."""
    whole = place = json.loads(content)
    while True:
        key = dice.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not (isinstance(place[key], dict | list) and place[key]) or dice.random() < 0.2:
            break
        place = place[key]
    if dice.random() < 0.3:
        del place[key]
    else:
        place[key] = dice.choice([value for value in ODD if value != place[key]])
    return json.dumps(whole).encode()


def is_same_json(changed: bytes, content: bytes) -> bool:
    try:
        return json.loads(changed) == json.loads(content)
    except (ValueError, RecursionError):
        return False


@pytest.mark.parametrize("name", ["record.json", "model.safetensors"])
def test_damaged_file_is_refused(results, name):
    run, dice = runner(results), random.Random(name)
    finished = run(*TINY)
    path = finished.folder / name
    content = path.read_bytes()
    words = TINY if name == "record.json" else ["--eval_only", str(finished.folder)]
    ways = [damaged, with_odd_value] if name == "record.json" else [damaged]
    assert run(*words).code == 0
    for _ in range(EACH):
        changed = dice.choice(ways)(content, dice)
        if is_same_json(changed, content):
            continue
        path.write_bytes(changed)
        ended = run(*words)
        assert (ended.code, ended.stdout) == (2, ""), changed[:300]
        assert (ended.stderr.count("\n"), ended.stderr[:7]) == (1, "error: ")
    path.write_bytes(content)
    assert run(*words).code == 0
