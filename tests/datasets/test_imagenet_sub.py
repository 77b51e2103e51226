"""`seq-imagenet-sub`: which classes, from which files, in which stored form."""

import numpy as np
import pytest
from image_trees import names, pixels, save, stream_of
from PIL import Image

from datasets import seq_imagenet_sub
from utils.config.resolve import resolve
from utils.data.augment import Flip, RandomResizedCrop
from utils.run.build import ABSENT, StreamBuilder

SYNSETS = [f"n{number:02d}" for number in range(6)]
COMMAND = ["--model", "er", "--dataset", "seq-imagenet-sub", "--n_tasks", "2", "--num_filters", "2"]


def build(tmp_path, monkeypatch):
    """Six classes with four and two images, of which four are drawn."""
    monkeypatch.setattr(seq_imagenet_sub, "ALL_CLASSES", 6)
    monkeypatch.setattr(seq_imagenet_sub, "N_CLASSES", 4)
    for label, name in enumerate(SYNSETS):
        for part, count in (("train", 4), ("val", 2)):
            for k in range(count):
                save(tmp_path / "data/ImageNet" / part / name / f"{name}_{k}.JPEG", pixels((label, k, count), 64))
    return tmp_path / "data"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    return build(tmp_path, monkeypatch)


def config(base_path, **flags):
    flags = {"n_tasks": 2, "num_workers": 0, "device": "cpu", **flags}
    return resolve({"model": "er", "dataset": "seq-imagenet-sub", "base_path": str(base_path), **flags})


def shuffled(count):
    order = np.arange(count)
    np.random.RandomState(1993).shuffle(order)
    return order.tolist()


def test_default_classes_are_those_that_other_papers_drew(tmp_path):
    for number in range(1000):
        (tmp_path / "train" / f"n{number:08d}").mkdir(parents=True)
    result = seq_imagenet_sub.draw_classes(tmp_path)
    assert result == [f"n{number:08d}" for number in shuffled(1000)[:100]]
    assert result[:5] == ["n00000054", "n00000007", "n00000894", "n00000512", "n00000126"]


@pytest.mark.parametrize("below", ["", "ImageNet"])
def test_every_image_has_its_class_and_task(tree, below):
    stream = stream_of(config(tree / below))
    assert (stream.spec.train_sizes, stream.spec.test_sizes) == ((8, 8), (4, 4))
    assert (stream.spec.n_classes, stream.spec.n_tasks, stream.spec.is_domain) == (4, 2, False)
    for part, files, count in (("train", stream.train_data, 4), ("val", stream.test_data, 2)):
        expected = [
            (f"{part}/n0{synset}/n0{synset}_{k}.JPEG", label)
            for label, synset in enumerate(shuffled(6)[:4])
            for k in range(count)
        ]
        assert list(zip(names(files), files.labels.tolist(), strict=True)) == expected


def test_classes_from_a_file_in_its_order_and_class_orders(tree, tmp_path):
    chosen = ["n05", "n00", "n03"]
    flags = {"class_list": tuple(chosen), "task_classes": (1, 2), "n_tasks": 2}
    stream = stream_of(config(tree, **flags))
    assert stream.spec.train_sizes == (4, 8)
    assert [name.split("/")[1] for name in names(stream.test_data)] == [name for name in chosen for _ in range(2)]
    stream = stream_of(config(tree, **flags, class_order=("n03", "n05", "n00")))
    assert [name.split("/")[1] for name in names(stream.test_data)[::2]] == ["n03", "n05", "n00"]
    assert stream.test_data.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_stored_form_and_what_the_network_sees(tree):
    exact = pixels(77, 256)
    path = tree / "ImageNet/train/n00/n00_0.JPEG"
    Image.fromarray(exact).save(path, format="PNG")  # whatever its name: a form that keeps every pixel
    wide = np.zeros((300, 900, 3), dtype=np.uint8)
    wide[:, 300:600] = (200, 100, 50)
    Image.fromarray(wide).save(tree / "ImageNet/train/n00/n00_1.JPEG", format="PNG")
    stream = stream_of(config(tree, class_list=("n00", "n01")))
    (batch,) = stream.in_order(0, 100)
    assert batch.images.shape == (4, 3, 256, 256)
    assert np.array_equal(batch.images[0].permute(1, 2, 0), exact)
    assert (batch.images[1, :, :, 2:-2] == batch.images[1, :, :1, 128:129]).all()
    assert batch.images[1, :, 0, 128].tolist() == [200, 100, 50]
    assert stream.spec.input_shape == (3, 224, 224)
    assert stream.spec.augmentation == (RandomResizedCrop(224, 256), Flip())
    assert stream.spec.mean == (0.485, 0.456, 0.406)
    assert stream.spec.std == (0.229, 0.224, 0.225)


def test_other_content_or_other_classes_are_other_data(tree):
    def fingerprint(**flags):
        return StreamBuilder(config(tree, **flags)).spec.fingerprint

    first = fingerprint()
    assert fingerprint() == first
    assert fingerprint(class_list=("n00", "n01")) != fingerprint(class_list=("n01", "n00"))
    save(tree / f"ImageNet/val/n0{shuffled(6)[0]}/n0{shuffled(6)[0]}_0.JPEG", pixels(99, 64))
    assert fingerprint() != first


def test_run_and_its_name(tree, tmp_path, run_main):
    (tmp_path / "classes.txt").write_text("n05\nn00\nn03\nn02\n")
    words = [*COMMAND, "--base_path", str(tree), "--class_list", str(tmp_path / "classes.txt"), "--batch_size", "4"]
    words += ["--buffer_size", "6"]
    first = run_main(*words, "--num_workers", "1")
    assert (first.code, first.stderr) == (0, "")
    assert first.record["steps"] == 4
    assert first.record["identity"]["class_list"] == ["n05", "n00", "n03", "n02"]
    assert "num_workers" not in first.record["identity"]
    again = run_main(*words, "--num_workers", "0")
    assert again.folder == first.folder


def test_facts_of_the_whole_data_set():
    options = resolve({"model": "derpp", "norm": "adab2n", "dataset": "seq-imagenet-sub"})
    assert (options.n_tasks, options.buffer_size, options.lr, options.lambd) == (10, 2000, 0.1, 1e-3)
    assert (options.batch_size, options.minibatch_size, options.alpha, options.beta) == (32, 32, 0.3, 0.8)
    spec = StreamBuilder(options, ABSENT).spec
    assert (spec.n_classes, spec.n_tasks, spec.train_sizes[0], spec.test_sizes[0]) == (100, 10, 13_000, 500)


def test_dry_run_without_the_images(run_main, tmp_path):
    told = run_main("--model", "er", "--dataset", "seq-imagenet-sub", "--base_path", str(tmp_path), "--dry_run")
    assert told.code == 0, told.stderr
    assert "steps: 4070 in 10 tasks" in told.stdout
