"""An epoch's last batch of one image: left out, counted and said where a norm cannot normalize it, else learned."""

import pytest
import torch
from conftest import goes_on, runner
from stopped_runs import stopped

from tests.helpers import build_run, make_spec, make_stream, run_config, weights_of
from tests.outcomes import outcome
from utils.errors import RunFailed
from utils.run.training import Training
from utils.step import StepIndex

NOTE = "note: the last batch of an epoch is a single image, which this norm cannot normalize; it is left out\n"
# Tasks of 291, 283, 283, 287 and 289 images: in batches of ten, the first ends with a single one, in its 30th step.
DIGITS = ["--model", "sgd", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "4", "--seed", "21"]
DIGITS += ["--n_epochs", "2", "--save_model"]


def odd_stream():
    """Ten, nine and eight images in batches of four."""
    return make_stream(make_spec(n_tasks=3, n_classes=6, train_sizes=(10, 9, 8)))


def run(config, stream):
    _, method = build_run(config, stream)
    return Training(config, stream, method).run()


# --- which are left out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["bn", "bnt", "adab2n", "tbbn", "tbbn_weighted", "cma", "cn", "brn"])
def test_batch_that_cannot_be_normalized_is_left_out_counted_and_said_once(norm, capsys):
    result = run(run_config("sgd", norm, n_epochs=2), odd_stream())
    assert (result["batches_left_out"], result["steps"]) == (2, 2 * (3 + 3 + 2))
    assert capsys.readouterr().err == NOTE


@pytest.mark.parametrize("norm", ["gn", "ln", "none"])
def test_norms_of_single_samples_learn_from_it(norm, capsys):
    stream = odd_stream()
    net, method = build_run(run_config("sgd", norm), stream)
    result = Training(method.config, stream, method).run()
    assert (result["batches_left_out"], capsys.readouterr().err) == (0, "")
    before = weights_of(net)
    assert method.runner.skip_unnormalizable_batch(1, lambda: method.step(single(stream), StepIndex(0, 99))) is not None
    assert not all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize(("freeze_after", "skipped_batches"), [(1, 0), (2, 1)])
def test_frozen_statistics_can_normalize_it(freeze_after, skipped_batches):
    """It is the second task that ends with a single image."""
    result = run(run_config("sgd", "bn_frozen", freeze_after=freeze_after), odd_stream())
    assert result["batches_left_out"] == skipped_batches


def test_replay_in_the_same_forward_makes_it_larger(capsys):
    """With samples of the buffer it is no batch of one; in a forward of its own it is."""
    for forward, skipped_batches in (("joint", 0), ("separate", 1)):
        assert run(run_config("er_ace", replay_forward=forward), odd_stream())["batches_left_out"] == skipped_batches
    assert capsys.readouterr().err == NOTE


# --- what they leave --------------------------------------------------------------------------------------------------


def single(stream):
    return next(make_stream(stream.spec, batch_size=1).batches(0, 0, 0))


@pytest.mark.parametrize("norm", ["bn", "adab2n", "brn", "bn_frozen"])
def test_network_is_as_before_the_attempt(norm):
    """The last maps of these images are single pixels: the last layers refuse when the first have seen the batch."""
    stream = odd_stream()
    net, method = build_run(run_config("sgd", norm, "resnet18"), stream)
    method.grow()
    net.train()
    method.step(next(stream.batches(0, 0, 0)), StepIndex(0, 0, 0))
    before = weights_of(net)

    def attempt():
        return method.step(single(stream), StepIndex(0, 1, 0))

    assert method.runner.skip_unnormalizable_batch(1, attempt) is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    if norm == "bn":
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            attempt()
        assert not torch.equal(net.state_dict()["norm1.running_mean"], before["norm1.running_mean"])


def test_buffer_is_as_before_the_attempt():
    stream = odd_stream()
    _, method = build_run(run_config("er_ace"), stream)
    assert method.runner.skip_unnormalizable_batch(1, lambda: method.step(single(stream), StepIndex(0, 0, 0))) is None
    assert len(method.buffer) == 0


# --- whole commands ---------------------------------------------------------------------------------------------------


def test_run_with_such_a_batch_finishes_and_goes_on_counting_after_a_stop(tmp_path):
    straight = runner(tmp_path / "straight")(*DIGITS)
    assert (straight.code, straight.stderr) == (0, NOTE)
    assert (straight.record["batches_left_out"], straight.record["steps"]) == (2, 2 * (30 + 29 + 29 + 29 + 29))
    stopped(tmp_path / "stopped", *DIGITS, at=41)
    resumed = runner(tmp_path / "stopped")(*DIGITS)
    assert (resumed.code, resumed.stderr) == (0, goes_on(41))  # said once in a run
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "straight")


# --- gdumb's own batches ----------------------------------------------------------------------------------------------


def gdumb(**changes):
    return run_config("gdumb", **({"buffer_size": 9, "fitting_epochs": 3, "cutmix_alpha": 0.0} | changes))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_fitting_leaves_them_out_too(alpha, capsys):
    """Nine images in batches of four, three epochs after each of three tasks."""
    assert run(gdumb(cutmix_alpha=alpha), odd_stream())["batches_left_out"] == 9
    assert capsys.readouterr().err == NOTE
    assert run(gdumb(buffer_size=8), odd_stream())["batches_left_out"] == 0
    assert run(gdumb(norm="ln", cutmix_alpha=alpha), odd_stream())["batches_left_out"] == 0
    assert capsys.readouterr().err == ""


def test_fitting_to_a_single_image_that_cannot_be_normalized_fails_the_run():
    with pytest.raises(RunFailed, match="--buffer_size"):
        run(gdumb(buffer_size=1), odd_stream())
