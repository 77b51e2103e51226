"""`--check_data`: the report and the contact sheet of a data set, or what is missing."""

import itertools

import numpy as np
import pytest
import torch
from conftest import call
from forked import refusal
from helpers import make_spec
from PIL import Image

from datasets.seq_digits import SeqDigits
from tests.datasets import class_folders, image_trees
from utils.data.stream import TensorStream, make_batch
from utils.run.data_check import IMAGES_PER_CLASS, count_and_collect, resize_for_sheet


def check(results, *words):
    return call(["--check_data", *words, "--results_path", str(results)])


def table(stdout):
    """Cells of the rows below the head, by class."""
    lines = stdout.split("\n\n")[1].splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines[1:-1]}


def test_report_needs_no_model_and_counts_every_class(results):
    ended = check(results, "--dataset", "seq-digits", "--class_order_seed", "2", "--task_classes", "6,4")
    assert (ended.code, ended.stderr) == (0, "")
    for fact in ("16x16 pixels", "1433 for training", "364 for testing", "2 tasks of 6, 4", "fa79709106cda2c4"):
        assert fact in ended.stdout
    raw, place = SeqDigits().read(None), np.random.default_rng(42 + 2).permutation(10)
    train, test = np.bincount(raw.train_labels), np.bincount(raw.test_labels)
    assert table(ended.stdout) == {
        str(digit): [str(1 if place[digit] < 6 else 2), str(train[digit]), str(test[digit])] for digit in range(10)
    }
    sheet = np.asarray(Image.open(results / "data/seq-digits.png"))
    for digit in range(10):
        first = raw.train_images[raw.train_labels == digit][0, 0].repeat(2, 0).repeat(2, 1)
        assert np.array_equal(sheet[2 + 34 * digit :, 2:][:32, :32, 0], first)
    assert not (results / "runs").exists()


def test_model_validation_and_names_of_classes(results, tmp_path):
    class_folders.fill(tmp_path, train=10)
    flags = ["--dataset", "seq-folder", "--base_path", str(tmp_path), "--image_size", "8", "--non_verbose"]
    ended = check(results, *flags, "--n_tasks", "2", "--model", "joint", "--validation", "0.3")
    assert ended.code == 0
    assert "28 for training, 12 for validation" in ended.stdout
    assert table(ended.stdout)["cat"] == ["2", "7", "3"]
    assert f"source: {tmp_path}: train/<class>/* and test/<class>/*\n" in ended.stdout


def test_domain_il(results):
    ended = check(results, "--dataset", "perm-digits")
    assert ended.code == 0
    assert "each of 20 tasks" in ended.stdout
    assert table(ended.stdout)["3"] == ["all", "146", "37"]


def domain_tree(root):
    for domain, count in (("art", 5), ("oil", 10)):
        for name, k in itertools.product(("cat", "dog"), range(count)):
            image_trees.save(root / domain / name / f"{k}.png", image_trees.pixels((count, k), 32))
    return ["--dataset", "dom-folder", "--base_path", str(root), "--image_size", "28", "--num_workers", "0"]


def test_domains_have_their_counts(results, tmp_path):
    words = domain_tree(tmp_path / "data")
    ended = check(results, *words)
    assert ended.code == 0
    assert "<domain>/<class>/*" in ended.stdout
    rows = [line.split() for line in ended.stdout.splitlines()]
    assert ["art", "1", "8", "2"] in rows
    assert ["oil", "2", "16", "4"] in rows
    assert ["cat", "all", "12", "3"] in rows


def test_all_damaged_files_of_a_stream_are_named(results, tmp_path):
    words = domain_tree(tmp_path / "data")
    damaged = [*(tmp_path / "data").glob("*/cat/[34].png")]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:100])
    line = refusal(check(results, *words))
    assert len(damaged) == 4
    assert all(str(path) in line for path in damaged)
    for path in damaged:  # as the message advises
        path.unlink()
    assert check(results, *words).code == 0


# --- what is collected and shown ----------------------------------------------------------------------------------


def test_domains_show_the_same_image_as_the_tasks_see_it():
    labels, n_tasks = np.array([1, 0, 1, 0]), IMAGES_PER_CLASS + 2
    split = make_batch(np.arange(4, dtype=np.uint8).repeat(4).reshape(4, 1, 2, 2), labels)
    spec = make_spec("domain", n_tasks=n_tasks, n_classes=2, image_shape=(1, 2, 2))
    transforms = tuple(lambda images, add=10 * task: images + add for task in range(n_tasks))
    stream = TensorStream(spec, split, split, ((0, 4),) * n_tasks, ((0, 4),) * n_tasks, 0, 2, transforms)
    n_train, n_test, images = count_and_collect(stream)
    assert n_train.tolist() == n_test.tolist() == [2, 2]
    assert [[round(255 * image[0, 0, 0].item()) for image in row] for row in images] == [
        [1 + 10 * task for task in range(IMAGES_PER_CLASS)],
        [10 * task for task in range(IMAGES_PER_CLASS)],
    ]


@pytest.mark.parametrize(("side", "expected"), [(8, 32), (20, 40), (32, 32), (96, 96), (224, 96)])
def test_small_images_are_magnified_and_large_ones_reduced(side, expected):
    resized = resize_for_sheet(torch.full((1, side, side), 200, dtype=torch.uint8))
    assert resized.shape == (1, expected, expected)
    assert (resized * 255 - 200).abs().max() < 1e-3
