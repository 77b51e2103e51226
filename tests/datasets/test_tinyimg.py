"""Tiny-ImageNet from small images in the layout that it is published in."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from datasets.seq_tinyimg import FOLDER, SeqTinyImageNet
from utils.config.resolve import resolve
from utils.data.augment import Crop, Flip

CLASSES = ["n04", "n01", "n03", "n02"]  # as in the published list, not sorted
TRAIN, TEST, SIZE = 3, 2, 64


def shrink(monkeypatch):
    monkeypatch.setattr(SeqTinyImageNet, "images_per_class", (TRAIN, TEST))
    monkeypatch.setattr(SeqTinyImageNet, "n_classes", len(CLASSES))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch)


class Tiny:
    """Files below `root`; JPEG holds no pixels exactly, so what counts is what Pillow reads back."""

    def __init__(self, root):
        self.root = root
        self.draw = np.random.default_rng(3)
        self.images = {}  # (part, class) -> in order of file name
        self.annotations = []
        numbers = iter(self.draw.permutation(len(CLASSES) * TEST).tolist())
        (root / "val/images").mkdir(parents=True)
        for name in CLASSES:
            folder = root / "train" / name / "images"
            folder.mkdir(parents=True)
            (folder.parent / f"{name}_boxes.txt").write_text("not read\n")
            self.images["train", name] = [self.save(folder / f"{name}_{k}.JPEG") for k in range(TRAIN)]
            mine = sorted(f"val_{next(numbers)}.JPEG" for _ in range(TEST))
            self.images["test", name] = [self.save(root / "val/images" / file) for file in mine]
            self.annotations += [f"{file}\t{name}\t0\t32\t44\t62" for file in mine]
        self.draw.shuffle(self.annotations)
        self.write_lists()

    def save(self, path):
        Image.fromarray(self.draw.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)).save(path, format="JPEG")
        return np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)

    def write_lists(self, classes=CLASSES):
        (self.root / "wnids.txt").write_text("".join(f"{name}\n" for name in classes))
        (self.root / "val/val_annotations.txt").write_text("".join(f"{line}\n" for line in self.annotations))


@pytest.fixture
def tiny(tmp_path):
    return Tiny(tmp_path / FOLDER)


def stream(base_path, **flags):
    flags = {"n_tasks": 2, "non_verbose": True, **flags}
    config = resolve({"model": "sgd", "dataset": "seq-tinyimg", "base_path": str(base_path), **flags})
    dataset = SeqTinyImageNet()
    return dataset.stream(config, dataset.spec(config))


def check_content(tiny, result):
    for label, name in enumerate(CLASSES):
        for part, data in (("train", result.train_data), ("test", result.test_data)):
            assert np.array_equal(data.images[data.labels == label].numpy(), tiny.images[part, name])


@pytest.mark.parametrize("below", [".", FOLDER])
def test_pixels_and_labels_arrive_in_the_order_of_the_list_of_classes(tiny, below):
    tiny_stream = stream(tiny.root.parent / below)
    check_content(tiny, tiny_stream)
    spec = tiny_stream.spec
    assert (spec.image_shape, spec.augmentation) == ((3, 64, 64), (Crop(4), Flip()))
    assert spec.mean == SeqTinyImageNet.mean
    assert (spec.train_sizes, spec.test_sizes) == ((6, 6), (4, 4))


def test_a_changed_label_is_another_run(tiny, tmp_path):
    cache = tmp_path / "cache"
    first = stream(tiny.root, cache_path=str(cache))
    one, other = (next(k for k, line in enumerate(tiny.annotations) if name in line) for name in ("n01", "n02"))
    tiny.annotations[one], tiny.annotations[other] = (
        tiny.annotations[one].replace("n01", "n02"),
        tiny.annotations[other].replace("n02", "n01"),
    )
    tiny.write_lists()
    second = stream(tiny.root, cache_path=str(cache))
    assert second.spec.fingerprint != first.spec.fingerprint
    assert not np.array_equal(second.test_data.images, first.test_data.images)
    tiny.write_lists(sorted(CLASSES))
    assert stream(tiny.root, cache_path=str(cache)).spec.fingerprint != second.spec.fingerprint


def test_facts_of_the_whole_data_set(monkeypatch):
    monkeypatch.undo()
    dataset = SeqTinyImageNet()
    dataset.given_fingerprint = "absent"
    spec = dataset.spec(resolve({"model": "derpp", "dataset": "seq-tinyimg"}))
    assert spec.train_sizes == (10_000,) * 10
    assert spec.test_sizes == (1_000,) * 10
    assert spec.n_classes == 200


@pytest.mark.parametrize("inner", ["images", "."])
def test_validation_images_sorted_into_classes_are_the_same_run(tiny, tmp_path, inner):
    first = stream(tiny.root, cache_path=str(tmp_path / "cache"))
    for line in tiny.annotations:
        file, name, *_ = line.split()
        (tiny.root / "val" / name / inner).mkdir(parents=True, exist_ok=True)
        (tiny.root / "val/images" / file).rename(tiny.root / "val" / name / inner / file)
    (tiny.root / "val/images").rmdir()
    second = stream(tiny.root, cache_path=str(tmp_path / "other"))
    check_content(tiny, second)
    assert second.spec == first.spec


def test_fingerprint_is_of_published_names_and_contents_alone(tiny):
    """Written here a second time: it must stay, whatever the code becomes."""
    digest = hashlib.sha256()
    files = [path for name in CLASSES for path in sorted((tiny.root / "train" / name / "images").glob("*"))]
    for name in CLASSES:
        mine = sorted(line.split()[0] for line in tiny.annotations if line.split()[1] == name)
        files += [tiny.root / "val/images" / file for file in mine]
    for path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(tiny.root)} {content}\n".encode())
    assert stream(tiny.root).spec.fingerprint == f"{digest.hexdigest()[:16]}-v2"
