"""What holds for every method: resuming, refused options, default options, and terms that add up to the loss."""

import pytest

from tests.helpers import build_run, make_spec, make_stream, run_config
from tests.models.cut_off import assert_resumes_from_every_checkpoint, with_checkpoints
from utils.config.registry import MODELS
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.run.build import check_together
from utils.run.observers import Observer
from utils.run.training import Training

SPEC = make_spec(n_tasks=3, n_classes=6, image_shape=(3, 8, 8), train_sizes=(12, 8, 12))
OPTIONS = {
    "gdumb": {"fitting_epochs": 2, "batch_size": 4, "buffer_size": 12},
    "ewc_on": {"e_lambda": 100.0, "gamma": 0.9},
    "agem": {"optim_mom": 0.5},
    "icarl": {"eval_every": 1},
    "agem_r": {"optim_mom": 0.5},
    "er_ace_lider": {"lip_targets": "learned"},
}
DEFAULTS = {
    "der": {"alpha": 0.3},
    "derpp": {"alpha": 0.1, "beta": 0.5},
    "derpp_lider": {"alpha_lip": 0.3, "beta_lip": 0.5, "lip_targets": "constant"},
    "er_ace_lider": {"alpha_lip": 0.1, "beta_lip": 0.3, "lip_targets": "constant"},
    "ewc_on": {"e_lambda": 10.0, "gamma": 1.0},
    "gdumb": {"fitting_epochs": 256, "maxlr": 0.05, "minlr": 0.0005, "cutmix_alpha": 1.0, "max_grad_norm": 10.0},
}
METHODS = sorted(MODELS.entries())


class Logs(Observer):
    def __init__(self):
        self.events = []

    def on_log(self, event):
        self.events.append(event)


def training_of(model: str) -> Training:
    method_type = MODELS.get(model).build
    backbone = "resnet18" if method_type.needs_features else "mlp"
    config = run_config(model, "adab2n", backbone, **OPTIONS.get(model, {}))
    stream = make_stream(SPEC)
    if method_type.joint_training:
        stream = stream.as_single_task()
    _, method = build_run(config, stream)
    return with_checkpoints(Training(config, stream, method, [Logs()]))


@pytest.mark.parametrize("model", METHODS)
def test_a_run_resumed_from_any_checkpoint_ends_the_same(model):
    """Checkpoints before an `end_task` and after it are among them. Logged terms add up to the loss."""
    straight, resumed_runs = assert_resumes_from_every_checkpoint(lambda: training_of(model))
    assert len(resumed_runs) >= 4
    events = straight.observers[0].events
    for step, resumed in resumed_runs:
        assert resumed.observers[0].events == [event for event in events if event["step"] > step]
    assert all((event["loss"] is None) == (model == "gdumb") for event in events)
    for event in events:
        assert sum(event["terms"].values()) == pytest.approx(event["loss"] or 0, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "option"), [(model, option) for model in METHODS for option in MODELS.get(model).build.unused_options]
)
def test_options_without_effect_are_refused(model, option):
    with pytest.raises(UsageError, match=f"--{option}"):
        resolve({"model": model, "dataset": "seq-cifar10", option: 1})


@pytest.mark.parametrize("model", DEFAULTS)
def test_defaults(model):
    defaults = {option.name: option.default for option in MODELS.get(model).options}
    assert DEFAULTS[model].items() <= defaults.items()


@pytest.mark.parametrize("model", [model for model in METHODS if MODELS.get(model).build.uses_buffer])
def test_a_missing_buffer_size_is_refused(model):
    config = run_config(model, backbone="resnet18")
    config.buffer_size = None
    with pytest.raises(UsageError, match="--buffer_size"):
        check_together(config, make_spec())
