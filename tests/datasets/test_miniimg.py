"""Mini-ImageNet from small files in both layouts, and files that must not be trusted."""

import builtins
import os
import pickle

import numpy as np
import pytest
from PIL import Image

from datasets import image_cache, seq_miniimg
from datasets.numpy_pickle import load_numpy_pickle
from datasets.seq_miniimg import ARRAYS, PICKLES, TREE, SeqMiniImageNet
from utils.config.resolve import resolve
from utils.errors import UsageError

N_CLASSES, SIZE, TRAIN, TEST = 10, 6, 4, 2
SYNSETS = [f"n{number:08d}" for number in (70, 10, 90, 30, 50, 20, 80, 40, 100, 60)]


def shrink(monkeypatch):
    """Expect a Mini-ImageNet of 10 classes with 4 training and 2 test images of 6x6 pixels."""
    monkeypatch.setattr(seq_miniimg, "TRAIN_PER_CLASS", TRAIN)
    monkeypatch.setattr(seq_miniimg, "TEST_PER_CLASS", TEST)
    monkeypatch.setattr(SeqMiniImageNet, "n_classes", N_CLASSES)
    monkeypatch.setattr(SeqMiniImageNet, "image_shape", (3, SIZE, SIZE))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch)


def pixels(count, seed=0, size=SIZE):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def arrays():
    """Contents of the four files of the npy layout, by file name."""
    draw = np.random.default_rng(1)
    return {
        "train_x.npy": pixels(N_CLASSES * TRAIN, 2),
        "train_y.npy": draw.permutation(np.arange(N_CLASSES).repeat(TRAIN)),
        "test_x.npy": pixels(N_CLASSES * TEST, 3),
        "test_y.npy": draw.permutation(np.arange(N_CLASSES).repeat(TEST)),
    }


def write_arrays(folder):
    folder.mkdir(exist_ok=True)
    content = arrays()
    for name, value in content.items():
        np.save(folder / name, value)
    return content


def pickles():
    """Contents of the three few-shot files: 5, 2 and 3 classes, whose images lie interleaved."""
    content, first = {}, 0
    for name, count in zip(PICKLES, (5, 2, 3), strict=True):
        per_class = TRAIN + TEST
        members = np.arange(count * per_class).reshape(per_class, count).T
        synsets = SYNSETS[first : first + count]
        content[name] = {
            "image_data": pixels(count * per_class, 10 + first),
            "class_dict": {synset: row.tolist() for synset, row in zip(synsets, members, strict=True)},
        }
        first += count
    return content


def write_pickles(folder, content, protocol=4):
    folder.mkdir(exist_ok=True)
    for name, value in content.items():
        (folder / name).write_bytes(pickle.dumps(value, protocol=protocol))


def stream(folder, **flags):
    flags = {"n_tasks": 5, **flags}
    config = resolve({"model": "sgd", "dataset": "seq-miniimg", "base_path": str(folder), **flags})
    return SeqMiniImageNet().stream(config, SeqMiniImageNet().spec(config))


def refusal(folder):
    with pytest.raises(UsageError) as caught:
        stream(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def check_pickled_content(folder):
    """By sorted synset, the first images of a class train and the last ones test."""
    found = stream(folder)
    images_of = {
        synset: value["image_data"][members]
        for value in pickles().values()
        for synset, members in value["class_dict"].items()
    }
    for label, synset in enumerate(sorted(SYNSETS)):
        wanted = images_of[synset].transpose(0, 3, 1, 2)
        train, test = found.train_data, found.test_data
        assert np.array_equal(train.images[train.labels == label].numpy(), wanted[:TRAIN])
        assert np.array_equal(test.images[test.labels == label].numpy(), wanted[-TEST:])


@pytest.mark.parametrize("seed", [0, 2])
def test_arrays_arrive_pixel_by_pixel(tmp_path, seed):
    content = write_arrays(tmp_path)
    found = stream(tmp_path, seed=seed)
    place = np.random.default_rng(42 + seed).permutation(N_CLASSES) if seed else np.arange(N_CLASSES)
    for part, data in (("train", found.train_data), ("test", found.test_data)):
        images, labels = content[f"{part}_x.npy"], content[f"{part}_y.npy"]
        for label in range(N_CLASSES):
            mine = data.images[data.labels == int(place[label])].numpy()
            assert np.array_equal(mine.transpose(0, 2, 3, 1), images[labels == label])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_arrive_pixel_by_pixel(tmp_path, protocol):
    write_pickles(tmp_path, pickles(), protocol)
    check_pickled_content(tmp_path)


def test_pickles_of_numpy_1_arrive(tmp_path):
    for name, value in pickles().items():
        modern = pickle.dumps(value, protocol=2)
        assert b"cnumpy._core.multiarray\n" in modern
        (tmp_path / name).write_bytes(modern.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    check_pickled_content(tmp_path)


def test_members_may_be_arrays_and_numpy_numbers(tmp_path):
    content = pickles()
    for value in content.values():
        value["class_dict"] = {synset: np.array(row) for synset, row in value["class_dict"].items()}
    first = content[PICKLES[0]]["class_dict"]
    first[SYNSETS[0]] = [np.int64(member) for member in first[SYNSETS[0]]]
    write_pickles(tmp_path, content)
    check_pickled_content(tmp_path)


def test_arrays_win_where_all_layouts_are_there(tmp_path):
    write_arrays(tmp_path)
    (tmp_path / TREE).mkdir()
    for name in PICKLES:
        (tmp_path / name).write_bytes(b"not read")
    assert len(stream(tmp_path).train_data) == N_CLASSES * TRAIN


# --- a tree of images -----------------------------------------------------------------------------------------


def write_tree(folder, size=SIZE):
    """Contents by (part, synset)."""
    content = {}
    for part, count in (("train", TRAIN), ("test", TEST)):
        for number, synset in enumerate(SYNSETS):
            content[part, synset] = pixels(count, (number, count), size)
            place = folder / TREE / part / synset
            place.mkdir(parents=True)
            for index, image in enumerate(content[part, synset]):
                Image.fromarray(image).save(place / f"{index}.png")
    return content


def test_tree_arrives_pixel_by_pixel_and_is_decoded_once(tmp_path, monkeypatch):
    content = write_tree(tmp_path)
    first = stream(tmp_path)
    for label, synset in enumerate(sorted(SYNSETS)):
        for part, data in (("train", first.train_data), ("test", first.test_data)):
            mine = data.images[data.labels == label].numpy()
            assert np.array_equal(mine.transpose(0, 2, 3, 1), content[part, synset])
    assert first.spec.mean == SeqMiniImageNet.mean
    monkeypatch.setattr(image_cache, "decode", lambda *_, **__: pytest.fail("decoded again"))
    second = stream(tmp_path)
    assert np.array_equal(second.train_data.images, first.train_data.images)
    assert second.spec == first.spec


# --- files that are not what they should be -------------------------------------------------------------------


def test_missing_files_name_folder_files_and_flag(tmp_path):
    message = refusal(tmp_path)
    for words in (str(tmp_path), "--base_path", *ARRAYS, *PICKLES, TREE):
        assert words in message


def test_array_of_objects_is_not_unpickled(tmp_path):
    write_arrays(tmp_path)
    np.save(tmp_path / "train_x.npy", np.array([Evil("touch", tmp_path / "hit")], dtype=object), allow_pickle=True)
    assert str(tmp_path / "train_x.npy") in refusal(tmp_path)
    assert not (tmp_path / "hit").exists()


# --- pickles that run code ------------------------------------------------------------------------------------


class Evil:
    """Runs a command or a piece of code when it is unpickled by `pickle.load`."""

    def __init__(self, way, target):
        self.way, self.target = way, target

    def __reduce__(self):
        if self.way == "touch":
            return os.system, (f"touch {self.target}",)
        return getattr(builtins, self.way), (f"open({str(self.target)!r}, 'w').close()",)


def text_pickle(module, name, argument):
    """A call `module.name(argument)` in protocol 0, whether or not it can be pickled."""
    return f"c{module}\n{name}\n(V{argument}\ntR.".encode()


@pytest.mark.parametrize("way", ["touch", "eval", "exec"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickle_that_runs_code_is_refused_before_it_does(tmp_path, way, protocol):
    target = tmp_path / "hit"
    content = pickle.dumps({"image_data": Evil(way, target), "class_dict": {}}, protocol=protocol)
    pickle.loads(content)
    assert target.exists(), "the attack itself must work"
    target.unlink()
    write_pickles(tmp_path, pickles())
    (tmp_path / PICKLES[0]).write_bytes(content)
    message = refusal(tmp_path)
    assert f"refused to read {tmp_path / PICKLES[0]}" in message
    assert "may run code" in message
    assert not target.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy.testing._private.utils", "runstring"),
        ("numpy.testing", "rundocs"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("numpy", "memmap"),
        ("numpy", "f2py.os.system"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy._core.multiarray", "frompyfunc"),
        ("numpy._core.numeric", "load"),
        ("numpy.ctypeslib", "load_library"),
        ("numpyfake", "ndarray"),
        ("builtins", "getattr"),
        ("builtins", "__import__"),
        ("_codecs", "decode"),
        ("collections", "OrderedDict"),
    ],
)
def test_only_an_exact_list_of_globals_is_admitted(tmp_path, module, name):
    path = tmp_path / "x.pkl"
    path.write_bytes(text_pickle(module, name, "x"))
    with pytest.raises(UsageError, match="refused to read") as caught:
        load_numpy_pickle(path)
    assert f"{module}.{name}" in str(caught.value)


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.float64(0.1),
        np.array(["n01", "n02"]),
        {"plain": [1, 2.5, None, True, "text", b"\x00\xff"]},
    ],
    ids=["array", "fortran", "scalar", "text", "containers"],
)
def test_plain_data_pass_unchanged(tmp_path, value, protocol):
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    loaded = load_numpy_pickle(path)
    assert type(loaded) is type(value)
    assert np.array_equal(loaded, value)
    assert getattr(loaded, "dtype", None) == getattr(value, "dtype", None)
