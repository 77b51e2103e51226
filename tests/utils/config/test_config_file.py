"""`--config` and the TOML of `--dry_run`: a file says what flags say, is checked as they are, and gives way to them."""

import json
import tomllib

import forked
import pytest
from conftest import call, runner

from utils.config.loop_options import Interval
from utils.config.parser import as_toml, parse
from utils.config.registry import MODELS
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.run.build import StreamBuilder
from utils.run.identity import run_name
from utils.run.records import plain

ER = "--model er --dataset seq-digits"
TINY = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--debug_mode"]


@pytest.fixture
def file(tmp_path):
    """`file(text)`: the words that name a TOML file with this text."""

    def write(text, name="run.toml"):
        (tmp_path / name).write_text(text)
        return ["--config", str(tmp_path / name)]

    return write


@pytest.fixture
def left_by(file):
    """`left_by(flags)`: the words that name the config.json of a run with these flags."""
    return lambda flags, **more: file(json.dumps(plain(resolve(parse(flags.split()))) | more), "config.json")


def refusal(words):
    with pytest.raises(UsageError) as caught:
        resolve(parse(words))
    return str(caught.value)


def name_of(words):
    config = resolve(parse(words))
    return run_name(config, StreamBuilder(config).spec)


# --- TOML -------------------------------------------------------------------------------------------------------------


def test_a_file_says_what_flags_say(file):
    text = """
        model = "derpp"
        norm = "adab2n"
        dataset = "seq-cifar100"
        scenario = "offline"
        lr = 1
        lambd = 1e-3
        lr_milestones = [3, 5]
        probe = ["stability", "weights"]
        checkpoint_every = 20
        debug_mode = true
        save_model = false
        notes = "κ = \\"0.7\\""
    """
    flags = "--model derpp --norm adab2n --dataset seq-cifar100 --scenario offline --lr 1 --lambd 1e-3 --debug_mode"
    flags += " --lr_milestones 3,5 --probe stability,weights --checkpoint_every 20"
    assert parse(file(text)) == parse([*flags.split(), "--notes", 'κ = "0.7"'])


def test_flags_win(file):
    words = file('model = "er"\ndataset = "seq-digits"\nlr = 0.5\nbuffer_size = 7')
    explicit = parse([*words, "--lr", "0.25", "--seed", "3"])
    assert explicit == {"model": "er", "dataset": "seq-digits", "lr": 0.25, "buffer_size": 7, "seed": 3}


def test_plugins_of_a_file_are_loaded_before_its_other_keys(file, tmp_path, monkeypatch):
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS.entries()))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/scaled.py").write_text(
        "from models.sgd import Sgd\nfrom utils.config.options import Option, number\n"
        "from utils.config.registry import MODELS\n"
        "@MODELS.register('config_file_model', help='', options=(Option('my_scale', number(0), '', default=1.0),))\n"
        "class Scaled(Sgd): ...\n"
    )
    words = file(f'my_scale = 2\nmodel = "config_file_model"\ndataset = "seq-digits"\nplugins = ["{tmp_path}/mine"]')
    explicit = parse(words)
    assert (explicit["my_scale"], explicit["plugins"]) == (2.0, (f"{tmp_path}/mine",))
    assert resolve(explicit).my_scale == 2.0
    assert "plugins must be" in refusal(file("plugins = 3"))


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("lr = 'fast'", "--lr"),
        ("batch_size = 10.0", "--batch_size"),
        ("lr_milestones = [5, 3]", "--lr_milestones"),
        ("debug_mode = 1", "true or false"),
        ("bufer_size = 3", "did you mean --buffer_size"),
        ("model = 'er'\ndataset = 'seq-digits'\nconfig = 'other.toml'", "'config'"),
        ("[training]\nlr = 0.1", "training is a table"),
        ("model = 'err'\nerr_scale = 3", "unknown model 'err'"),
        ("model = 'er'\ndataset = 'seq-digits'\nkappa = 0.1", "adab2n"),
        ("model = 'sgd'\ndataset = 'seq-digits'\nbuffer_size = 9", "--model sgd"),
    ],
)
def test_mistakes_in_a_file_are_reported_with_its_name(file, text, keyword):
    words = file(text)
    line = refusal(words)
    assert line.startswith(f"{words[1]}: ")
    assert keyword in line


@pytest.mark.parametrize(
    ("name", "content", "keyword"),
    [
        ("a.toml", b"lr 0.1", "TOML"),
        ("a.toml", b"notes = '\xff'", "TOML"),
        ("a.json", b"{", "JSON"),
        ("a.json", b'{"config": 3}', "no options"),
        ("a.toml", b"lr = 1\nlr = 2", "TOML"),
        ("none.toml", None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path, name, content, keyword):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert keyword in forked.refusal(call(["--config", str(tmp_path / name)]))


# --- files of a run ---------------------------------------------------------------------------------------------------


def test_a_record_and_a_config_json_are_the_run_that_left_them(tmp_path):
    first = runner(tmp_path / "first")(*TINY, "--lr", "0.02", "--seed", "3", "--notes", "of that machine")
    assert first.code == 0
    for name in ("record.json", "config.json"):
        words = ["--config", str(first.folder / name)]
        assert not {"results_path", "notes", "num_threads", "non_verbose", "device", "fidelity"} & set(parse(words))
        assert name_of(words) == first.folder.name


def test_options_that_follow_another_one_still_do(left_by):
    assert resolve(parse([*left_by(ER), "--seed", "3"])).class_order_seed == 3
    assert resolve(parse([*left_by(f"{ER} --class_order_seed 2"), "--seed", "3"])).class_order_seed == 2
    assert resolve(parse([*left_by(f"{ER} --batch_size 7"), "--batch_size", "9"])).minibatch_size == 9


def test_the_meaning_of_auto_follows_the_norm(left_by):
    derpp = "--model derpp --dataset seq-digits"
    assert resolve(parse([*left_by(derpp), "--norm", "adab2n"])).replay_forward == "joint"
    assert resolve(parse(left_by(f"{derpp} --replay_forward joint"))).replay_forward == "joint"


def test_options_of_a_part_that_a_flag_replaces_are_ignored_with_a_note(left_by, capsys):
    words = left_by(f"{ER} --norm adab2n --kappa 0.3 --buffer_size 50 --lr 0.5")
    assert name_of([*words, "--norm", "bn"]) == name_of([*ER.split(), "--buffer_size", "50", "--lr", "0.5"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: ")
    assert "kappa, lambd" in line
    config = resolve(parse([*words, "--model", "sgd"]))
    assert "buffer_size" not in config.values()
    assert (config.kappa, config.lr) == (0.3, 0.5)


# --- old names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--final_probes", "--embedding_eval"])
def test_a_renamed_flag_is_accepted_with_a_note_and_keeps_its_key_in_the_identity(flag, capsys):
    # The name of the run is from before the option was renamed.
    assert name_of([*ER.split(), flag]) == "er-bn-seq-digits-online-m200-s0-f7519dcdda98"
    assert ("--embedding_eval" in capsys.readouterr().err) == (flag == "--final_probes")


def test_old_keys_of_a_file_are_accepted_with_a_note(file, left_by, capsys):
    words = left_by(ER, channels_last="auto", start_from=0, final_probes=False)
    assert name_of(words) == name_of(ER.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert "channels_last, start_from" in line
    assert parse(file('model = "er"\nfinal_probes = true')) == {"model": "er", "embedding_eval": True}
    assert "embedding_eval" in capsys.readouterr().err


# --- --dry_run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        f"{ER} --norm adab2n --fidelity paper --seed 5 --lambd 1e-5",
        "--model derpp --dataset seq-cifar100 --scenario offline --fidelity paper --class_order_seed 4 --validation .1",
        "--model gdumb --norm gn --groups 4 --dataset seq-digits --debug_mode --eval_every 7",
        "--model er --dataset seq-cifar10 --buffer_mode ring --lr_milestones none --dtype float64",
    ],
)
def test_the_toml_of_a_configuration_is_the_same_configuration(flags, file):
    explicit = parse(flags.split())
    config = resolve(explicit)
    assert resolve(parse(file(as_toml(config, explicit, None)))) == config


def test_other_given_flags_are_written_and_one_time_flags_are_not(file):
    flags = f"{ER} --checkpoint_every 20 --results_path elsewhere --rerun --accept_changed_code --probe weights"
    explicit = parse([*flags.split(), "--notes", 'a "quote", \\ and \x7f κ\n😀'])
    text = as_toml(resolve(explicit), explicit, (0, 3))
    values = tomllib.loads(text)
    assert values["notes"] == 'a "quote", \\ and \x7f κ\n😀'
    assert (values["results_path"], values["probe"], values["seeds"]) == ("elsewhere", ["weights"], [0, 3])
    assert not {"rerun", "accept_changed_code", "seed", "device"} & set(values)
    again = parse(file(text))
    assert (again["checkpoint_every"], again["seeds"]) == (Interval(steps=20), (0, 3))
