"""The cache of decoded images: what is decoded again, and what is not."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from datasets import image_cache
from tests.datasets.class_folders import caches, fill, refusal, save, stream


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


def test_other_size_has_a_cache_of_its_own(tmp_path):
    fill(tmp_path)
    assert stream(tmp_path).train_data.images.shape == (12, 3, 8, 8)
    assert stream(tmp_path, image_size=4).train_data.images.shape == (12, 3, 4, 4)
    assert len(caches(tmp_path)) == 2


def test_cache_path_leaves_the_images_folder_untouched(tmp_path):
    images, cache = tmp_path / "images", tmp_path / "deep/cache"
    fill(images)
    stream(images, cache_path=str(cache))
    assert sorted(path.name for path in images.iterdir()) == ["test", "train"]
    assert len(caches(cache)) == 1


def flipped_pixel(cache):
    content = bytearray(cache.read_bytes())
    content[-1] ^= 1
    cache.write_bytes(content)


def without_metadata(cache):
    safetensors.numpy.save_file(safetensors.numpy.load_file(cache), cache)


def of_another_size(cache):
    stream(cache.parent, image_size=4)
    (other,) = set(caches(cache.parent)) - {cache}
    other.replace(cache)


def cut(length):
    return lambda cache: cache.write_bytes(cache.read_bytes()[:length])


@pytest.mark.parametrize(
    "damage", [cut(0), cut(50), cut(-10), flipped_pixel, without_metadata, of_another_size],
    ids=["empty", "header cut", "end cut", "flipped pixel", "as older code wrote it", "another size's"],
)  # fmt: skip
def test_damaged_cache_is_noted_and_decoded_again(tmp_path, capsys, damage):
    fill(tmp_path)
    first = stream(tmp_path)
    (cache,) = caches(tmp_path)
    whole = cache.read_bytes()
    assert capsys.readouterr().err == ""
    damage(cache)
    assert cache.read_bytes() != whole
    again = stream(tmp_path)
    assert again.spec == first.spec
    for mine, theirs in ((again.train_data, first.train_data), (again.test_data, first.test_data)):
        assert np.array_equal(mine.images, theirs.images)
        assert np.array_equal(mine.labels, theirs.labels)
    (line,) = capsys.readouterr().err.splitlines()
    assert str(cache) in line
    stream(tmp_path)
    assert capsys.readouterr().err == ""


def test_failed_decoding_leaves_no_cache(tmp_path):
    fill(tmp_path)
    (tmp_path / "test/dog/1.png").write_bytes(b"no image")
    refusal(tmp_path)
    assert caches(tmp_path) == []
    assert not list(tmp_path.glob(".*tmp"))


def _die_in_the_middle_of_writing(root: Path) -> None:
    os.replace = lambda *paths: os._exit(9)
    stream(root)


def test_cache_that_cannot_be_written_costs_time_only(tmp_path, capsys):
    fill(tmp_path)
    (tmp_path / "file").write_text("in the way")
    found = stream(tmp_path, cache_path=str(tmp_path / "file"))
    assert len(found.train_data) == 12
    (line,) = capsys.readouterr().err.splitlines()
    assert "--cache_path" in line


def test_next_run_removes_what_a_killed_one_left(tmp_path):
    fill(tmp_path)
    killed = multiprocessing.get_context("fork").Process(target=_die_in_the_middle_of_writing, args=(tmp_path,))
    killed.start()
    killed.join(60)
    assert killed.exitcode == 9
    assert len(list(tmp_path.glob(".*.tmp"))) == 1
    assert caches(tmp_path) == []
    stream(tmp_path)
    assert not list(tmp_path.glob(".*.tmp"))
    assert len(caches(tmp_path)) == 1


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
