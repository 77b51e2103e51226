"""Runs that diverge: they fail, and say which knob helps; no number comes of weights that are none."""

import pytest
from conftest import runner

from models.sgd import Sgd
from tests.helpers import build_run, make_spec, make_stream, run_config
from utils.errors import RunFailed
from utils.run.training import Training

SMALL = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8", "--debug_mode"]
ADA = ["--model", "er", "--norm", "adab2n", "--kappa", "0.7", *SMALL]


def reason(results, *words):
    """Of a run that fails with one line, and leaves a record without results that says the same."""
    failed = runner(results)(*words)
    assert failed.code == 1
    (line,) = failed.stderr.splitlines()
    assert failed.stdout == f"record: {failed.folder / 'record.json'}\n"
    assert (failed.record["status"], f"error: {failed.record['reason']}") == ("failed", line)
    assert "results" not in failed.record
    return line


SGD = ["--model", "sgd", *SMALL]


@pytest.mark.parametrize(
    ("words", "symptom", "has_penalty"),
    [
        ([*SGD, "--batch_size", "200", "--lr", "1e18"], "not finite after step 2", False),  # though its loss is finite
        ([*SGD, "--lr", "1e30"], "nan at step 2", False),
        ([*ADA, "--lambd", "1e8"], "step 3", True),
        ([*ADA, "--lambd", "1e5"], "test images", True),
    ],
)
def test_diverged_run_fails_with_advice(results, words, symptom, has_penalty):
    line = reason(results, *words)
    assert symptom in line
    assert "--lr" in line
    assert ("penalty" in line) == has_penalty


@pytest.mark.parametrize("name", ["classifier.weight", "running_var"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_one_number_of_the_network_that_is_none_is_enough(name, value):
    class Breaking(Sgd):
        def end_task(self, task, stream):
            if task == 1:
                [tensor, *_] = [buffer for key, buffer in self.net.state_dict().items() if key.endswith(name)]
                tensor.view(-1)[-1] = value

    config, stream = run_config("sgd"), make_stream(make_spec(n_tasks=3, n_classes=6))
    net, method = build_run(config, stream)
    training = Training(config, stream, Breaking(net, config, stream.spec, method.augment, None))
    with pytest.raises(RunFailed, match=r"in task 2: .* after step 6"):
        training.run()
    assert len(training.rows["class_il"]) == 1  # no number of the broken network


def test_scores_that_are_no_numbers_are_no_predictions():
    """Of `predict`, with a network that is sound; the largest of them would be the first."""

    class WithoutScores(Sgd):
        def predict(self, inputs):
            return super().predict(inputs).log()

    config, stream = run_config("sgd"), make_stream(make_spec(n_tasks=3, n_classes=6))
    net, method = build_run(config, stream)
    with pytest.raises(RunFailed, match="predict"):
        Training(config, stream, WithoutScores(net, config, stream.spec, method.augment, None)).run()
