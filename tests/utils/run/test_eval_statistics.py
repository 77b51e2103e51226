"""`--eval_statistics`: what the norm layers normalize with at test time, and that training does not notice."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import utils.run.eval_statistics
from tests import helpers
from tests.helpers import (
    assert_close,
    build_run,
    make_spec,
    make_stream,
    record_steps,
    run_config,
    scatter_norms,
    weights_of,
)  # fmt: skip
from utils.data.random import generator
from utils.run.eval_statistics import buffer_batches, eval_statistics_applied, in_test_order

SPEC = make_spec(n_tasks=2, n_classes=4, train_sizes=(12, 12))
NORMS = ["bn", "cn", "adab2n", "bnt", "tbbn", "tbbn_weighted", "cma"]
NORM_OPTIONS = {"cn": {"cn_affine": "learned"}, "adab2n": {"running_var_start": 0}}


def made(norm: str, which: str, model: str = "er", stored: int = 12):
    """(network in eval mode, method), with running statistics and affine parameters that show where they are used."""
    config = run_config(model, norm, dtype="float64", eval_statistics=which, **NORM_OPTIONS.get(norm, {}))
    stream = make_stream(SPEC)
    net, method = build_run(config, stream)
    method.grow()
    scatter_norms(net)
    if stored:
        method.buffer.add(next(stream.in_order(0, stored)), generator(0, "fill"))
    return net.eval(), method


def images(count: int = 7) -> torch.Tensor:
    return torch.randn(count, *SPEC.image_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


# --- the two other kinds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_batch_statistics_are_those_of_the_test_batch(norm):
    """Also of a layer that has had no update yet, and of every batch anew."""
    net, method = made(norm, "batch")
    before = weights_of(net)
    with eval_statistics_applied(method):
        for x in (images(7), images(3)):
            assert_close(method.predict(x), helpers.two_layers_by_hand(net, norm, x)[0], atol=1e-10)
    assert all(tensor.equal(before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_buffer_statistics_are_plain_averages_over_the_batches_of_a_pass(norm, monkeypatch):
    """Twelve samples in batches of five, five and two, each normalized by itself on its way."""
    monkeypatch.setattr(utils.run.eval_statistics, "EVALUATION_BATCH", 5)
    net, method = made(norm, "buffer")
    before = weights_of(net)
    order = method.buffer.sample_slots(12, generator(method.config.seed, "eval_statistics"))
    stored = method.augment.normalize(method.buffer.images[torch.from_numpy(order)])
    passes = [helpers.two_layers_by_hand(net, norm, part)[1] for part in (stored[:5], stored[5:10], stored[10:])]
    averages = [
        tuple(sum(used[layer][k] for used in passes) / 3 for k in (0, 1)) for layer in (0, 1)
    ]  # (mean, variance) of every layer
    with eval_statistics_applied(method):
        outputs = method.predict(images())
        alone = method.predict(images()[:1])
    assert_close(outputs, helpers.two_layers_by_hand(net, norm, images(), statistics=averages)[0], atol=1e-10)
    assert_close(alone, outputs[:1], atol=1e-10)  # whatever else is in the test batch
    assert all(tensor.equal(before[name]) for name, tensor in net.state_dict().items())
    assert not outputs.allclose(net(images()))


def test_buffer_statistics_have_all_samples_whatever_the_policy_draws(monkeypatch):
    _, method = made("bn", "buffer")
    monkeypatch.setattr(method.buffer.policy, "sample", lambda buffer, count, draw: buffer.filled[:2])
    assert sum(map(len, buffer_batches(method))) == len(method.buffer) > 2


@torch.no_grad()
def test_statistics_of_maps_are_over_space_too():
    config = run_config("er", backbone="resnet18", dtype="float64", eval_statistics="batch")
    net, method = build_run(config, make_stream(SPEC))
    seen = []
    net.norm1.register_forward_hook(lambda layer, inputs, output: seen.append((inputs[0], output)))
    net.eval()
    with eval_statistics_applied(method):
        method.predict(images())
    (a, out), *_ = seen
    spread = (a - a.mean((0, 2, 3), keepdim=True)).square().mean((0, 2, 3), keepdim=True)
    assert_close(out, (a - a.mean((0, 2, 3), keepdim=True)) / (spread + 1e-5).sqrt(), atol=1e-10)


@pytest.mark.parametrize(("which", "stored"), [("running", 12), ("buffer", 0)])
@torch.no_grad()
def test_running_statistics_otherwise_and_while_the_buffer_is_empty(which, stored):
    net, method = made("bn", which, stored=stored)
    running = [(layer.running_mean, layer.running_var) for layer in (net.norm1, net.norm2)]
    with eval_statistics_applied(method):
        assert_close(
            method.predict(images()), helpers.two_layers_by_hand(net, "bn", images(), statistics=running)[0], atol=1e-10
        )


@pytest.mark.parametrize("which", ["buffer", "batch"])
def test_an_evaluation_that_is_cut_off_leaves_the_network_as_it_was(which):
    net, method = made("adab2n", which)
    before = weights_of(net)

    def cut_off():
        with eval_statistics_applied(method), torch.no_grad():
            method.predict(images())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_off()
    assert all(tensor.equal(before[name]) for name, tensor in net.state_dict().items())
    assert all(not module._forward_pre_hooks for module in net.modules())


# --- the order of the test images ---------------------------------------------------------------------------------


def test_test_batches_are_mixed_only_where_they_are_normalized_by_themselves(monkeypatch):
    monkeypatch.setattr(utils.run.eval_statistics, "EVALUATION_BATCH", 50)
    stream = make_stream(make_spec(test_sizes=(120, 6)))
    labels = np.sort(stream.test_data.labels_host[:120])
    data = replace(stream.test_data, labels=torch.from_numpy(labels), labels_host=labels)
    sorted_stream = replace(stream, test_data=data, test_ranges=((0, 120), (114, 120)))
    outputs = {}
    for which in ("running", "batch"):
        _, method = made("bn", which)
        outputs[which] = list(in_test_order(method, sorted_stream.test(0, 50), 0))
        assert [len(batch) for batch in outputs[which]] == [50, 50, 20]
    plain, mixed = (torch.cat([batch.labels for batch in outputs[which]]) for which in ("running", "batch"))
    assert plain.tolist() == labels.tolist()
    assert sorted(mixed.tolist()) == labels.tolist()
    share = outputs["batch"][0].labels.double().mean()  # of the second class, half of all
    assert 0.25 < share < 0.75
    again = list(in_test_order(made("bn", "batch")[1], sorted_stream.test(0, 50), 0))
    assert again[0].labels.tolist() == outputs["batch"][0].labels.tolist()


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_training_does_not_notice(norm):
    runs = {}
    for which in ("running", "buffer", "batch"):
        config = run_config("derpp", norm, eval_statistics=which, eval_every=2)
        losses, method, outcome = record_steps(config, make_stream(SPEC), lambda step: step.loss.item())
        points = [point["accuracy"] for point in outcome["results"]["class_il"]["points"]]
        runs[which] = losses, weights_of(method.net), (points, outcome["results"]["class_il"]["matrix"])
    expected, weights, accuracy = runs["running"]
    for which in ("buffer", "batch"):
        assert runs[which][0] == expected
        assert all(tensor.equal(weights[name]) for name, tensor in runs[which][1].items())
    assert [runs[which][2] for which in ("buffer", "batch")] != [accuracy, accuracy]
