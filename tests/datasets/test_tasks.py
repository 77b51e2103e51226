"""`--task_classes` and `--class_order`: tasks of unequal size, and the order of classes from a file."""

import numpy as np
import pytest
import torch
from helpers import CPU, build_run, make_spec, make_stream, run_config

from datasets.dataset import class_indices
from datasets.seq_cifar10 import SeqCifar10
from datasets.seq_digits import SeqDigits
from tests.datasets import class_folders
from utils.config.parser import parse
from utils.config.registry import MODELS
from utils.config.resolve import identity_options, resolve
from utils.errors import UsageError
from utils.run.build import StreamBuilder, epoch_sizes

UNEQUAL = (5, 1, 3, 1)


def config_of(*words):
    return resolve(parse(["--model", "sgd", "--dataset", "seq-digits", *words]))


def stream_of(*words):
    return StreamBuilder(config_of(*words)).stream(CPU)


def refusal(*words):
    with pytest.raises(UsageError) as caught:
        stream_of(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def classes_in_order(result):
    """The original digits in the order of the stream's labels, found by comparing pixels."""
    raw = SeqDigits().read(None)
    digit_of = {bytes(image): int(label) for image, label in zip(raw.train_images, raw.train_labels, strict=True)}
    data, order = result.train_data, []
    for label in range(10):
        (digit,) = {digit_of[bytes(image)] for image in data.images[data.labels == label].numpy()}
        order.append(digit)
    return order


# --- tasks of unequal size ----------------------------------------------------------------------------------------


def test_every_task_has_its_number_of_classes():
    result = stream_of("--task_classes", "5,1,3,1")
    assert result.spec.n_tasks == 4
    assert [result.spec.classes_of(task) for task in range(4)] == [range(5), range(5, 6), range(6, 9), range(9, 10)]
    raw = SeqDigits().read(None)
    for task, digits in enumerate([(0, 1, 2, 3, 4), (5,), (6, 7, 8), (9,)]):
        data = result.task_data(task)
        assert sorted(set(data.labels.tolist())) == list(digits)
        assert len(data) == result.spec.train_sizes[task] == np.isin(raw.train_labels, digits).sum()
        (test,) = result.test(task, 10**6)
        assert len(test) == result.spec.test_sizes[task] == np.isin(raw.test_labels, digits).sum()
        assert set(test.labels.tolist()) == set(digits)


def test_without_it_no_run_is_renamed():
    assert "task_classes" not in identity_options(config_of())
    assert identity_options(config_of("--task_classes", "5,5"))["task_classes"] == (5, 5)
    assert config_of("--task_classes", "5,5").n_tasks == 2
    assert config_of("--task_classes", "5,5", "--n_tasks", "2").n_tasks == 2


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        (["--task_classes", "5,4"], "--task_classes sum to 9"),
        (["--task_classes", "5,0,5"], "'5,0,5'"),
        (["--task_classes", "5.0,5"], "numbers of classes"),
        (["--task_classes", "5,5", "--n_tasks", "5"], "--n_tasks 5"),
        (["--task_classes", "5,5", "--dataset", "perm-digits"], "is an option of"),
    ],
)
def test_numbers_that_cannot_be_are_refused(words, keyword):
    assert keyword in refusal(*words)


# --- what methods and evaluation make of it -----------------------------------------------------------------------


def unequal_stream():
    spec = make_spec(n_tasks=4, n_classes=10, task_classes=UNEQUAL, train_sizes=(50, 10, 30, 10), test_sizes=(9,) * 4)
    return make_stream(spec)


def test_icarl_s_exemplars_and_steps():
    stream = unequal_stream()
    config = run_config("icarl", buffer_size=20)
    # M = 20: after task 1 there are 4 exemplars of 5 classes, then 3 of 6, then 2 of 9.
    assert MODELS.get("icarl").build.epoch_sizes(config, stream.spec, stream.spec.train_sizes) == [50, 30, 48, 28]
    assert epoch_sizes(config, stream.spec) == [50, 30, 48, 28]
    _, method = build_run(config, stream)
    for task, held in enumerate([20, 18, 18, 20]):
        method.grow()
        method.end_task(task, stream)
        counts = np.bincount(method.buffer.all_samples().labels_host, minlength=10)
        assert counts.sum() == held
        assert (counts[: UNEQUAL[0]] == 20 // sum(UNEQUAL[: task + 1])).all()


@pytest.mark.parametrize("model", ["icarl", "joint", "derpp"])
def test_whole_runs(run_main, model):
    flags = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "16", "--batch_size", "60"]
    flags += [] if model in ("icarl", "joint") else ["--buffer_mode", "ring"]
    finished = run_main("--model", model, *flags, "--norm", "adab2n", "--task_classes", "6,1,3")
    assert (finished.code, finished.stderr) == (0, "")
    results = finished.record["results"]
    assert len(results["class_il"]["matrix"][-1]) == 3
    assert results["task_il"]["matrix"][-1][1] == 100  # its one class
    assert finished.record["config"]["n_tasks"] == 3
    assert finished.record["config"]["task_classes"] == [6, 1, 3]


# --- the order of classes -----------------------------------------------------------------------------------------

ORDER = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]


def write_order(path, lines=ORDER):
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.mark.parametrize("seed", ["0", "2"])
def test_classes_come_in_the_order_of_the_file(tmp_path, seed):
    result = stream_of("--class_order", write_order(tmp_path / "order"), "--seed", seed)
    assert classes_in_order(result) == ORDER
    by_words = stream_of("--class_order", ",".join(map(str, ORDER)), "--seed", seed)
    assert torch.equal(by_words.train_data.labels, result.train_data.labels)


def test_classes_may_have_names(tmp_path):
    names = SeqCifar10.class_names.split()
    lines = [*reversed(names)]
    config = config_of("--dataset", "seq-cifar10", "--class_order", write_order(tmp_path / "order", lines))
    assert SeqCifar10().stream_labels(config, 10).tolist() == list(range(9, -1, -1))
    class_folders.fill(tmp_path / "images")  # ant, bee, cat, dog
    order = write_order(tmp_path / "animals", ["cat", "  dog ", "", "ant", "bee"])
    flags = ["--dataset", "seq-folder", "--base_path", str(tmp_path / "images"), "--image_size", "8", "--non_verbose"]
    result = stream_of(*flags, "--n_tasks", "2", "--class_order", order)
    content = class_folders.fill(tmp_path / "images")
    first = result.train_data.images[result.train_data.labels == 0].numpy().transpose(0, 2, 3, 1)
    assert np.array_equal(first, content["train", "cat"])


def test_names_win_over_indices_where_both_would_fit():
    numbers = [str(number) for number in range(11)]
    assert class_indices(numbers, sorted(numbers), "x") == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 2]
    assert class_indices(["10", "2", "1"], ["1", "10", "2"], "x") == [1, 2, 0]
    assert class_indices(["2", "0", "1"], ["1", "10", "2"], "x") == [2, 0, 1]  # "0" is no name


def test_content_of_the_file_is_the_identity(tmp_path):
    one, same = write_order(tmp_path / "one"), write_order(tmp_path / "same")
    other = write_order(tmp_path / "other", sorted(ORDER))
    identities = [identity_options(config_of("--class_order", path)) for path in (one, same, other)]
    assert identities[0] == identities[1] != identities[2]
    assert identities[0]["class_order"] == tuple(map(str, ORDER))
    assert identities[0]["class_order_seed"] is None
    assert "class_order" not in identity_options(config_of())


@pytest.mark.parametrize(
    ("lines", "keyword"),
    [
        (ORDER[:-1], "'7'"),
        ([*ORDER, 3], "'3'"),
        ([*ORDER[:-1], "seven"], "'seven'"),
        ([*ORDER[:-1], "7,8"], "comma"),
        ([], "'0'"),
    ],
)
def test_file_that_is_no_order_is_refused(tmp_path, lines, keyword):
    assert keyword in refusal("--class_order", write_order(tmp_path / "order", lines))


def test_other_refusals(tmp_path):
    assert "no file" in refusal("--class_order", str(tmp_path / "none"))
    assert "no file" in refusal("--class_order", str(tmp_path))
    order = write_order(tmp_path / "order")
    assert "--class_order_seed" in refusal("--class_order", order, "--class_order_seed", "0")
    assert "is an option of" in refusal("--class_order", order, "--dataset", "perm-digits")


def test_saved_network_brings_its_order_and_its_tasks(run_main, tmp_path):
    order = write_order(tmp_path / "order")
    flags = ["--model", "sgd", "--dataset", "seq-digits", "--num_filters", "4", "--batch_size", "60"]
    flags += ["--class_order", order, "--task_classes", "6,4", "--save_model"]
    finished = run_main(*flags)
    assert finished.code == 0
    (tmp_path / "order").unlink()
    shown = run_main("--eval_only", str(finished.folder / "model.safetensors"))
    assert shown.code == 0, shown.stderr
    wanted = finished.record["results"]["task_il"]["matrix"][-1]
    assert shown.stdout.splitlines()[-1].split()[3:5] == [f"{value:.2f}" for value in wanted]
