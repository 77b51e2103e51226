"""Hundreds of damaged files: records and saved networks with bytes flipped, cut, repeated or
replaced, and well-formed JSON with odd contents. Commands end with 0, 1 or 2 and whole lines, and no damaged file ever
gives a number.
"""

import json
import random

import pytest

from tests.conftest import call, runner

TINY = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4"]
TINY += ["--debug_mode", "--save_model"]
ODD = [None, True, -1, 1e308, "", "\0", "x" * 5000, [], {}, [[]], {"a": {}}, "NaN", 10**400, "../../etc"]
EACH = 200


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Another content: one that means the same is drawn again."""
    ways = [flipped, cut, repeated, replaced, with_odd_value, with_odd_value, with_other_digit]
    while True:
        changed = dice.choice(ways)(content, dice)
        if changed is not None and not same_meaning(changed, content):
            return changed


def same_meaning(one: bytes, other: bytes) -> bool:
    try:
        return one == other or json.loads(one) == json.loads(other)
    except (ValueError, RecursionError):
        return False


def flipped(content, dice):
    place = dice.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]


def cut(content, dice):
    return content[: dice.randrange(len(content))]


def repeated(content, dice):
    return content + content[dice.randrange(len(content)) :]


def replaced(content, dice):
    return dice.choice(
        [b"", b"\0" * 100, b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'{"run": NaN}', b"1" * 5000]
    )


def with_other_digit(content, dice):
    places = [place for place, byte in enumerate(content) if byte in b"0123456789"]
    place = dice.choice(places)
    return content[:place] + str((int(chr(content[place])) + 1) % 10).encode() + content[place + 1 :]


def with_odd_value(content, dice):
    """Of one entry somewhere inside, or without it."""
    try:
        whole = json.loads(content)
    except ValueError:
        return None
    place = whole
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = dice.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and dice.random() < 0.8:
            place = place[key]
            continue
        if dice.random() < 0.3:
            del place[key]
        else:
            place[key] = dice.choice(ODD)
        return json.dumps(whole).encode()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    ended = runner(tmp_path_factory.mktemp("damage"))(*TINY)
    assert ended.code == 0
    return ended


def is_one_clean_line(text: str) -> bool:
    return text.count("\n") == 1 and text.startswith("error: ") and "Traceback" not in text


def test_record(finished):
    path, dice = finished.folder / "record.json", random.Random(1)
    whole = path.read_bytes()
    run = runner(finished.folder.parent.parent)
    try:
        for _ in range(EACH):
            path.write_bytes(content := damaged(whole, dice))
            ended = run(*TINY)
            assert (ended.code, ended.stdout) == (2, ""), content[:300]
            assert is_one_clean_line(ended.stderr), ended.stderr
    finally:
        path.write_bytes(whole)
    assert run(*TINY).stdout == finished.stdout


def test_saved_network(finished):
    path, dice = finished.folder / "model.safetensors", random.Random(2)
    whole = path.read_bytes()
    try:
        for _ in range(EACH):
            path.write_bytes(damaged(whole, dice))
            ended = call(["--eval_only", str(finished.folder)])
            assert (ended.code, ended.stdout) == (2, "")
            assert is_one_clean_line(ended.stderr), ended.stderr
    finally:
        path.write_bytes(whole)
    assert call(["--eval_only", str(finished.folder)]).code == 0
