"""`seq-folder`: any tree of images; what is decoded and what is refused."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datasets.image_files import read_image
from tests.datasets.class_folders import CLASSES, caches, change_unseen, fill, pixels, refusal, save, stream
from utils.errors import UsageError

# --- what arrives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_png_of_the_right_size_arrives_pixel_by_pixel(tmp_path, seed):
    content = fill(tmp_path)
    found = stream(tmp_path, class_order_seed=seed)
    place = np.random.default_rng(42 + seed).permutation(4) if seed else np.arange(4)
    for part, data in (("train", found.train_data), ("test", found.test_data)):
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


def test_small_images_are_enlarged(tmp_path):
    fill(tmp_path)
    save(tmp_path / "train/ant/0.png", np.full((2, 2, 3), 77, dtype=np.uint8))
    assert (stream(tmp_path, image_size=20).train_data.images[0] == 77).all()


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


def test_palette_becomes_rgb(tmp_path):
    fill(tmp_path)
    Image.new("RGB", (8, 8), (255, 0, 0)).convert("P").save(tmp_path / "train/ant/0.png")
    assert stream(tmp_path).train_data.images[0, :, 4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize(
    ("mode", "colour", "other"),
    [("1", 255, 0), ("L", 60, 61), ("I;16", 40_000, 40_001), ("RGB", (9, 8, 7), (9, 8, 6)), ("P", 1, 2)],
)
def test_colour_that_stands_for_transparent_becomes_black(tmp_path, mode, colour, other, shown):
    fill(tmp_path)
    image = Image.new(mode, (8, 8), colour)
    if mode == "P":
        image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(tmp_path / "train/ant/0.png", transparency=other if shown else colour)
    assert stream(tmp_path).train_data.images[0].any() == shown


def test_palette_with_shades_of_transparency_is_laid_on_black(tmp_path):
    fill(tmp_path)
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(tmp_path / "train/ant/0.png", transparency=bytes([255, 51]))
    assert stream(tmp_path).train_data.images[0, :, 4, 4].tolist() == [40, 20, 10]


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
    found = read_image(tmp_path / f"x.{suffix}")
    assert found.shape == (16, 24, 3)
    assert abs(found[:, :, 0].astype(int) - np.asarray(upright)).max() <= 2


def exif_of(*entries):
    """EXIF data with short values, given as (tag, type, value)."""
    rows = b"".join(struct.pack("<HHI4s", tag, kind, 1, value) for tag, kind, value in entries)
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + rows + bytes(4)


def test_exif_rotation_is_applied_beside_a_tag_of_the_wrong_type(tmp_path, capsys):
    resolution_as_text, rotated = (0x011A, 2, b"x"), (0x0112, 3, b"\6")
    save(tmp_path / "x.jpg", pixels(0, (8, 16, 3)), exif=exif_of(rotated, resolution_as_text))
    assert read_image(tmp_path / "x.jpg").shape == (16, 8, 3)
    assert capsys.readouterr().err == ""


def test_what_pillow_warns_of_names_the_file(tmp_path, capsys):
    save(tmp_path / "x.jpg", pixels(0), exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    assert read_image(tmp_path / "x.jpg").shape == (8, 8, 3)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"note: {tmp_path / 'x.jpg'}: Corrupt EXIF data")


def test_jpeg_is_read_with_any_spelling_of_its_suffix_and_other_files_are_left_alone(tmp_path):
    fill(tmp_path)
    flat = np.full((8, 8, 3), 120, dtype=np.uint8)
    for name in ("x.jpg", "y.JPEG", "z.Jpg"):
        save(tmp_path / "train/ant" / name, flat, format="JPEG")
    (tmp_path / "train/ant/readme.txt").write_text("no image")
    (tmp_path / "train/list.csv").write_text("no folder")
    found = stream(tmp_path).task_data(0)
    assert found.labels.tolist() == [0] * 6 + [1] * 3
    assert abs(found.images[3:6].int() - 120).max() <= 1


def test_names_that_are_no_valid_text_are_read(tmp_path):
    content = fill(tmp_path)
    odd = os.fsdecode(b"caf\xe9")
    for part in ("train", "test"):
        (tmp_path / part / "cat").rename(tmp_path / part / odd)  # still the third of the classes
        (tmp_path / part / "dog").rename(tmp_path / part / "zebra")
    (tmp_path / "train" / odd / "2.png").rename(tmp_path / "train" / odd / os.fsdecode(b"\xff.png"))
    before = stream(tmp_path)
    assert np.array_equal(before.train_data.images[6:9].numpy().transpose(0, 2, 3, 1), content["train", "cat"])
    (tmp_path / "train" / odd / os.fsdecode(b"\xff.png")).rename(tmp_path / "train" / odd / os.fsdecode(b"\xfe.png"))
    assert stream(tmp_path).spec.fingerprint != before.spec.fingerprint


def test_damaged_image_with_such_a_name_is_one_line(tmp_path, run_main):
    fill(tmp_path / "images")
    (tmp_path / "images/train/ant" / os.fsdecode(b"\xff.png")).write_bytes(b"damaged")
    finished = run_main(*FLAGS, *SMALL, "--base_path", str(tmp_path / "images"))
    assert finished.code == 2
    assert finished.stderr.count("\n") == 1
    assert "cannot read the image" in finished.stderr


def test_limits_take_the_first_files_by_name(tmp_path):
    content = fill(tmp_path)
    found = stream(tmp_path, train_per_class=2, test_per_class=1)
    assert found.spec.train_sizes == (4, 4)
    assert found.spec.test_sizes == (2, 2)
    for label, name in enumerate(CLASSES):
        mine = found.train_data.images[found.train_data.labels == label].numpy()
        assert np.array_equal(mine.transpose(0, 2, 3, 1), content["train", name][:2])


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "suffix"),
    [(b"", "png"), (b"no image at all", "jpg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"GIF89a", "gif"), (b"BM", "bmp")],
)
def test_file_that_is_no_image_is_named(tmp_path, content, suffix):
    fill(tmp_path)
    path = tmp_path / f"train/bee/7.{suffix}"
    path.write_bytes(content)
    assert f"cannot read the image {path}" in refusal(tmp_path)


@pytest.mark.parametrize(("kind", "suffix"), [("PNG", "png"), ("JPEG", "jpg"), ("BMP", "bmp"), ("TIFF", "tif")])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_image_is_named(tmp_path, kind, suffix, share):
    fill(tmp_path)
    path = tmp_path / f"test/cat/7.{suffix}"
    save(path, pixels(1, (40, 40, 3)), format=kind)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert f"cannot read the image {path}" in refusal(tmp_path)


def test_tiff_with_a_tag_of_the_wrong_type_is_named(tmp_path):
    fill(tmp_path)
    path = tmp_path / "test/cat/7.tif"
    save(path, pixels(1))
    offsets, as_bytes = struct.pack("<HH", 273, 4), struct.pack("<HH", 273, 7)
    path.write_bytes(path.read_bytes().replace(offsets, as_bytes))
    assert f"cannot read the image {path}" in refusal(tmp_path)


def test_image_that_claims_an_absurd_size_is_named(tmp_path):
    fill(tmp_path)
    path = tmp_path / "test/cat/7.bmp"
    save(path, pixels(1))
    content = bytearray(path.read_bytes())
    content[18:26] = (60_000).to_bytes(4, "little") * 2
    path.write_bytes(content)
    assert f"cannot read the image {path}" in refusal(tmp_path)


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("gone.png"), lambda path: path.symlink_to("/dev/null")],
    ids=["pipe", "folder", "broken link", "device"],
)
def test_what_is_no_file_is_named_and_never_opened(tmp_path, monkeypatch, make):
    fill(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"opened {path}"))
    path = tmp_path / "train/bee/7.png"
    make(path)
    assert f"{path} is named like an image, but is no file" in refusal(tmp_path)


def test_links_to_files_are_images(tmp_path):
    content = fill(tmp_path)
    (tmp_path / "train/ant/2.png").rename(tmp_path / "elsewhere.png")
    (tmp_path / "train/ant/2.png").symlink_to(tmp_path / "elsewhere.png")
    assert np.array_equal(stream(tmp_path).train_data.images[2].numpy().transpose(1, 2, 0), content["train", "ant"][2])


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_16_bit_grayscale_keeps_its_shades(tmp_path, suffix):
    shades = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    save(tmp_path / f"x.{suffix}", shades)
    assert abs(read_image(tmp_path / f"x.{suffix}")[:, :, 1].astype(int) - shades // 257).max() <= 1


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_shades_of_unknown_range_are_refused(tmp_path, kind):
    fill(tmp_path)
    path = tmp_path / "train/ant/7.tif"
    save(path, np.linspace(0, 1000, 64).astype(kind).reshape(8, 8))
    message = refusal(tmp_path)
    assert f"cannot read the image {path}: " in message
    assert "of unknown range; convert it to 8 or 16 bit" in message


def png(depth, colour, row, transparent):
    """One row of pixels and the colour that stands for transparent; Pillow itself writes only some depths."""
    content = b"\x89PNG\r\n\x1a\n"
    header, body = struct.pack(">IIBBBBB", 2, 1, depth, colour, 0, 0, 0), zlib.compress(b"\0" + row)
    for kind, data in ((b"IHDR", header), (b"tRNS", transparent), (b"IDAT", body), (b"IEND", b"")):
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return content


@pytest.mark.parametrize(
    ("depth", "colour", "row", "transparent"),
    [(2, 0, b"\xc0", b"\0\3"), (4, 0, b"\xf0", b"\0\x0f"), (16, 2, b"\x12\x34" * 6, b"\x12\x34" * 3)],
    ids=["2 bit", "4 bit", "16 bit colour"],
)
def test_transparent_colour_that_pillow_cannot_find_is_refused(tmp_path, depth, colour, row, transparent):
    path = tmp_path / "x.png"
    path.write_bytes(png(depth, colour, row, transparent))
    with pytest.raises(UsageError, match="convert it to 8 bit"):
        read_image(path)


def test_missing_folders_name_the_flag(tmp_path):
    message = refusal(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere/train") in message
    assert "--base_path" in message
    (tmp_path / "train/ant").mkdir(parents=True)
    assert str(tmp_path / "test") in refusal(tmp_path)


def test_train_folder_without_classes_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    assert "no class folders" in refusal(tmp_path)


@pytest.mark.parametrize("part", ["train", "test"])
def test_class_without_images_is_named(tmp_path, part):
    fill(tmp_path)
    for path in (tmp_path / part / "bee").iterdir():
        path.unlink()
    assert f"no images in {tmp_path / part / 'bee'}" in refusal(tmp_path)


def test_class_without_a_test_folder_is_named(tmp_path):
    fill(tmp_path)
    (tmp_path / "train/bee").rename(tmp_path / "train/cow")
    assert "classes without training images: bee" in refusal(tmp_path)
    (tmp_path / "test/bee").rename(tmp_path / "elsewhere")
    assert f"no images in {tmp_path / 'test/cow'}" in refusal(tmp_path)


@pytest.mark.parametrize(("flag", "part", "held"), [("train_per_class", "train", 3), ("test_per_class", "test", 2)])
def test_fewer_images_than_the_limit_are_refused(tmp_path, flag, part, held):
    fill(tmp_path)
    message = refusal(tmp_path, **{flag: held + 1})
    assert f"{tmp_path / part / 'ant'} has {held} images, fewer than the {held + 1} asked for" in message


def test_number_of_tasks_must_be_given_and_divide_the_classes(tmp_path):
    fill(tmp_path)
    assert "needs --n_tasks: the number of tasks of its 4 classes" in refusal(tmp_path, n_tasks=None)
    assert "--n_tasks 3 does not divide the 4 classes" in refusal(tmp_path, n_tasks=3)


# --- whole commands -------------------------------------------------------------------------------------------


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


def test_verified_images_are_the_same_run_until_they_change(tmp_path, run_main):
    fill(tmp_path / "images")
    path = tmp_path / "images/train/ant/0.bmp"
    save(path, np.full((8, 8, 3), 9, dtype=np.uint8))
    command = [*FLAGS, *SMALL, "--base_path", str(tmp_path / "images")]
    first, verified = run_main(*command), run_main(*command, "--verify_data")
    assert verified.folder == first.folder
    change_unseen(path)
    tried = run_main(*command, "--verify_data", "--dry_run")
    assert tried.stderr.startswith("note: images in ")
    after = run_main(*command)  # what was found out is not forgotten
    assert (after.code, after.stderr) == (0, "")
    assert after.folder != first.folder


def test_dry_run_decodes_nothing(tmp_path, run_main, results):
    fill(tmp_path / "images")
    finished = run_main(*FLAGS, *SMALL, "--base_path", str(tmp_path / "images"), "--dry_run")
    assert finished.code == 0
    assert "steps: 2 in 2 tasks" in finished.stdout
    assert caches(tmp_path / "images") == []
    assert not results.exists()


def test_unreadable_image_ends_a_command_with_one_line(tmp_path, run_main, results):
    fill(tmp_path / "images")
    (tmp_path / "images/train/ant/0.png").write_bytes(b"damaged")
    finished = run_main(*FLAGS, *SMALL, "--base_path", str(tmp_path / "images"))
    assert finished.code == 2
    (line,) = finished.stderr.splitlines()
    assert str(tmp_path / "images/train/ant/0.png") in line
    assert finished.stdout == ""
    assert not results.exists()
