"""How options resolve: defaults of data sets and methods, presets, switches."""

import pytest
from conftest import call

from utils.config.resolve import resolve

SWITCHES = {
    "--replay_forward": ("auto", "joint"),
    "--absent_tasks": ("counted", "ignored"),
    "--variance": ("mixture", "within"),
    "--eta_start": ("eta0", "eta1"),
    "--penalty_norm": ("mean", "sum"),
    "--running_var_start": ("1", "0"),
    "--penalty_steps": ("replay", "all"),
    "--ln_affine": ("element", "channel"),
    "--in_affine": ("none", "channel"),
    "--cn_affine": ("frozen", "learned"),
    "--ring_quota": ("task", "class"),
    "--lr_restart": ("never", "task"),
    "--lr": ("0.1", "0.03"),
}


def test_list_shows_both_values_of_the_thirteen_switches():
    finished = call(["--list", "switches"])
    rows = [line.split() for line in finished.stdout.splitlines() if line.startswith("  --")]
    assert {row[0]: (row[1], row[2]) for row in rows} == SWITCHES
    assert len(rows) == 13


USERS = {  # a command that has the switch
    "replay_forward": {"model": "derpp"},
    "ring_quota": {"model": "er", "buffer_mode": "ring"},
    "ln_affine": {"norm": "ln"},
    "in_affine": {"norm": "in"},
    "cn_affine": {"norm": "cn"},
    "lr_restart": {"dataset": "seq-miniimg", "scenario": "offline"},
    "lr": {"model": "sgd", "dataset": "seq-cifar10"},
}


def resolved(**flags):
    return resolve({"model": "er", "dataset": "seq-digits", **flags})


@pytest.mark.parametrize("name", [flag.removeprefix("--") for flag in SWITCHES])
def test_preset_sets_every_switch_and_an_explicit_flag_wins(name):
    flags = USERS.get(name, {"norm": "adab2n"})
    official, paper = SWITCHES[f"--{name}"]
    official = "separate" if name == "replay_forward" else official  # what auto means with bn
    value = getattr(resolved(**flags), name)
    assert str(value) == official
    assert str(getattr(resolved(**flags, fidelity="paper"), name)) == paper
    assert getattr(resolved(**flags, fidelity="paper", **{name: value}), name) == value


@pytest.mark.parametrize(
    ("dataset", "lr", "buffer_size", "n_tasks"),
    [
        ("seq-digits", 0.01, 200, 5),
        ("seq-cifar10", 0.03, 500, 5),
        ("seq-cifar100", 0.03, 2000, 20),
        ("seq-miniimg", 0.1, 2000, 20),
        ("seq-folder", 0.03, 500, None),
    ],
)
def test_defaults_of_a_data_set(dataset, lr, buffer_size, n_tasks):
    for scenario in ("online", "offline"):
        config = resolved(dataset=dataset, scenario=scenario)
        assert (config.lr, config.buffer_size, config.n_tasks) == (lr, buffer_size, n_tasks)
        assert (config.optim_wd, config.optim_mom) == (0, 0)


@pytest.mark.parametrize("model", ["derpp", "derpp_lider"])
@pytest.mark.parametrize(
    ("dataset", "buffer_size", "alpha", "beta"),
    [
        ("seq-cifar10", 500, 0.2, 0.5),
        ("seq-cifar10", 2000, 0.1, 1.0),
        ("seq-cifar100", 5000, 0.1, 0.5),
        ("seq-miniimg", 5000, 0.3, 0.8),
    ],
)
def test_weights_of_derpp_by_data_set_and_buffer(model, dataset, buffer_size, alpha, beta):
    config = resolved(model=model, dataset=dataset, buffer_size=buffer_size)
    assert (config.alpha, config.beta) == (alpha, beta)


@pytest.mark.parametrize(
    ("dataset", "scenario", "fidelity", "schedule"),
    [
        ("seq-cifar10", "offline", "official", ((), "task")),
        ("seq-cifar100", "online", "official", ((), "task")),
        ("seq-cifar100", "offline", "official", ((35, 45), "task")),
        ("seq-miniimg", "offline", "official", ((35, 60, 75), "never")),
        ("seq-miniimg", "offline", "paper", ((35, 60, 75), "task")),
    ],
)
def test_schedules(dataset, scenario, fidelity, schedule):
    config = resolved(dataset=dataset, scenario=scenario, fidelity=fidelity)
    assert (config.lr_milestones, config.lr_restart) == schedule
    if schedule[0]:
        assert config.lr_factor == {"seq-cifar100": 0.1, "seq-miniimg": 0.2}[dataset]


@pytest.mark.parametrize(
    ("flags", "epochs", "batch", "replay"),
    [
        ({}, 1, 10, 10),
        ({"batch_size": 32}, 1, 32, 32),
        ({"minibatch_size": 7}, 1, 10, 7),
        ({"scenario": "offline"}, 50, 32, 32),
        ({"scenario": "offline", "n_epochs": 2, "minibatch_size": 64}, 2, 32, 64),
    ],
)
def test_epochs_and_batches_of_the_scenarios(flags, epochs, batch, replay):
    config = resolved(dataset="seq-cifar100", **flags)
    assert (config.n_epochs, config.batch_size, config.minibatch_size) == (epochs, batch, replay)


@pytest.mark.parametrize(
    ("model", "dataset", "lr"),
    [("joint", "seq-cifar10", 0.1), ("er", "seq-cifar10", 0.03), ("sgd", "seq-cifar100", 0.03),
     ("sgd", "seq-miniimg", 0.1)],
)  # fmt: skip
def test_learning_rate_of_fine_tuning(model, dataset, lr):
    assert resolved(model=model, dataset=dataset).lr == lr


def test_settings_of_adab2n():
    config = resolved(norm="adab2n", dataset="seq-cifar100")
    assert (config.kappa, config.lambd, config.eta, config.ada_t0) == (0.7, 0.01, 0.1, 0)
    assert resolved(norm="adab2n", dataset="seq-miniimg").lambd == 1e-3
    assert resolved(norm="adab2n", dataset="seq-miniimg", lambd=2.0).lambd == 2.0
    assert resolved(norm="gn", dataset="seq-cifar100").groups == 32
    for dataset in ("seq-cifar10", "seq-cifar100"):
        assert resolved(model="derpp", norm="adab2n", dataset=dataset).lambd == 0.1
        assert resolved(model="derpp", norm="adab2n", dataset=dataset, penalty_norm="sum").lambd == 0.001
    assert resolved(model="derpp", norm="adab2n", dataset="seq-digits").lambd == 0.01


@pytest.mark.parametrize(
    ("model", "norm", "forward"),
    [("derpp", "bn", "separate"), ("derpp", "adab2n", "joint"), ("er", "gn", "joint"), ("er_ace", "cn", "separate")],
)
def test_what_auto_means_for_the_replay_forward(model, norm, forward):
    assert resolved(model=model, norm=norm).replay_forward == forward


def test_options_of_others_are_not_in_the_configuration():
    config = resolved(model="sgd").values()
    assert not {"buffer_size", "minibatch_size", "kappa", "alpha", "groups", "image_size"} & set(config)
