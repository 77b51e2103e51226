"""MNIST from small files in the real idx format, in all the places where they may lie; and files that are damaged."""

import gzip
import struct

import numpy as np
import pytest
import torchvision

from datasets import mnist, seq_fashion
from datasets.dataset import RawData, by_content, content_digest
from datasets.mnist import FILES
from datasets.perm_mnist import PermMnist
from datasets.rot_mnist import RotMnist
from datasets.seq_fashion import SeqFashion
from datasets.seq_mnist import SeqMnist
from utils.config.resolve import resolve
from utils.errors import DataMissing, UsageError

pytestmark = pytest.mark.usefixtures("no_network")
DATASETS = {"perm-mnist": PermMnist, "rot-mnist": RotMnist, "seq-mnist": SeqMnist, "seq-fashion": SeqFashion}
TRAIN_SIZES, TEST_SIZES = np.arange(3, 13), np.arange(12, 2, -1)


def idx(array):
    """The bytes of a file of bytes, as the format's description has it."""
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def shrink(monkeypatch):
    """Expect a small MNIST, and return it."""
    draw = np.random.default_rng(1)
    arrays = []
    for sizes in (TRAIN_SIZES, TEST_SIZES):
        labels = draw.permutation(np.arange(10).repeat(sizes))
        arrays += [draw.integers(0, 256, (len(labels), 1, 28, 28), dtype=np.uint8), labels]
    raw = RawData(*arrays)
    monkeypatch.setattr(mnist, "TRAIN_SIZES", TRAIN_SIZES)
    monkeypatch.setattr(mnist, "TEST_SIZES", TEST_SIZES)
    monkeypatch.setattr(mnist, "CONTENT", content_digest(by_content(raw)))
    return raw


@pytest.fixture
def raw(monkeypatch):
    return shrink(monkeypatch)


def write(folder, raw, *, gzipped=(), **changed):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = (raw.train_images[:, 0], raw.train_labels, raw.test_images[:, 0], raw.test_labels)
    for name, array in zip(FILES, arrays, strict=True):
        content = changed.get(name, idx(array.astype(np.uint8)))
        path, content = (f"{name}.gz", gzip.compress(content)) if name in gzipped else (name, content)
        (folder / path).write_bytes(content)


def stream(base_path, name="seq-mnist", **flags):
    config = resolve({"model": "sgd", "dataset": name, "base_path": str(base_path), **flags})
    dataset = DATASETS[name]()
    return dataset.stream(config, dataset.spec(config))


def check_content(raw, result):
    """Every image of every digit, in an order of the content's own."""
    for part, images, labels in (
        (result.train_data, raw.train_images, raw.train_labels),
        (result.test_data, raw.test_images, raw.test_labels),
    ):
        for digit in range(10):
            mine = [bytes(image) for image in part.images[part.labels == digit].numpy()]
            assert sorted(mine) == sorted(bytes(image) for image in images[labels == digit])


@pytest.mark.parametrize(("place", "gzipped"), [("MNIST/raw", ()), ("MNIST", FILES), (".", FILES[1:3])])
def test_pixels_and_labels_arrive(tmp_path, raw, place, gzipped):
    write(tmp_path / place, raw, gzipped=gzipped)
    result = stream(tmp_path)
    check_content(raw, result)
    assert result.spec.image_shape == (1, 28, 28)
    assert result.spec.train_sizes == (3 + 4, 5 + 6, 7 + 8, 9 + 10, 11 + 12)
    assert result.spec.test_sizes == (12 + 11, 10 + 9, 8 + 7, 6 + 5, 4 + 3)


def test_what_is_nowhere_is_downloaded_where_torchvision_puts_it(tmp_path, raw, monkeypatch):
    def download(self):
        assert (tmp_path / "MNIST/raw/.download.lock").exists()
        write(tmp_path / "MNIST/raw", raw)

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    check_content(raw, stream(tmp_path))


def test_failed_download_says_what_to_put_where(tmp_path, raw):
    with pytest.raises(DataMissing) as caught:
        stream(tmp_path / "new")
    for words in (*FILES, str(tmp_path / "new/MNIST"), "--base_path"):
        assert words in str(caught.value)


def test_facts_of_the_whole_data_set():
    spec = SeqMnist().spec(resolve({"model": "sgd", "dataset": "seq-mnist"}))
    assert sum(spec.train_sizes) == 60_000
    assert sum(spec.test_sizes) == 10_000
    spec = PermMnist().spec(resolve({"model": "sgd", "dataset": "perm-mnist"}))
    assert (spec.n_tasks, spec.n_classes) == (20, 10)
    assert spec.train_sizes == (60_000,) * 20
    assert spec.test_sizes == (10_000,) * 20


@pytest.mark.parametrize("name", ["perm-mnist", "rot-mnist"])
def test_settings_of_domain_il(name):
    config = resolve({"model": "derpp", "dataset": name})
    assert (config.backbone, config.hidden) == ("mlp", 128)
    assert (config.n_tasks, config.buffer_size, config.lr) == (20, 500, 0.2)
    assert (config.batch_size, config.minibatch_size) == (128, 128)
    assert (config.alpha, config.beta) == (1.0, 0.5)
    assert resolve({"model": "er", "dataset": name, "batch_size": 64}).minibatch_size == 64


def test_run_on_the_files(run_main, raw, tmp_path):
    write(tmp_path / "MNIST/raw", raw)
    flags = ["--n_tasks", "2", "--norm", "adab2n", "--base_path", str(tmp_path)]
    for name in ("perm-mnist", "rot-mnist"):
        finished = run_main("--model", "derpp", "--dataset", name, *flags)
        assert (finished.code, finished.stderr) == (0, "")
        assert list(finished.record["results"]) == ["domain_il"]
        assert finished.record["steps"] == 2
        assert finished.record["identity"]["data"] == mnist.CONTENT


@pytest.mark.parametrize(("place", "gzipped"), [("FashionMNIST/raw", ()), ("FashionMNIST", FILES), (".", FILES[1:3])])
def test_fashion(tmp_path, monkeypatch, place, gzipped):
    monkeypatch.setattr(seq_fashion, "TRAIN_PER_CLASS", 3)
    monkeypatch.setattr(seq_fashion, "TEST_PER_CLASS", 2)
    draw, arrays = np.random.default_rng(2), []
    for count in (3, 2):
        labels = draw.permutation(np.arange(10).repeat(count))
        arrays += [draw.integers(0, 256, (len(labels), 1, 28, 28), dtype=np.uint8), labels]
    raw = RawData(*arrays)
    write(tmp_path / place, raw, gzipped=gzipped)
    result = stream(tmp_path, "seq-fashion")
    check_content(raw, result)
    assert result.spec.train_sizes == (6,) * 5
    assert result.spec.fingerprint == content_digest(by_content(raw))
    write(tmp_path / place, RawData(*arrays[:3], np.sort(arrays[3] % 5)), gzipped=gzipped)
    with pytest.raises(UsageError, match=FILES[3]):
        stream(tmp_path, "seq-fashion")
