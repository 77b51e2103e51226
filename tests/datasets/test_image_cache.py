"""The cache of decoded images: what is decoded again, and what is not."""

import fcntl
import multiprocessing
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from datasets import image_cache
from tests.datasets.class_folders import CLASSES, caches, fill, refusal, save, stream
from utils import console


def test_second_start_reads_no_image(tmp_path, monkeypatch):
    fill(tmp_path)
    first = stream(tmp_path)
    assert len(caches(tmp_path / ".cache")) == 1
    monkeypatch.setattr(image_cache, "read_file", lambda path: pytest.fail("read again"))
    second = stream(tmp_path)
    assert second.spec == first.spec
    assert np.array_equal(second.train_data.images, first.train_data.images)
    assert np.array_equal(second.test_data.labels, first.test_data.labels)


def test_changed_file_is_decoded_again(tmp_path):
    fill(tmp_path)
    before = stream(tmp_path)
    save(tmp_path / "train/ant/0.png", np.full((8, 8, 3), 9, dtype=np.uint8))
    after = stream(tmp_path)
    assert (after.train_data.images[0] == 9).all()
    assert after.spec.fingerprint != before.spec.fingerprint
    assert after.spec.mean != before.spec.mean


def test_other_decoding_is_another_run(tmp_path, monkeypatch):
    fill(tmp_path)
    before = stream(tmp_path)
    monkeypatch.setattr(image_cache, "DECODING", image_cache.DECODING + 1)
    assert stream(tmp_path).spec.fingerprint != before.spec.fingerprint


def test_cache_path_leaves_the_images_folder_untouched(tmp_path):
    images, cache = tmp_path / "images", tmp_path / "deep/cache"
    fill(images)
    stream(images, cache_path=str(cache))
    assert sorted(path.name for path in images.iterdir()) == ["test", "train"]
    assert len(caches(cache)) == 1


@pytest.mark.parametrize("length", [0, 50, -10])
@pytest.mark.parametrize("name", ["about.json", "train_images.npy", "test_labels.npy"])
def test_truncated_cache_is_written_again(tmp_path, name, length):
    fill(tmp_path)
    first = stream(tmp_path)
    images = first.train_data.images.clone()
    (cache,) = caches(tmp_path / ".cache")
    whole = (cache / name).read_bytes()
    (cache / name).write_bytes(whole[:length])
    again = stream(tmp_path)
    assert again.spec == first.spec
    assert np.array_equal(again.train_data.images, images)
    assert (cache / name).read_bytes() == whole


def test_images_are_mapped_and_what_is_done_to_them_does_not_reach_the_cache(tmp_path):
    """Neither the order of tasks nor the start of a run copies the images."""
    fill(tmp_path)
    for _ in range(2):
        data = stream(tmp_path, seed=5).train_data
        assert "train_images.npy" in mapping_at(data.images.data_ptr())
        data.images.zero_()
    assert stream(tmp_path).train_data.images.any()


def mapping_at(address):
    """The file that is mapped there."""
    maps = [(line.split()[0].split("-"), line) for line in Path("/proc/self/maps").read_text().splitlines()]
    return next(line.split()[-1] for (start, stop), line in maps if int(start, 16) <= address < int(stop, 16))


def test_stale_caches_and_remains_of_killed_processes_are_removed(tmp_path):
    images, other, cache = tmp_path / "images", tmp_path / "other", tmp_path / "cache"
    fill(images)
    fill(other, seed=1)
    kept = []
    for root, flags in ((other, {}), (images, {"image_size": 4}), (images, {"train_per_class": 2})):
        stream(root, cache_path=str(cache), **flags)
        (new,) = {*caches(cache)} - {*kept}
        kept.append(new)
    stream(images, cache_path=str(cache))
    (stale,) = {*caches(cache)} - {*kept}
    remains = cache / f".{stale.name}.1234.tmp"
    shutil.copytree(stale, remains)
    save(images / "train/ant/0.png", np.full((8, 8, 3), 9, dtype=np.uint8))
    stream(images, cache_path=str(cache))
    assert not any(path.exists() for path in (stale, remains))
    assert {*kept} < {*caches(cache)}
    assert len(caches(cache)) == len(kept) + 1


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_decode_the_same_and_all_damaged_files_are_named(tmp_path, monkeypatch, workers):
    content = fill(tmp_path)
    monkeypatch.setattr(image_cache, "PIECE", 3)
    result = stream(tmp_path, num_workers=workers)
    expected = np.concatenate([content["train", name] for name in CLASSES]).transpose(0, 3, 1, 2)
    assert np.array_equal(result.train_data.images, expected)
    assert (
        result.spec.fingerprint == stream(tmp_path, cache_path=str(tmp_path / "other"), num_workers=0).spec.fingerprint
    )
    paths = sorted((tmp_path / "train").rglob("*.png"))
    for path in paths[:11]:
        path.write_bytes(path.read_bytes()[:60])
    message = refusal(tmp_path, num_workers=workers)
    assert all(str(path) in message for path in paths[:10])
    assert str(paths[10]) not in message
    assert "11 images" in message
    assert "1 more" in message
    for path in paths[:11]:
        path.unlink() if path.stem != "0" else save(path, content["train", path.parent.name][0])
    assert len(stream(tmp_path, num_workers=workers).train_data) == 12 - 11 + 4


def slow_read(path):
    time.sleep(0.02)
    return path.read_bytes()


@pytest.mark.parametrize(("non_verbose", "is_noted"), [(False, True), (True, False)])
def test_decoding_is_noted_every_minute(tmp_path, monkeypatch, capsys, non_verbose, is_noted):
    fill(tmp_path)
    monkeypatch.setattr(console, "NOTE_SECONDS", 0.05)
    monkeypatch.setattr(image_cache, "read_file", slow_read)
    monkeypatch.setattr(image_cache, "PIECE", 4)
    stream(tmp_path, num_workers=0, non_verbose=non_verbose)
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines) > 1) == is_noted
    assert all("of 20" in line for line in lines)


def test_waiting_for_another_process_is_noted_at_once_and_every_minute(tmp_path, monkeypatch, capsys):
    fill(tmp_path)
    monkeypatch.setattr(console, "NOTE_SECONDS", 0.05)
    (tmp_path / ".cache").mkdir()
    with open(tmp_path / ".cache/seq-folder.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        release = threading.Timer(0.5, fcntl.flock, (file, fcntl.LOCK_UN))
        release.start()
        assert len(stream(tmp_path).train_data) == 12
        release.join()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert all("waiting" in line for line in lines)


def test_cache_that_cannot_be_written_costs_time_only(tmp_path, capsys):
    fill(tmp_path)
    (tmp_path / "file").write_text("in the way")
    result = stream(tmp_path, cache_path=str(tmp_path / "file"))
    assert len(result.train_data) == 12
    (line,) = capsys.readouterr().err.splitlines()
    assert "--cache_path" in line


def _read_and_count(root: Path, together, counter: Path) -> None:
    read_file = image_cache.read_file

    def counted(path):
        with open(counter, "a") as file:
            file.write("x")
        return read_file(path)

    image_cache.read_file = counted
    together.wait()
    assert len(stream(root).train_data) == 12


def test_runs_that_start_together_decode_once(tmp_path):
    images, counter = tmp_path / "images", tmp_path / "count"
    fill(images)
    context = multiprocessing.get_context("fork")
    together = context.Barrier(3)
    workers = [context.Process(target=_read_and_count, args=(images, together, counter)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(counter.read_text()) == 20
