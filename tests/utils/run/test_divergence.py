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


# --- weights ----------------------------------------------------------------------------------------------------------


def test_weights_that_overflow_while_losses_are_finite_fail_the_run(results):
    """The second and last step of a task: its loss is still finite, the statistics after it are not."""
    line = reason(results, "--model", "sgd", *SMALL, "--batch_size", "200", "--lr", "1e18")
    assert "not finite after step 2" in line
    assert "--lr" in line


def test_huge_learning_rate_fails_the_run(results):
    line = reason(results, "--model", "sgd", *SMALL, "--lr", "1e30")
    assert "nan at step 2" in line


@pytest.mark.parametrize("name", ["classifier.weight", "running_var"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_one_number_of_the_network_that_is_none_is_enough(name, value):
    class Breaking(Sgd):
        def end_task(self, task, stream):
            if task == 1:
                [tensor, *_] = [found for key, found in self.net.state_dict().items() if key.endswith(name)]
                tensor.view(-1)[-1] = value

    config, stream = run_config("sgd"), make_stream(make_spec(n_tasks=3, n_classes=6))
    net, method = build_run(config, stream)
    training = Training(config, stream, Breaking(net, config, stream.spec, method.augment, None))
    with pytest.raises(RunFailed, match=r"in task 2: .* after step 6"):
        training.run()
    assert len(training.rows["class_il"]) == 1  # no number of the broken network


# --- advice -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lambd", "step"), [("1e8", "step 3"), ("1e5", "step 4")])
def test_divergence_with_a_penalty_names_its_weight(results, lambd, step):
    line = reason(results, *ADA, "--lambd", lambd)
    assert step in line
    assert "penalty" in line


def test_divergence_without_a_penalty_names_lr_alone(results):
    line = reason(results, "--model", "er", *SMALL, "--lr", "1e20")
    assert "--lr" in line
    assert "penalty" not in line
