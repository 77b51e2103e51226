"""CIFAR-10 and CIFAR-100 from small archives in the real on-disk format."""

import hashlib
import pickle
import shutil
import tarfile

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from datasets import image_cache
from datasets.dataset import RawData, by_content, content_digest
from datasets.seq_cifar10 import SeqCifar10
from datasets.seq_cifar100 import SeqCifar100
from utils.config.resolve import resolve
from utils.data.augment import Crop, Flip
from utils.errors import UsageError

pytestmark = pytest.mark.usefixtures("no_network")
TRAIN_IMAGES, TEST_IMAGES = {"seq-cifar10": 50, "seq-cifar100": 200}, {"seq-cifar10": 20, "seq-cifar100": 100}
READER = {"seq-cifar10": torchvision.datasets.CIFAR10, "seq-cifar100": torchvision.datasets.CIFAR100}
DATASET = {"seq-cifar10": SeqCifar10, "seq-cifar100": SeqCifar100}


class Small:
    """A small CIFAR: its images and labels, and its files under `root`."""

    def __init__(self, name, root):
        self.name, self.reader = name, READER[name]
        self.folder = root / self.reader.__name__
        self.base_path = root
        n_classes = DATASET[name].n_classes
        draw = np.random.default_rng(5)
        self.images, self.labels = {}, {}
        for part, count in (("train", TRAIN_IMAGES[name]), ("test", TEST_IMAGES[name])):
            self.images[part] = draw.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
            self.labels[part] = draw.permutation(np.arange(count) % n_classes)

    def write(self):
        """The extracted files."""
        folder = self.folder / self.reader.base_folder
        folder.mkdir(parents=True)
        key = "labels" if self.name == "seq-cifar10" else "fine_labels"
        for part, names in (("train", self.reader.train_list), ("test", self.reader.test_list)):
            pieces = (np.array_split(values[part], len(names)) for values in (self.images, self.labels))
            for (file, _), images, labels in zip(names, *pieces, strict=True):
                content = {"data": images.reshape(len(images), -1), key: labels.tolist(), "coarse_labels": None}
                (folder / file).write_bytes(pickle.dumps(content, protocol=2))
        names = [f"class {k}" for k in range(DATASET[self.name].n_classes)]
        (folder / self.reader.meta["filename"]).write_bytes(pickle.dumps({self.reader.meta["key"]: names}, protocol=2))

    def write_tree(self):
        """One file an image, its name without a hint at the order."""
        names = DATASET[self.name].class_names.split()
        for part, images in self.images.items():
            for index, (image, label) in enumerate(zip(images, self.labels[part], strict=True)):
                folder = self.folder / part / names[label]
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{index * 7919 % 1009:04d}.png")

    def pack(self):
        """Only the archive is left."""
        folder = self.folder / self.reader.base_folder
        with tarfile.open(self.folder / self.reader.filename, "w:gz") as archive:
            archive.add(folder, arcname=folder.name)
        shutil.rmtree(folder)

    def expect_checksums(self, monkeypatch):
        folder = self.folder / self.reader.base_folder

        def checksum(path):
            return hashlib.md5(path.read_bytes()).hexdigest()

        for parts in ("train_list", "test_list"):
            listed = [[name, checksum(folder / name)] for name, _ in getattr(self.reader, parts)]
            monkeypatch.setattr(self.reader, parts, listed)
        meta = self.reader.meta
        monkeypatch.setattr(self.reader, "meta", meta | {"md5": checksum(folder / meta["filename"])})

    def config(self, **flags):
        return resolve({"model": "sgd", "dataset": self.name, "base_path": str(self.base_path), **flags})

    def stream(self, **flags):
        dataset, config = DATASET[self.name](), self.config(**flags)
        return dataset.stream(config, dataset.spec(config))


def shrink(name, root, monkeypatch):
    """Expect a small CIFAR, whose files are below `root` once they are written."""
    per_class = tuple(sizes[name] // DATASET[name].n_classes for sizes in (TRAIN_IMAGES, TEST_IMAGES))
    monkeypatch.setattr(DATASET[name], "images_per_class", per_class)
    small = Small(name, root)
    raw = RawData(small.images["train"], small.labels["train"], small.images["test"], small.labels["test"])
    monkeypatch.setattr(DATASET[name], "content", content_digest(by_content(raw)))
    return small


@pytest.fixture(params=["seq-cifar10", "seq-cifar100"])
def small(request, tmp_path, monkeypatch):
    return shrink(request.param, tmp_path, monkeypatch)


def check_content(small, stream):
    """Every image of every class arrives under the label of its class."""
    for part, data in (("train", stream.train_data), ("test", stream.test_data)):
        for label in range(DATASET[small.name].n_classes):
            mine = data.images[data.labels == label].numpy()
            in_files = small.images[part][small.labels[part] == label]
            assert sorted(image.tobytes() for image in mine) == sorted(image.tobytes() for image in in_files)


def same(one, other):
    return all(
        torch.equal(getattr(getattr(one, part), what), getattr(getattr(other, part), what))
        for part in ("train_data", "test_data")
        for what in ("images", "labels")
    )


def test_every_source_of_the_same_images_gives_the_same_stream(small, monkeypatch, capsys):
    """torchvision's files, the same in another order, a tree of images, and its decoded copy."""
    small.write()
    small.expect_checksums(monkeypatch)
    first = small.stream()
    check_content(small, first)
    shutil.rmtree(small.folder)
    for part in ("train", "test"):
        order = np.random.default_rng(1).permutation(len(small.labels[part]))
        small.images[part], small.labels[part] = small.images[part][order], small.labels[part][order]
    small.write()
    small.expect_checksums(monkeypatch)
    assert same(small.stream(), first)
    small.write_tree()
    assert same(small.stream(), first)
    (small.folder / "test").rename(small.folder / "val")
    assert same(small.stream(base_path=str(small.folder)), first)  # as the message for a failed download advises
    monkeypatch.setattr(image_cache, "decode", lambda *_, **__: pytest.fail("decoded again"))
    assert same(small.stream(base_path=str(small.folder)), first)
    assert capsys.readouterr() == ("", "")


def test_failed_download_says_what_to_put_where(small):
    with pytest.raises(UsageError, match="no network") as caught:
        small.stream()
    for words in (small.reader.filename, small.reader.base_folder, str(small.folder), "--base_path"):
        assert words in str(caught.value)


@pytest.mark.parametrize("below", [".", "folder"])
def test_archive_is_verified_and_extracted(small, monkeypatch, below):
    small.write()
    small.expect_checksums(monkeypatch)
    small.pack()
    archive = small.folder / small.reader.filename
    monkeypatch.setattr(small.reader, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    check_content(small, small.stream(base_path=str(small.base_path if below == "." else small.folder)))
    assert (small.folder / small.reader.base_folder).is_dir()


@pytest.mark.parametrize("name", ["seq-cifar10", "seq-cifar100"])
def test_facts_of_the_full_data_set(name):
    dataset = DATASET[name]()
    spec = dataset.spec(resolve({"model": "sgd", "dataset": name}))
    assert sum(spec.train_sizes) == 50_000
    assert sum(spec.test_sizes) == 10_000
    assert len(set(spec.train_sizes)) == 1
    assert spec.augmentation == (Crop(4), Flip())
    assert spec.mean == {"seq-cifar10": (0.4914, 0.4822, 0.4465), "seq-cifar100": (0.5071, 0.4867, 0.4408)}[name]
    assert spec.std == {"seq-cifar10": (0.2470, 0.2435, 0.2615), "seq-cifar100": (0.2675, 0.2565, 0.2761)}[name]
