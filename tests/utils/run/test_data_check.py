"""`--check_data`: what a data set found, told and shown, or what is missing."""

import numpy as np
import pytest
from conftest import call
from helpers import make_spec, make_stream
from PIL import Image

from datasets.seq_digits import SeqDigits
from tests.datasets import class_folders
from utils.data.stream import TensorStream, split_of
from utils.run.data_check import SHOWN, look_at, write_sheet


def check(results, *words):
    return call(["--check_data", *words, "--results_path", str(results)])


def table(stdout):
    """Cells of the rows below the head, by class."""
    lines = stdout.split("\n\n")[1].splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines[1:-1]}


def test_report_needs_no_model_and_counts_every_class(results):
    shown = check(results, "--dataset", "seq-digits", "--class_order_seed", "2", "--task_classes", "6,4")
    assert (shown.code, shown.stderr) == (0, "")
    assert "16x16 pixels, 1 channel; 1433 for training, 364 for testing" in shown.stdout
    assert "10, 2 tasks of 6, 4" in shown.stdout
    assert "fingerprint: fa79709106cda2c4" in shown.stdout
    assert "digits.csv.gz" in shown.stdout
    raw, place = SeqDigits().read(None), np.random.default_rng(42 + 2).permutation(10)
    train, test = np.bincount(raw.train_labels), np.bincount(raw.test_labels)
    assert table(shown.stdout) == {
        str(digit): [str(1 if place[digit] < 6 else 2), str(train[digit]), str(test[digit])] for digit in range(10)
    }
    assert shown.stdout.splitlines()[-1] == f"contact sheet: {results / 'data/seq-digits.png'}"
    sheet = np.asarray(Image.open(results / "data/seq-digits.png"))
    for digit in range(10):
        first = raw.train_images[raw.train_labels == digit][0, 0].repeat(2, 0).repeat(2, 1)
        assert np.array_equal(sheet[34 * digit :, 15:][:32, :32, 0], first)
    assert not (results / "runs").exists()


def test_model_validation_and_names_of_classes(results, tmp_path):
    class_folders.fill(tmp_path, train=10)
    flags = ["--dataset", "seq-folder", "--base_path", str(tmp_path), "--image_size", "8", "--non_verbose"]
    shown = check(results, *flags, "--n_tasks", "2", "--model", "joint", "--validation", "0.3")
    assert shown.code == 0
    assert "28 for training, 12 for validation" in shown.stdout
    assert table(shown.stdout)["cat"] == ["2", "7", "3"]
    assert f"source: {tmp_path}\n" in shown.stdout


def test_domain_il(results):
    shown = check(results, "--dataset", "perm-digits")
    assert shown.code == 0
    assert "all of them in each of 20 tasks" in shown.stdout
    assert table(shown.stdout)["3"] == ["all", "146", "37"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dataset", "seq-miniimg", "--base_path", "nowhere"], "no Mini-ImageNet in nowhere: point --base_path to"),
        (["--dataset", "seq-tinyimg", "--base_path", "nowhere"], "no Tiny-ImageNet in nowhere: point --base_path to"),
        (["--dataset", "seq-folder", "--n_tasks", "2", "--base_path", "nowhere"], "no folder nowhere/train"),
        ([], "--dataset is missing"),
        (["--dataset", "seq-digits", "--dry_run"], "--check_data and --dry_run contradict each other"),
        (["--eval_only", "x"], "--check_data and --eval_only contradict each other"),
    ],
)
def test_what_is_missing_is_one_line(results, words, told):
    shown = check(results, *words)
    assert (shown.code, shown.stdout) == (2, "")
    (line,) = shown.stderr.splitlines()
    assert told in line
    assert not results.exists()


def test_damaged_image_is_named(results, tmp_path):
    class_folders.fill(tmp_path)
    (tmp_path / "test/bee/1.png").write_bytes(b"damaged")
    shown = check(results, "--dataset", "seq-folder", "--n_tasks", "2", "--base_path", str(tmp_path))
    assert shown.code == 2
    assert str(tmp_path / "test/bee/1.png") in shown.stderr


# --- what is looked at and shown ----------------------------------------------------------------------------------


def test_first_images_of_every_class_are_shown():
    spec = make_spec(n_tasks=2, n_classes=5, task_classes=(3, 2), train_sizes=(300, 20), test_sizes=(6, 6))
    stream = make_stream(spec)
    found = look_at(stream)
    labels = stream.train_data.labels_host
    assert found.train.tolist() == np.bincount(labels, minlength=5).tolist()
    assert found.test.tolist() == np.bincount(stream.test_data.labels_host, minlength=5).tolist()
    for label in range(5):
        first = np.flatnonzero(labels == label)[:SHOWN]
        assert np.array_equal(found.shown[label], stream.train_data.images[first])


def test_domains_show_the_same_image_as_the_tasks_see_it():
    labels = np.array([1, 0, 1, 0])
    images = np.arange(4, dtype=np.uint8).repeat(4).reshape(4, 1, 2, 2)
    split, n_tasks = split_of(images, labels), SHOWN + 2
    spec = make_spec("domain", n_tasks=n_tasks, n_classes=2, image_shape=(1, 2, 2), shared_images=True)
    transforms = tuple(lambda images, add=10 * task: images + add for task in range(n_tasks))
    stream = TensorStream(spec, split, split, ((0, 4),) * n_tasks, ((0, 4),) * n_tasks, 0, 2, transforms)
    found = look_at(stream)
    assert found.train.tolist() == found.test.tolist() == [2, 2]
    assert [[int(image[0, 0, 0]) for image in row] for row in found.shown] == [
        [1 + 10 * task for task in range(SHOWN)],
        [10 * task for task in range(SHOWN)],
    ]


def test_sheet_shows_the_pixels(tmp_path):
    draw = np.random.default_rng(0)
    rows = [(f"class {k}", [draw.integers(0, 256, (3, 40, 40), dtype=np.uint8) for _ in range(SHOWN)]) for k in (0, 1)]
    write_sheet(tmp_path / "a/sheet.png", (3, 40, 40), rows)
    sheet = np.asarray(Image.open(tmp_path / "a/sheet.png"))
    margin = sheet.shape[1] - SHOWN * 42
    for row, (_, images) in enumerate(rows):
        for place, image in enumerate(images):
            left = margin + 42 * place
            assert np.array_equal(sheet[42 * row : 42 * row + 40, left : left + 40], image.transpose(1, 2, 0))


@pytest.mark.parametrize(("side", "shown"), [(8, 32), (20, 40), (28, 56), (32, 32), (96, 96), (224, 96)])
def test_small_images_are_magnified_and_large_ones_reduced(tmp_path, side, shown):
    image = np.full((1, side, side), 200, dtype=np.uint8)
    write_sheet(tmp_path / "sheet.png", (1, side, side), [("Ω", [image]), ("b", [image])])
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert (sheet == 200).all(2).sum() == 2 * shown**2


def test_many_classes_make_about_a_square(tmp_path):
    image = np.zeros((3, 32, 32), dtype=np.uint8)
    write_sheet(tmp_path / "sheet.png", (3, 32, 32), [(f"class {k}", [image] * SHOWN) for k in range(101)])
    height, width = np.asarray(Image.open(tmp_path / "sheet.png")).shape[:2]
    assert 0.6 < height / width < 1.7


def test_sheet_that_cannot_be_written_names_the_flag(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/data").write_text("in the way")
    shown = check(tmp_path / "results", "--dataset", "seq-digits")
    assert shown.code == 2
    assert "set --results_path" in shown.stderr
