"""`--classifier seen`: classes of tasks that have not begun are left out of the softmax and of predictions."""

import pytest
import torch
from conftest import runner
from torch.nn import functional as F

from tests.helpers import build_run, make_spec, make_stream, record_steps, run_config
from tests.models.test_compiled_step import steps_of
from utils.run.saved_model import load_network
from utils.step import CURRENT

SPEC = make_spec(n_tasks=3, n_classes=6)


@pytest.mark.parametrize("model", ["sgd", "er", "er_ace", "der", "derpp", "agem_r", "ewc_on"])
def test_weights_of_unseen_classes_stay_as_they_are(model):
    stream = make_stream(SPEC)
    net, method = build_run(run_config(model, classifier="seen"), stream)
    before = net.classifier.weight.detach().clone()
    for step in steps_of(method, stream, [0, 1]):
        seen = 2 * (step.index.task + 1)
        logits, labels = step.outputs[CURRENT].logits, step.batches[CURRENT].labels
        assert logits.argmax(1).max() < seen
        if model == "sgd":
            torch.testing.assert_close(step.loss, F.cross_entropy(logits[:, :seen], labels))
        moved = (net.classifier.weight != before).any(1)
        assert moved[:seen].any()
        assert not moved[seen:].any()
    assert net.eval()(torch.rand(50, *SPEC.input_shape)).argmax(1).max() < 4


def test_unseen_classes_have_no_accuracy_and_no_forward_transfer():
    """The untrained network has seen no class, and all compete."""
    _, _, outcome = record_steps(run_config("er", classifier="seen"), make_stream(SPEC), lambda step: None)
    result = outcome["results"]["class_il"]
    assert [sum(value is not None for value in row) for row in result["matrix"]] == [1, 2, 3]
    assert result["metrics"]["fwt"] is None


def test_a_saved_network_knows_which_classes_it_has_seen(tmp_path):
    words = ["--model", "sgd", "--dataset", "seq-digits", "--backbone", "mlp", "--debug_mode", "--save_model"]
    ended = runner(tmp_path)(*words, "--classifier", "seen", "--stop_after", "2")
    assert load_network(ended.folder).unseen.tolist() == [False] * 4 + [True] * 6
