"""`seq-domainnet`: its list files, and what is wrong with them."""

import numpy as np
import pytest
from forked import refusal
from image_trees import facts, names, pixels, save, stream_of

from datasets.seq_domainnet import DOMAINS
from utils.config.resolve import resolve
from utils.run.build import ABSENT, StreamBuilder

CLASSES = ("ant", "bee cave", "cat")
COMMAND = ["--model", "er", "--dataset", "seq-domainnet", "--num_filters", "2", "--buffer_size", "6"]


def build(tmp_path, monkeypatch):
    """Three classes; the n-th domain, counted from 0, has n + 4 training images and two for testing."""
    monkeypatch.setattr(facts("seq-domainnet"), "n_classes", 3)
    root = tmp_path / "data/DomainNet"
    for number, domain in enumerate(DOMAINS):
        for part, count in (("train", number + 4), ("test", 2)):
            lines = []
            for k in range(count):
                name = f"{domain}/{CLASSES[k % 3]}/{part}_{k}.png"
                save(root / name, pixels((number, k, count), 32))
                lines.append(f"{name} {k % 3}\n")
            (root / f"{domain}_{part}.txt").write_text("".join(lines))
    return tmp_path / "data"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    return build(tmp_path, monkeypatch)


def config(base_path, **flags):
    flags = {"num_workers": 0, "device": "cpu", **flags}
    return resolve({"model": "er", "dataset": "seq-domainnet", "base_path": str(base_path), **flags})


def in_list(tree, name):
    return (tree / "DomainNet" / name).read_text().splitlines()


@pytest.mark.parametrize("below", ["", "DomainNet"])
def test_every_domain_is_a_task_with_the_images_of_its_lists(tree, below):
    stream = stream_of(config(tree / below))
    assert (stream.spec.setting, stream.spec.n_tasks, stream.spec.n_classes) == ("domain", 6, 3)
    assert stream.spec.train_sizes == (4, 5, 6, 7, 8, 9)
    assert stream.spec.test_sizes == (2,) * 6
    for part, files, ranges in (
        ("train", stream.train_data, stream.train_ranges),
        ("test", stream.test_data, stream.test_ranges),
    ):
        for domain, (start, stop) in zip(DOMAINS, ranges, strict=True):
            result = [f"{n} {label}" for n, label in zip(names(files), files.labels, strict=True)][start:stop]
            assert result == in_list(tree, f"{domain}_{part}.txt")
    (batch,) = stream.test(3, 10)
    assert batch.tasks_host.tolist() == [3, 3]
    flat = pixels((3, 1, 2), 32)[2::4, 2::4]  # the middle of every block, which enlarging leaves alone
    assert np.array_equal(batch.images[1].permute(1, 2, 0)[16::32, 16::32], flat)


def test_validation_holds_out_a_share_of_every_class_of_every_domain(tree):
    whole, held = stream_of(config(tree)), stream_of(config(tree, validation=0.5))
    assert held.spec.test_sizes == (1, 2, 3, 4, 5, 6)  # of one image none, of two one, of three two
    assert held.spec.train_sizes == (3,) * 6
    assert sorted([*names(held.train_data), *names(held.test_data)]) == sorted(names(whole.train_data))


def test_missing_data(tmp_path, run_main):
    assert "--base_path" in refusal(run_main(*COMMAND, "--base_path", str(tmp_path)))
    finished = run_main(*COMMAND, "--base_path", str(tmp_path), "--dry_run", "--batch_size", "100000")
    assert finished.code == 0
    assert "steps: 8 in 6 tasks" in finished.stdout


def test_other_label_of_an_image_is_other_data(tree):
    before = StreamBuilder(config(tree)).spec.fingerprint
    lines = in_list(tree, "real_train.txt")
    (tree / "DomainNet/real_train.txt").write_text("\n".join([*lines[:-1], lines[-1][:-1] + "0"]))
    after = StreamBuilder(config(tree)).spec.fingerprint
    assert after != before


def test_facts_of_the_whole_data_set():
    options = resolve({"model": "er", "dataset": "seq-domainnet"})
    assert (options.buffer_size, options.batch_size, options.lr) == (2000, 32, 0.1)
    spec = StreamBuilder(options, ABSENT).spec
    assert (spec.n_classes, spec.n_tasks, sum(spec.train_sizes), sum(spec.test_sizes)) == (345, 6, 409_832, 176_743)
    assert DOMAINS == ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
