"""Data sets of which every task has all images, each task's turned in its own way."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import CPU

from datasets.dataset import DOMAIN_OPTIONS, DomainDataset, RawData
from utils.config.options import Rule
from utils.config.registry import DATASETS, MODELS, Entry
from utils.config.resolve import resolve
from utils.data.random import generator
from utils.errors import UsageError
from utils.run.build import StreamBuilder

N_TASKS, N_CLASSES, TRAIN, TEST = 4, 3, 20, 5
RULES = (Rule({"n_tasks": N_TASKS, "buffer_size": 30, "num_filters": 2}),)


class SeqTurned(DomainDataset):
    name = "seq-turned"
    image_shape = (1, 8, 8)
    mean, std = (0.5,), (0.25,)

    def class_sizes(self, config):
        return np.full(3, 20), np.full(3, 5)

    def read(self, config):
        draw = generator(0, "images")
        images = draw.integers(0, 256, (75, 1, 8, 8), dtype=np.uint8)
        labels = np.arange(75) % 3
        images[np.arange(75), 0, labels] = 255  # a row of the class's own
        return RawData(images[:60], labels[:60], images[60:], labels[60:])

    def transform(self, task, config):
        return lambda images: torch.rot90(images, task, (2, 3)) if task else images


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """In this process, until the test is over."""
    entry = Entry("seq-turned", SeqTurned, "", DOMAIN_OPTIONS, RULES, module=__name__)
    monkeypatch.setitem(DATASETS.entries(), "seq-turned", entry)


@pytest.fixture
def whole():
    """Images and labels of both splits, as tensors."""
    raw = SeqTurned().read(None)
    return SimpleNamespace(**{name: torch.from_numpy(array) for name, array in vars(raw).items()})


def data_of(model="er", **flags):
    return StreamBuilder(resolve({"model": model, "dataset": "seq-turned", "backbone": "mlp", "device": "cpu"} | flags))


def stream_of(model="er", **flags):
    return data_of(model, **flags).stream(CPU)


def turned(images, task):
    return torch.rot90(images, task, (2, 3))


def gathered(batches):
    """All images, labels and tasks of the batches; what the host knows must agree."""
    batches = list(batches)
    for batch in batches:
        assert batch.labels.tolist() == batch.labels_host.tolist()
        assert batch.tasks.tolist() == batch.tasks_host.tolist()
    return tuple(torch.cat([getattr(batch, name) for batch in batches]) for name in ("images", "labels", "tasks"))


def as_rows(images, labels):
    """Samples without their order."""
    return sorted([label, *image] for label, image in zip(labels.tolist(), images.flatten(1).tolist(), strict=True))


def test_every_task_has_all_classes_and_all_images():
    spec = data_of().spec
    assert (spec.setting, spec.is_domain) == ("domain", True)
    assert (spec.n_tasks, spec.n_classes, spec.image_shape) == (N_TASKS, N_CLASSES, (1, 8, 8))
    assert spec.train_sizes == (N_CLASSES * TRAIN,) * N_TASKS
    assert spec.test_sizes == (N_CLASSES * TEST,) * N_TASKS
    assert [spec.classes_of(task) for task in range(N_TASKS)] == [range(N_CLASSES)] * N_TASKS


def test_wrong_number_of_images_is_refused(monkeypatch):
    monkeypatch.setattr(SeqTurned, "class_sizes", lambda self, config: (np.full(3, 21), np.full(3, 5)))
    with pytest.raises(UsageError, match="60 images instead of 63"):
        stream_of()


@pytest.mark.parametrize("task", range(N_TASKS))
def test_task_s_own_transform_in_training_in_order_and_test(whole, task):
    stream = stream_of()
    for batches, expected, expected_labels in (
        (stream.in_order(task, 7), whole.train_images, whole.train_labels),
        (stream.test(task, 7), whole.test_images, whole.test_labels),
    ):
        images, labels, tasks = gathered(batches)
        assert torch.equal(images, turned(expected, task))
        assert torch.equal(labels, expected_labels)
        assert set(tasks.tolist()) == {task}
    images, labels, tasks = gathered(stream.batches(task, 1, 0))
    assert as_rows(images, labels) == as_rows(turned(whole.train_images, task), whole.train_labels)
    assert set(tasks.tolist()) == {task}


def test_nothing_is_held_twice(whole):
    stream = stream_of()
    for task in range(N_TASKS):
        list(stream.batches(task, 0, 0))
    assert torch.equal(stream.train_data.images, whole.train_images)
    assert stream.train_data.images.untyped_storage().nbytes() == 60 * 64
    held = stream.train_data.images.untyped_storage().data_ptr()
    (first,) = stream.in_order(0, 100)  # turned by nothing
    for same in (first, stream.to(CPU).train_data, stream.as_single_task().train_data):
        assert same.images.untyped_storage().data_ptr() == held


def test_joint_training_sees_every_task_s_transform(whole):
    stream = stream_of("joint")
    assert stream.train_sizes == [60 * N_TASKS]
    everything = torch.cat([turned(whole.train_images, task) for task in range(N_TASKS)])
    labels_of_all = whole.train_labels.repeat(N_TASKS)
    images, labels, tasks = gathered(stream.in_order(0, 50))
    assert torch.equal(images, everything)
    assert torch.equal(labels, labels_of_all)
    assert set(tasks.tolist()) == {0}
    images, labels, _ = gathered(stream.batches(0, 0, 0))
    assert as_rows(images, labels) == as_rows(everything, labels_of_all)
    for task in range(N_TASKS):
        assert torch.equal(gathered(stream.test(task, 50))[0], turned(whole.test_images, task))


def test_methods_that_need_own_classes_are_refused():
    backbones = {True: "resnet18", False: "mlp"}
    refused = set()
    for name, entry in MODELS.entries().items():
        flags = {"backbone": backbones[entry.build.needs_features]}
        if not entry.build.needs_own_classes:
            assert data_of(name, **flags).spec.is_domain
            continue
        with pytest.raises(UsageError, match=f"--model {name}:") as caught:
            data_of(name, **flags)
        assert "\n" not in str(caught.value)
        refused.add(name)
    assert {"er_ace", "er_ace_lider"} <= refused
    assert not {"sgd", "joint", "er", "derpp", "derpp_lider"} & refused


def test_ring_shares_its_slots_among_tasks_where_they_share_classes():
    data = data_of("derpp", buffer_mode="ring", ring_quota="class")
    policy = MODELS.get("derpp").build.buffer_policy(data.config, data.spec)
    assert (policy.by, policy.quota, len(policy.counts)) == ("task", 30 // N_TASKS, N_TASKS)


@pytest.mark.parametrize(
    ("model", "flags", "rows", "steps"),
    [("er", [], 4, 16), ("joint", [], 1, 16), ("derpp", ["--buffer_mode", "ring", "--validation", "0.25"], 4, 12)],
)
def test_run_gives_domain_il_only(run_main, model, flags, rows, steps):
    words = ["--model", model, "--norm", "adab2n", "--dataset", "seq-turned", "--backbone", "mlp", "--batch_size", "15"]
    run = run_main(*words, *flags)
    assert (run.code, run.stderr) == (0, "")
    assert list(run.record["results"]) == ["domain_il"]
    matrix = run.record["results"]["domain_il"]["matrix"]
    assert [len(row) for row in matrix] == [N_TASKS] * rows
    assert None not in matrix[-1]
    assert run.record["steps"] == steps
    assert "Class-IL" not in run.stdout
    assert run.record["data"]["test_sizes"] == [15] * N_TASKS
    assert run.record["data"]["reported_on"] == ("validation split" if model == "derpp" else "test set")
