"""`dom-folder`: domains in folders, split by a share or by folders of their own."""

import os
import shutil

import pytest
from image_trees import names, pixels, save, stream_of

from utils.config.resolve import resolve
from utils.data.augment import Flip, RandomResizedCrop
from utils.run.build import StreamBuilder
from utils.run.identity import run_name

DOMAINS, CLASSES = ("art", "photo", "sketch"), ("dog", "elk", "train")


def build(tmp_path):
    """Of every domain and class five images; a class may be called as a part is."""
    for domain in DOMAINS:
        for label, name in enumerate(CLASSES):
            for k in range(5):
                save(tmp_path / "data" / domain / name / f"{k}.png", pixels((len(domain), label, k), 32))
    return tmp_path / "data"


@pytest.fixture
def tree(tmp_path):
    return build(tmp_path)


def config(base_path, **flags):
    flags = {"image_size": 28, "num_workers": 0, "device": "cpu", **flags}
    return resolve({"model": "er", "dataset": "dom-folder", "base_path": str(base_path), **flags})


def by_domain(files, ranges):
    return [set(names(files)[start:stop]) for start, stop in ranges]


def test_share_of_every_class_of_every_domain_is_for_testing(tree):
    stream = stream_of(config(tree))
    assert (stream.spec.n_tasks, stream.spec.n_classes, stream.spec.is_domain) == (3, 3, True)
    assert (stream.spec.train_sizes, stream.spec.test_sizes) == ((12,) * 3, (3,) * 3)
    assert (stream.spec.image_shape, stream.spec.input_shape) == ((3, 32, 32), (3, 28, 28))
    assert stream.spec.augmentation == (RandomResizedCrop(28, 32), Flip())
    assert stream.test_data.labels.tolist() == [0, 1, 2] * 3
    train, test = by_domain(stream.train_data, stream.train_ranges), by_domain(stream.test_data, stream.test_ranges)
    for domain, one, other in zip(DOMAINS, train, test, strict=True):
        assert not one & other
        assert one | other == {f"{domain}/{name}/{k}.png" for name in CLASSES for k in range(5)}
    assert len({frozenset(name.partition("/")[2] for name in one) for one in test}) > 1  # of every domain its own


def test_split_is_that_of_the_domain_in_any_order_and_with_any_seed(tree):
    first = stream_of(config(tree))
    other = stream_of(config(tree, domains=("sketch", "art"), seed=3))
    assert other.spec.n_tasks == 2
    tests = by_domain(first.test_data, first.test_ranges)
    assert by_domain(other.test_data, other.test_ranges) == [tests[2], tests[0]]
    assert other.spec.fingerprint != first.spec.fingerprint


def test_domain_with_parts_of_its_own(tree):
    for name in CLASSES:
        for part, numbers in (("test", (0, 4)), ("train", (1, 2, 3))):
            (tree / "photo_split" / part / name).mkdir(parents=True)
            for k in numbers:
                shutil.copy(tree / "photo" / name / f"{k}.png", tree / "photo_split" / part / name)
    stream = stream_of(config(tree, domains=("photo_split", "art")))
    assert (stream.spec.train_sizes, stream.spec.test_sizes) == ((9, 12), (6, 3))
    assert by_domain(stream.test_data, stream.test_ranges)[0] == {
        f"photo_split/test/{name}/{k}.png" for name in CLASSES for k in (0, 4)
    }
    (batch,) = stream.in_order(0, 100)
    assert batch.labels_host.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    expected = pixels((len("photo"), 1, 2), 32)
    assert (batch.images[4].permute(1, 2, 0).numpy() == expected).all()


def test_hidden_folders_files_and_odd_names(tree):
    (tree / ".git/objects").mkdir(parents=True)
    (tree / "readme.txt").write_text("no folder")
    (tree / "sketch").rename(tree / os.fsdecode(b"caf\xe9"))
    stream = stream_of(config(tree))
    assert names(stream.test_data)[3].startswith(os.fsdecode(b"caf\xe9"))
    (batch,) = stream.in_order(1, 100)
    assert len(batch) == 12


def test_all_domains_in_their_order_are_the_run_without_the_option(tree):
    names = [
        run_name(options, StreamBuilder(options).spec)
        for options in (config(tree), config(tree, domains=DOMAINS), config(tree, domains=DOMAINS[::-1]))
    ]
    assert names[0] == names[1] != names[2]


def test_val_stands_in_for_test_and_is_the_same_run(tree):
    fingerprints = []
    for part in ("test", "val"):
        root = tree.parent / part
        for name in CLASSES:
            for source, target in (("photo", "train"), ("art", part)):
                shutil.copytree(tree / source / name, root / "photo" / target / name)
        stream = stream_of(config(root))
        assert (stream.spec.train_sizes, stream.spec.test_sizes) == ((15,), (15,))
        fingerprints.append(stream.spec.fingerprint)
    assert fingerprints[0] == fingerprints[1]
