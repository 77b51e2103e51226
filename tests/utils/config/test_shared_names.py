"""Options belong to their part: two parts may have an option of the same name, with different types."""

import pytest
from conftest import refuse_to_train, runner
from torch import nn

from models.sgd import Sgd
from utils.config.options import Option, Rule, SameAs, choice, flag, number
from utils.config.parser import as_toml, help_text, parse
from utils.config.registry import MODELS, NORMS
from utils.config.resolve import identity_options, number_options, resolve
from utils.errors import UsageError
from utils.run.api import run
from utils.studies.study import read_study

DIGITS = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8", "--debug_mode"]
BOTH = ["--model", "focal", "--norm", "shaped", *DIGITS]
SEEN = {}


class Focal(Sgd):
    def loss(self, batches, outputs, index):
        SEEN["model"] = self.config.gamma, self.config.slope
        return super().loss(batches, outputs, index)


def shaped(channels, *, spatial, gamma, slope):
    SEEN["norm"] = gamma, slope
    return nn.BatchNorm1d(channels)


def check(config, explicit):
    if explicit.get("gamma") == "hard":
        config["slope"] = "steep"


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    for registry in (MODELS, NORMS):
        monkeypatch.setattr(registry, "_entries", dict(registry.entries()))
    options = (Option("gamma", number(0), "A weight.", default=1.0), Option("slope", number(0), "", SameAs("gamma")))
    MODELS.register("focal", help="", options=options, rules=(Rule({"gamma": 3.0}, when={"scenario": "offline"}),))(
        Focal
    )
    options = (
        Option("gamma", choice("soft", "hard", "4"), "A shape.", default="soft", check=check),
        Option("slope", choice("steep", "flat"), "", default="flat"),
    )
    NORMS.register("shaped", help="", options=options)(shaped)
    NORMS.register("flagged", help="", options=(Option("gamma", flag, "A switch."),))(
        lambda channels, *, spatial, gamma: nn.BatchNorm1d(channels)
    )


def values(words):
    config = resolve(parse(words)).values()
    return {name: value for name, value in config.items() if "gamma" in name or "slope" in name}


def test_a_run_with_one_of_them_has_the_plain_name_and_the_type_of_its_part():
    assert values(["--model", "sgd", "--norm", "shaped", *DIGITS, "--gamma", "4"]) == {"gamma": "4", "slope": "flat"}
    assert values(["--model", "focal", *DIGITS, "--gamma", "4"]) == {"gamma": 4.0, "slope": 4.0}
    assert values(["--model", "sgd", "--norm", "flagged", *DIGITS, "--gamma"]) == {"gamma": True}
    assert values(["--model", "ewc_on", *DIGITS, "--gamma", "0.5"]) == {"gamma": 0.5}


def test_a_run_with_both_names_the_part_and_each_part_sees_its_own(tmp_path):
    ended = runner(tmp_path)(*BOTH, "--model_gamma", "2", "--norm-gamma", "hard")
    assert ended.code == 0, ended.stderr
    assert SEEN == {"model": (2.0, 2.0), "norm": ("hard", "steep")}
    expected = {"model_gamma": 2.0, "norm_gamma": "hard", "model_slope": 2.0, "norm_slope": "steep"}
    for part in ("config", "identity"):
        assert expected.items() <= ended.record[part].items()
        assert "gamma" not in ended.record[part]
    assert "--norm_gamma" in help_text(["--model", "focal", "--norm", "shaped"])


def test_the_plain_name_is_refused_in_one_line_that_names_both():
    for words in (["--gamma", "2"], ["--gamma=soft"]):
        with pytest.raises(UsageError, match="--model_gamma or --norm_gamma"):
            resolve(parse([*BOTH, *words]))
    with pytest.raises(UsageError, match="norm_gamma"):
        parse([*BOTH[:2], *DIGITS, "--norm_gamma", "soft"])  # there is only one


def test_rules_and_defaults_are_of_their_part():
    assert values([*BOTH, "--scenario", "offline"]) == {
        "model_gamma": 3.0, "model_slope": 3.0, "norm_gamma": "soft", "norm_slope": "flat"
    }  # fmt: skip


def test_files_records_and_python_have_the_same_names(tmp_path, monkeypatch):
    words = [*BOTH, "--model_gamma", "2", "--norm_gamma", "hard"]
    explicit = parse(words)
    config = resolve(explicit)
    (tmp_path / "run.toml").write_text(as_toml(config, explicit, None))
    assert resolve(parse(["--config", str(tmp_path / "run.toml")])) == config
    ended = runner(tmp_path)(*words)
    refuse_to_train(monkeypatch)
    names = {"model": "focal", "norm": "shaped", "dataset": "seq-digits", "backbone": "mlp", "hidden": 8}
    options = names | {"debug_mode": True, "model_gamma": 2, "norm_gamma": "hard", "results_path": tmp_path}
    assert run(**options).record == ended.record
    record = ["--config", str(ended.folder / "record.json")]
    assert number_options(resolve(parse(record))) == number_options(config)
    # A part that a flag replaces takes its options along, and the other one's get their plain names back.
    assert identity_options(resolve(parse([*record, "--norm", "bn"]))) == identity_options(
        resolve(parse(["--model", "focal", *DIGITS, "--gamma", "2"]))
    )
    assert values([*record, "--model", "sgd"]) == {"gamma": "hard", "slope": "steep"}


def test_a_part_that_a_flag_adds_does_not_take_the_value_of_another(tmp_path):
    (tmp_path / "run.toml").write_text('model = "focal"\nnorm = "bn"\ndataset = "seq-digits"\ngamma = 4')
    config = resolve(parse(["--config", str(tmp_path / "run.toml"), "--norm", "shaped"]))
    assert (config.model_gamma, config.norm_gamma) == (4.0, "soft")


def test_studies_have_the_same_names(tmp_path):
    path = tmp_path / "gammas.toml"
    path.write_text("""
        [common]
        model = "focal"
        norm = "shaped"
        dataset = "seq-digits"
        model_gamma = 2
        [vary]
        norm_gamma = ["soft", "4"]
    """)
    study = read_study(path)
    flags = [dict(cell.experiment.flags) for cell in study.cells(study.preset())]
    assert {(each["model_gamma"], each["norm_gamma"]) for each in flags} == {(2.0, "soft"), (2.0, "4")}


def test_an_option_that_parts_share_on_purpose_is_one_flag():
    shared = Option("strength", number(0), "", default=1.0)
    MODELS.register("sharing", help="", options=(shared,))(type("Sharing", (Sgd,), {}))
    NORMS.register("sharing", help="", options=(shared,))(lambda channels, *, spatial, strength: None)
    assert resolve(parse(["--model", "sharing", "--norm", "sharing", *DIGITS, "--strength", "2"])).strength == 2.0


def test_a_flag_for_two_parts_that_is_an_option_already_is_refused():
    options = tuple(Option(name, number(0), "", default=1.0) for name in ("gamma", "norm_gamma"))
    NORMS.register("tangled", help="", options=options)(lambda channels, *, spatial, gamma, norm_gamma: None)
    with pytest.raises(UsageError, match="--norm_gamma would be two options"):
        parse(["--model", "focal", "--norm", "tangled", *DIGITS])
