"""A step as a value, and the contract of a method: what is called when, and what a resumed run calls again."""

import pytest
import torch
from torch.nn import functional as F

from models.method import Method
from tests.helpers import make_spec, make_stream, record_steps, run_config
from tests.models.cut_off import assert_resumes_from_every_checkpoint, with_checkpoints
from utils.data.buffer import Buffer, MethodManaged
from utils.run.build import build_augment, build_network
from utils.run.training import Training
from utils.step import CURRENT, Step

SPEC = make_spec(n_tasks=3, n_classes=6, image_shape=(3, 8, 8), train_sizes=(12, 8, 12))


def look(step: Step) -> dict:
    """Keep of a step what is plain."""
    return {
        "index": (step.index.task, step.index.step, step.index.epoch),
        "batches": {name: batch.tasks_host.tolist() for name, batch in step.batches.items()},
        "terms": {name: value.item() for name, value in step.loss_terms.items()},
        "shapes": {name: tuple(output.embedding.shape) for name, output in step.outputs.items()},
    }


# --- what a step holds -------------------------------------------------------------------------------------------


def test_observers_see_where_a_step_was_and_what_it_was_made_of():
    steps, *_ = record_steps(run_config("derpp", "adab2n"), make_stream(SPEC), look)
    assert [step["index"] for step in steps] == [(task, k, 0) for k, task in enumerate([0, 0, 0, 1, 1, 2, 2, 2])]
    assert list(steps[0]["batches"]) == list(steps[0]["terms"]) == [CURRENT]
    assert list(steps[1]["batches"]) == [CURRENT, "logits", "labels"]
    assert list(steps[5]["terms"]) == [CURRENT, "logits", "labels", "penalty"]
    assert steps[4]["batches"][CURRENT] == [1] * 4
    assert set(steps[7]["batches"]["labels"]) <= {0, 1, 2}
    assert steps[4]["shapes"] == {CURRENT: (4, 8), "logits": (4, 8), "labels": (4, 8)}


# --- the contract ------------------------------------------------------------------------------------------------


class Everything(Method):
    """Uses every hook: a bias in predictions, samples that join a task, gradients cut in half, a buffer that it fills
    itself, and sums over all labels."""

    draw_names = ("replay",)
    calls: list

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.bias = torch.zeros(self.n_classes)
        self.own = torch.nn.Parameter(torch.ones(()))
        self.label_sum = torch.zeros(())

    @classmethod
    def buffer_policy(cls, config, spec):
        return MethodManaged(config.buffer_size, spec)

    def parameters(self):
        return [self.own]

    def begin_task(self, task, stream):
        self.calls.append(("begin", task))
        self.label_sum = 2 * self.label_sum + sum(batch.labels.sum() for batch in stream.in_order(task, 5))
        self.bias[list(self.spec.classes_of(task))] += 0.1
        self.net.linear1.requires_grad_(task != 1)  # frozen in the second task

    def extra_task_samples(self, task):
        return self.buffer.all_samples() if len(self.buffer) else None

    def loss(self, batches, outputs, index):
        self.calls.append(("step", index.step))
        losses = {"labels": self.own * F.cross_entropy(outputs[CURRENT].logits, batches[CURRENT].labels)}
        if "replay" in batches:
            losses["replay"] = (
                1e-3 * self.label_sum * F.cross_entropy(outputs["replay"].logits, batches["replay"].labels)
            )
        return losses

    def adjust_gradients(self, step):
        for parameter in self.net.parameters():
            if parameter.grad is not None:
                parameter.grad *= 0.5

    def remember(self, batch, outputs, index): ...

    def end_task(self, task, stream):
        self.calls.append(("end", task))
        self.buffer.add(next(stream.in_order(task, 4)))
        self.bias += 0.01 * self.label_sum
        with torch.no_grad():
            self.net.classifier.bias += 0.1
        if task == self.fails_at_end_of:
            raise KeyboardInterrupt
        self.calls.append(("ended", task))

    fails_at_end_of = None

    def predict(self, inputs):
        return self.net(inputs) + self.bias

    def state_dict(self):
        return {"bias": self.bias, "label_sum": self.label_sum, "own": self.own.detach()}

    def load_state_dict(self, state):
        self.bias, self.label_sum = state["bias"], state["label_sum"]
        self.own.data.copy_(state["own"])


def run_of_every_hook(norm: str, fails_at_end_of=None) -> Training:
    config, stream = run_config("er", norm, lr=0.01), make_stream(SPEC)
    net = build_network(config, SPEC, torch.device("cpu"))
    buffer = Buffer(config.buffer_size, Everything.buffer_policy(config, SPEC), SPEC, torch.device("cpu"))
    method = Everything(net, config, SPEC, build_augment(config, SPEC, torch.device("cpu")), buffer)
    method.calls, method.fails_at_end_of = [], fails_at_end_of
    return with_checkpoints(Training(config, stream, method))


def test_the_order_of_a_run():
    training = run_of_every_hook("adab2n")
    training.run()
    calls = training.method.calls
    assert [call for call in calls if call[0] != "step"] == [
        (what, task) for task in range(3) for what in ("begin", "end", "ended")
    ]
    # Twelve samples; then eight and four that joined; then twelve and four.
    assert [call[1] for call in calls if call[0] == "step"] == list(range(3 + 3 + 4))
    assert calls[0] == ("begin", 0)
    assert calls[4] == ("end", 0)


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_a_run_resumed_from_any_checkpoint_comes_to_the_same_end(norm):
    straight, resumed_runs = assert_resumes_from_every_checkpoint(lambda: run_of_every_hook(norm))
    assert len(resumed_runs) > 6
    for step, resumed in resumed_runs:
        calls = [call for call in resumed.method.calls if call[0] == "step"]
        assert calls == [("step", number) for number in range(step, 10)]
    method = straight.method  # the hooks matter; otherwise nothing would be compared
    assert method.label_sum > 10
    assert method.own.item() != 1
    assert (method.bias > 1).all()
    assert len(method.buffer) == 4


def test_what_a_resumed_run_calls_again_and_what_not():
    """From the checkpoint before an end of a task: that end, not the task's beginning. From the one after: neither."""
    straight = run_of_every_hook("bn")
    straight.run()
    at_end_of_second = [state for step, state in straight.checkpoints.states if step == 6]
    assert [state["cursor"]["ended"] for state in at_end_of_second] == [False, True]
    for state, repeated in zip(at_end_of_second, ([("end", 1), ("ended", 1)], []), strict=True):
        resumed = run_of_every_hook("bn")
        resumed.checkpoints.last_step = 6
        resumed.run(state)
        assert resumed.method.calls[: len(repeated) + 1] == [*repeated, ("begin", 2)]


@pytest.mark.parametrize("norm", ["bn", "adab2n"])
def test_an_end_of_task_that_was_cut_off_is_repeated_from_its_start(norm):
    straight = run_of_every_hook(norm)
    results = straight.run()["results"]
    cut = run_of_every_hook(norm, fails_at_end_of=1)
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    step, state = cut.checkpoints.states[-1]
    resumed = run_of_every_hook(norm)
    resumed.checkpoints.last_step = step
    assert resumed.run(state)["results"] == results
    assert resumed.method.calls[:2] == [("end", 1), ("ended", 1)]
