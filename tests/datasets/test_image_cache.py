"""The cache of decoded images: what is decoded again, and what is not."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from datasets import image_cache
from tests.datasets.class_folders import caches, fill, save, stream


def test_second_start_reads_no_image(tmp_path, monkeypatch):
    fill(tmp_path)
    first = stream(tmp_path)
    assert len(caches(tmp_path)) == 1
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


def test_other_decoding_is_another_run_with_a_cache_of_its_own(tmp_path, monkeypatch):
    fill(tmp_path)
    before = stream(tmp_path)
    monkeypatch.setattr(image_cache, "DECODING", image_cache.DECODING + 1)
    assert stream(tmp_path).spec.fingerprint != before.spec.fingerprint
    assert len(caches(tmp_path)) == 2


def test_cache_path_leaves_the_images_folder_untouched(tmp_path):
    images, cache = tmp_path / "images", tmp_path / "deep/cache"
    fill(images)
    stream(images, cache_path=str(cache))
    assert sorted(path.name for path in images.iterdir()) == ["test", "train"]
    assert len(caches(cache)) == 1


@pytest.mark.parametrize("length", [0, 50, -10])
def test_truncated_cache_is_written_again(tmp_path, length):
    fill(tmp_path)
    first = stream(tmp_path)
    (cache,) = caches(tmp_path)
    whole = cache.read_bytes()
    cache.write_bytes(whole[:length])
    again = stream(tmp_path)
    assert again.spec == first.spec
    assert np.array_equal(again.train_data.images, first.train_data.images)
    assert cache.read_bytes() == whole


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
