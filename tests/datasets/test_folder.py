"""`seq-folder`: any tree of images; what is decoded and what is refused."""

import hashlib

import numpy as np
import pytest
from PIL import Image

from datasets.image_files import decode
from tests.datasets.class_folders import CLASSES, fill, save, stream


@pytest.mark.parametrize("seed", [0, 1])
def test_png_of_the_right_size_arrives_pixel_by_pixel(tmp_path, seed):
    content = fill(tmp_path)
    result = stream(tmp_path, class_order_seed=seed)
    place = np.random.default_rng(42 + seed).permutation(4) if seed else np.arange(4)
    for part, data in (("train", result.train_data), ("test", result.test_data)):
        for label, name in enumerate(CLASSES):
            mine = data.images[data.labels == int(place[label])].numpy()
            assert np.array_equal(mine.transpose(0, 2, 3, 1), content[part, name])


def test_mean_and_std_are_those_of_the_training_images(tmp_path):
    content = fill(tmp_path)
    spec = stream(tmp_path).spec
    images = np.concatenate([content["train", name] for name in CLASSES]) / 255
    assert spec.mean == pytest.approx(images.mean((0, 1, 2)), abs=1e-9)
    assert spec.std == pytest.approx(images.std((0, 1, 2)), abs=1e-9)


def test_other_sizes_are_resized_and_the_middle_is_kept(tmp_path):
    fill(tmp_path)
    wide = np.zeros((16, 48, 3), dtype=np.uint8)
    wide[:, 16:32] = (200, 100, 50)
    save(tmp_path / "train/ant/0.png", wide)
    image = stream(tmp_path).train_data.images[0].numpy()
    assert image.shape == (3, 8, 8)
    assert (image[:, :, 1:-1] == np.array([200, 100, 50])[:, None, None]).all()


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (np.full((8, 8), 90, dtype=np.uint8), (90, 90, 90)),
        (np.full((8, 8, 4), (10, 20, 30, 255), dtype=np.uint8), (10, 20, 30)),
        (np.full((8, 8, 4), (10, 20, 30, 128), dtype=np.uint8), (5, 10, 15)),
        (np.full((8, 8, 4), (10, 20, 30, 0), dtype=np.uint8), (0, 0, 0)),
        (np.full((8, 8, 2), (60, 255), dtype=np.uint8), (60, 60, 60)),
        (np.full((8, 8, 2), (60, 0), dtype=np.uint8), (0, 0, 0)),
        (np.full((8, 8), True), (255, 255, 255)),
    ],
    ids=["grayscale", "RGBA", "half hidden", "hidden", "gray and alpha", "hidden gray", "bilevel"],
)
def test_other_modes_become_rgb(tmp_path, array, wanted):
    fill(tmp_path)
    save(tmp_path / "train/ant/0.png", array)
    image = stream(tmp_path).train_data.images[0].numpy()
    assert (image == np.array(wanted)[:, None, None]).all()


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(tmp_path, suffix, orientation):
    upright = Image.fromarray(np.arange(0, 240, 40, dtype=np.uint8).reshape(2, 3).repeat(8, 0).repeat(8, 1))
    # How a camera that is held that way sees it: 6 and 8 are each other's inverse, the others are their own.
    turn = [None, None, 0, 3, 1, 5, 2, 6, 4][orientation]
    seen = upright if turn is None else upright.transpose(Image.Transpose(turn))
    exif = Image.Exif()
    exif[0x0112] = orientation
    seen.save(tmp_path / f"x.{suffix}", exif=exif, quality=100)
    path = tmp_path / f"x.{suffix}"
    image = decode(path, path.read_bytes(), 16, resize=True)
    assert abs(image[0].astype(int) - np.asarray(upright)[:, 4:20]).max() <= 2


def test_jpeg_is_read_with_any_spelling_of_its_suffix_and_other_files_are_left_alone(tmp_path):
    fill(tmp_path)
    flat = np.full((8, 8, 3), 120, dtype=np.uint8)
    for name in ("x.jpg", "y.JPEG", "z.Jpg"):
        save(tmp_path / "train/ant" / name, flat, format="JPEG")
    (tmp_path / "train/ant/readme.txt").write_text("no image")
    (tmp_path / "train/list.csv").write_text("no folder")
    result = stream(tmp_path).task_data(0)
    assert result.labels.tolist() == [0] * 6 + [1] * 3
    assert abs(result.images[3:6].int() - 120).max() <= 1


def test_limits_take_the_first_files_by_name(tmp_path):
    content = fill(tmp_path)
    result = stream(tmp_path, train_per_class=2, test_per_class=1)
    assert result.spec.train_sizes == (4, 4)
    assert result.spec.test_sizes == (2, 2)
    for label, name in enumerate(CLASSES):
        mine = result.train_data.images[result.train_data.labels == label].numpy()
        assert np.array_equal(mine.transpose(0, 2, 3, 1), content["train", name][:2])


FLAGS = ["--model", "er", "--dataset", "seq-folder", "--n_tasks", "2", "--image_size", "8"]
SMALL = ["--num_filters", "4", "--buffer_size", "4"]


def test_run_keeps_the_statistics_and_other_files_are_another_run(tmp_path, run_main):
    first, second, copy = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    content = fill(first)
    fill(second, train=4, seed=1)
    fill(copy)
    runs = []
    for folder in (first, second, copy):
        runs.append(run_main(*FLAGS, *SMALL, "--base_path", str(folder)))
    assert [run.code for run in runs] == [0, 0, 0]
    assert runs[0].folder != runs[1].folder
    assert runs[0].folder == runs[2].folder
    images = np.concatenate([content["train", name] for name in CLASSES]) / 255
    assert runs[0].record["data"]["mean"] == pytest.approx(images.mean((0, 1, 2)).tolist())
    assert runs[0].record["identity"]["data"] == runs[2].record["identity"]["data"]
    assert runs[0].stderr == ""


def test_fingerprint_is_of_names_and_contents_alone(tmp_path):
    """Written here a second time: it must stay, whatever the code becomes."""
    fill(tmp_path)
    digest = hashlib.sha256()
    for part in ("train", "test"):
        for path in sorted((tmp_path / part).glob("*/*")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{part}/{path.parent.name}/{path.name} {content}\n".encode())
    assert stream(tmp_path).spec.fingerprint == f"{digest.hexdigest()[:16]}-v2"


def test_val_stands_in_for_test_and_is_the_same_run(tmp_path):
    fill(tmp_path)
    first = stream(tmp_path)
    (tmp_path / "test").rename(tmp_path / "val")
    second = stream(tmp_path, cache_path=str(tmp_path / "other"))
    assert second.spec == first.spec
    assert np.array_equal(second.test_data.images, first.test_data.images)
    fill(tmp_path)
    (tmp_path / "val/ant/0.png").unlink()
    assert (
        stream(tmp_path, cache_path=str(tmp_path / "other")).spec == first.spec
    )  # test/ is taken where there are both


def test_names_that_start_with_a_dot_are_left_out(tmp_path):
    fill(tmp_path)
    first = stream(tmp_path)
    (tmp_path / "train/ant/._0.png").write_bytes(b"no image")
    for part in ("train", "test"):
        (tmp_path / part / ".ipynb_checkpoints").mkdir()
    assert stream(tmp_path, cache_path=str(tmp_path / "other")).spec == first.spec
