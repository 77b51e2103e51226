"""Two thousand damaged files: records, manifests, digests and saved networks with bytes flipped, cut, repeated or
replaced, and well-formed JSON with odd contents. Commands end with 0, 1 or 2 and whole lines, and no damaged file ever
gives a number.
"""

import json
import random

import pytest

import scripts.reproduce.commands as commands
from scripts.reproduce.__main__ import main as reproduce
from scripts.reproduce.launchers.slurm import write_manifest
from scripts.reproduce.presets import SMOKE
from scripts.reproduce.runs import Runs
from scripts.reproduce.sweep import Outcome
from tests.conftest import call, runner
from tests.datasets.class_folders import config, fill, stream
from utils.config.registry import DATASETS

TINY = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4"]
TINY += ["--debug_mode", "--save_model"]
ODD = [None, True, -1, 1e308, "", "\0", "x" * 5000, [], {}, [[]], {"a": {}}, "NaN", 10**400, "../../etc"]
EACH = 500


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Another content: one that means the same is drawn again."""
    ways = [flipped, cut, repeated, replaced, with_odd_value, with_odd_value, with_other_digit]
    while True:
        found = dice.choice(ways)(content, dice)
        if found is not None and not same_meaning(found, content):
            return found


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
    header = 8 + int.from_bytes(whole[:8], "little")
    damage = finished.folder.parent.parent / "damaged.safetensors"
    for count in range(EACH):
        # Every third in the header alone, where everything is said about the tensors.
        damage.write_bytes(damaged(whole, dice) if count % 3 else damaged_header(whole, header, dice))
        ended = call(["--eval_only", str(damage)])
        assert (ended.code, ended.stdout) == (2, "")
        assert is_one_clean_line(ended.stderr), ended.stderr


def damaged_header(whole: bytes, end: int, dice: random.Random) -> bytes:
    """A header that is well-formed JSON of the length that it says."""
    text = damaged(whole[8:end], dice)
    return len(text).to_bytes(8, "little") + text + whole[end:]


def test_manifest(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "sweep", lambda *_, **__: Outcome())
    runs, dice = Runs(SMOKE, str(tmp_path)), random.Random(3)
    options = {"model": "er", "norm": "bn", "dataset": "seq-digits", "results_path": str(tmp_path)}
    path = write_manifest(tmp_path, [runs.run_with(options | {"seed": seed}) for seed in range(2)], retries=0)
    whole = path.read_bytes()
    assert reproduce(["work", str(path), "1"]) == 0
    for _ in range(EACH):
        path.write_bytes(content := damaged(whole, dice))
        capsys.readouterr()
        assert reproduce(["work", str(path), "1"]) == 2, content[:300]
        assert is_one_clean_line(capsys.readouterr().err)


def test_digest_of_images(tmp_path):
    fill(tmp_path)
    true = stream(tmp_path).spec.fingerprint
    (path,) = tmp_path.glob("*.digest")
    whole, dice = path.read_bytes(), random.Random(4)
    for _ in range(EACH):
        path.write_bytes(damaged(whole, dice))
        assert DATASETS.get("seq-folder").build().spec(config(tmp_path)).fingerprint == true
