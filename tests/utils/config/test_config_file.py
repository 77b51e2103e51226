"""`--config` and `--save_config`: a file says what flags say, is checked as they are, and gives way to them."""

import json
import tomllib

import pytest
from conftest import call, runner

from utils.config import config_file
from utils.config.arguments import resolve
from utils.config.loop_options import Interval
from utils.config.parser import parse, to_save
from utils.errors import UsageError
from utils.run.build import Data
from utils.run.folder import RunFolder
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


def refusal(words):
    with pytest.raises(UsageError) as caught:
        resolve(parse(words))
    return str(caught.value)


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
    assert parse(["--lr", "0.25", f"--config={words[1]}"])["lr"] == 0.25


def test_plugins_of_a_file_are_there_before_its_other_keys(file, tmp_path):
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
    assert "plugins must be folders or modules" in refusal(file("plugins = 3"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr = 'fast'", "argument --lr: must be a number of at least 0, got 'fast'"),
        ("lr = -1", "argument --lr: must be a number of at least 0, got '-1'"),
        ("lr = nan", "argument --lr: must be a number of at least 0, got 'nan'"),
        ("lr = true", "argument --lr: must be a number of at least 0, got 'true'"),
        ("batch_size = 10.0", "argument --batch_size: must be a whole number from 1 to 1000000, got '10.0'"),
        ("lr_milestones = [5, 3]", "argument --lr_milestones: must be rising epochs"),
        ("debug_mode = 1", "debug_mode must be true or false, got 1"),
        ("learning = 3", "unknown key 'learning'"),
        ("bufer_size = 3", "unknown key 'bufer_size'; did you mean buffer_size?"),
        ("buffer-size = 3", "unknown key 'buffer-size'; did you mean buffer_size?"),
        ("config = 'other.toml'", "unknown key 'config'"),
        ("[training]\nlr = 0.1", "unknown key 'training'"),
        ("lr.start = 0.1", "lr is a table: options stand alone"),
        ("model = 'err'", "unknown model 'err'; did you mean er"),
        ("model = 'er'\ndataset = 'seq-digits'\nkappa = 0.1", "--kappa is an option of --norm adab2n"),
        ("model = 'sgd'\ndataset = 'seq-digits'\nbuffer_size = 9", "--buffer_size is for methods with a memory"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_as_for_flags_and_names_the_file(file, text, words):
    named = file(text)
    line = refusal(named)
    assert line.startswith(f"{named[1]}: {words}")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.toml", b"lr 0.1", "cannot be read as TOML"),
        ("a.toml", b"notes = '\xff'", "cannot be read as TOML"),
        ("a.json", b"{", "cannot be read as JSON"),
        ("a.json", b"[" * 100_000, "cannot be read as JSON"),
        ("a.json", b"[1]", "no options in it"),
        ("a.json", b'{"config": 3}', "no options in it"),
        ("a.json", b'{"model": ["er"], "dataset": {}}', "unknown model"),
        (".", None, "Is a directory"),
        ("none.toml", None, "No such file"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    ended = call(["--config", str(tmp_path / name)])
    assert (ended.code, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(("error: --config ", f"error: {tmp_path}/{name}: "))
    assert words in line
    assert "expected one argument" in refusal(["--config"])


# --- what a run leaves ------------------------------------------------------------------------------------------------


def test_a_record_and_a_config_json_are_the_run_that_left_them(tmp_path):
    first = runner(tmp_path / "first")(*TINY, "--lr", "0.02", "--seed", "3", "--notes", "of that machine")
    assert first.code == 0
    for name in ("record.json", "config.json"):
        explicit = parse(["--config", str(first.folder / name)])
        assert not {"results_path", "notes", "num_threads", "non_verbose", "device", "fidelity"} & set(explicit)
        assert explicit["lr"] == 0.02
        config = resolve(explicit)
        assert RunFolder(config, Data(config).spec).name == first.folder.name
        assert (config.results_path, config.notes, config.num_threads) == ("results", None, None)
    again = runner(tmp_path / "again")("--config", str(first.folder / "record.json"))
    assert (again.code, again.folder.name) == (0, first.folder.name)
    assert again.record["results"] == first.record["results"]


@pytest.fixture
def left_by(tmp_path):
    """The words that name what a run of these flags left."""

    def write(flags):
        (tmp_path / "config.json").write_text(json.dumps(plain(resolve(parse(flags.split())))))
        return ["--config", str(tmp_path / "config.json")]

    return write


def identity(words):
    config = resolve(parse(words))
    return run_name(config, Data(config).spec)


def test_the_class_order_goes_on_following_the_seed(left_by):
    assert resolve(parse([*left_by(ER), "--seed", "3"])).class_order_seed == 3
    assert resolve(parse([*left_by(f"{ER} --class_order_seed 2"), "--seed", "3"])).class_order_seed == 2
    assert resolve(parse([*left_by(f"{ER} --batch_size 7"), "--batch_size", "9"])).minibatch_size == 9


@pytest.mark.parametrize(
    ("model", "flags", "expected"),
    [
        ("derpp", [], "separate"),
        ("derpp", ["--norm", "adab2n"], "joint"),
        ("derpp --replay_forward joint", [], "joint"),
        ("derpp --norm adab2n --replay_forward separate", ["--norm", "bn"], "separate"),
        ("derpp --norm adab2n --replay_forward separate", ["--norm", "cma"], "separate"),
    ],
)
def test_what_auto_means_follows_the_norm(left_by, model, flags, expected):
    words = left_by(f"--model {model} --dataset seq-digits")
    assert resolve(parse([*words, *flags])).replay_forward == expected


def test_options_of_a_part_that_a_flag_replaces_go_with_it(left_by, capsys):
    words = left_by(f"{ER} --norm adab2n --kappa 0.3 --buffer_size 50 --lr 0.5")
    assert identity([*words, "--norm", "bn"]) == identity([*ER.split(), "--buffer_size", "50", "--lr", "0.5"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"note: {words[1]}: left out, since other flags replace what they belong to: kappa, lambd,")
    config = resolve(parse([*words, "--model", "sgd"]))
    assert "buffer_size" not in config.values()
    assert (config.kappa, config.lr) == (0.3, 0.5)


def test_a_part_that_is_not_there_is_told_with_the_plugins_that_it_came_from(tmp_path):
    (tmp_path / "record.json").write_text(
        json.dumps({"config": {"model": "er", "norm": "gone", "gone_eps": 1, "plugins": ["/there/mine"]}})
    )
    line = refusal(["--config", str(tmp_path / "record.json")])
    assert line.startswith(f"{tmp_path}/record.json: unknown norm 'gone'")
    assert line.endswith("; the run had --plugins /there/mine")


# --- --save_config ----------------------------------------------------------------------------------------------------

SAVED = [
    ER,
    f"{ER} --norm adab2n --fidelity paper --seed 5 --lambd 1e-5",
    "--model derpp --dataset seq-cifar100 --scenario offline --fidelity paper --class_order_seed 4 --validation 0.1",
    "--model gdumb --norm gn --groups 4 --dataset seq-digits --debug_mode --eval_every 7",
    "--model er --dataset seq-cifar10 --buffer_mode ring --lr_milestones none --dtype float64",
    "--model sgd --dataset seq-miniimg --scenario offline --backbone torchvision --arch resnet18",
]


@pytest.mark.parametrize("flags", SAVED)
def test_what_is_saved_is_the_same_run(flags, tmp_path):
    explicit = parse(flags.split())
    config_file.write(str(tmp_path / "a.toml"), to_save(resolve(explicit), explicit, None))
    assert "None" not in (tmp_path / "a.toml").read_text()
    both = [resolve(explicit), resolve(parse(["--config", str(tmp_path / "a.toml")]))]
    assert both[0] == both[1]


def test_what_else_was_given_is_saved_and_acts_are_not(tmp_path):
    flags = f"{ER} --checkpoint_every 20 --results_path elsewhere --rerun --accept_changed_code --probe weights"
    explicit = parse([*flags.split(), "--notes", 'a "quote", \\ and \x7f κ\n😀'])
    config_file.write(str(tmp_path / "a.toml"), to_save(resolve(explicit), explicit, (0, 3)))
    found = tomllib.loads((tmp_path / "a.toml").read_text())
    assert (found["notes"], found["results_path"], found["probe"]) == (
        'a "quote", \\ and \x7f κ\n😀', "elsewhere", ["weights"],
    )  # fmt: skip
    assert found["seeds"] == [0, 3]
    assert not {"rerun", "accept_changed_code", "seed", "device"} & set(found)
    again = parse(["--config", str(tmp_path / "a.toml")])
    assert again["checkpoint_every"] == Interval(steps=20)
    assert again["seeds"] == (0, 3)


def test_a_command_saves_its_configuration_and_goes_on(run_main, tmp_path):
    path = tmp_path / "deep" / "a.toml"
    ended = run_main(*TINY, "--dry_run", "--save_config", str(path))
    assert (ended.code, ended.stderr) == (0, "")
    assert "configuration" in ended.stdout
    assert run_main("--config", str(path), "--dry_run").stdout == ended.stdout


def test_nothing_but_toml_is_written_over(tmp_path):
    """A slip would cost a record."""
    assert "must be a name that ends in .toml" in refusal([*ER.split(), "--save_config", "record.json"])
    (tmp_path / "file").touch()
    ended = call([*ER.split(), "--dry_run", "--save_config", str(tmp_path / "file/a.toml")])
    assert (ended.code, ended.stdout) == (2, "")
    assert "cannot be written" in ended.stderr
