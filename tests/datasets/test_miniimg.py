"""Mini-ImageNet from small files in all layouts, and files that must not be trusted."""

import os
import pickle

import numpy as np
import pytest
from PIL import Image

from datasets import seq_miniimg
from datasets.numpy_pickle import load_numpy_pickle
from datasets.seq_miniimg import PICKLES, TREE, SeqMiniImageNet
from utils.config.resolve import resolve
from utils.errors import UsageError

N_CLASSES, SIZE, TRAIN, TEST = 10, 6, 4, 2
SYNSETS = [f"n{number:08d}" for number in (70, 10, 90, 30, 50, 20, 80, 40, 100, 60)]


def shrink(monkeypatch):
    """Expect a Mini-ImageNet of 10 classes with 4 training and 2 test images of 6x6 pixels."""
    monkeypatch.setattr(SeqMiniImageNet, "images_per_class", (TRAIN, TEST))
    monkeypatch.setattr(SeqMiniImageNet, "n_classes", N_CLASSES)
    monkeypatch.setattr(SeqMiniImageNet, "image_shape", (3, SIZE, SIZE))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch)


def pixels(count, seed=0, size=SIZE):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def write_arrays(folder):
    """Write the four files of the npy layout; return their contents by file name."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(1)
    content = {
        "train_x.npy": pixels(N_CLASSES * TRAIN, 2),
        "train_y.npy": draw.permutation(np.arange(N_CLASSES).repeat(TRAIN)),
        "test_x.npy": pixels(N_CLASSES * TEST, 3),
        "test_y.npy": draw.permutation(np.arange(N_CLASSES).repeat(TEST)),
    }
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


def images_by_synset():
    parts = [(value["image_data"], value["class_dict"]) for value in pickles().values()]
    return {synset: images[members] for images, rows_of in parts for synset, members in rows_of.items()}


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
    result, images_of = stream(folder), images_by_synset()
    for label, synset in enumerate(sorted(SYNSETS)):
        wanted = images_of[synset].transpose(0, 3, 1, 2)
        train, test = result.train_data, result.test_data
        assert np.array_equal(train.images[train.labels == label].numpy(), wanted[:TRAIN])
        assert np.array_equal(test.images[test.labels == label].numpy(), wanted[-TEST:])


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


class Evil:
    """Runs a command when it is unpickled by `pickle.load`."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickle_that_runs_code_is_refused_before_it_does(tmp_path, protocol):
    content = pickle.dumps({"image_data": Evil(tmp_path / "hit"), "class_dict": {}}, protocol=protocol)
    pickle.loads(content)
    (tmp_path / "hit").unlink()  # the attack itself works
    write_pickles(tmp_path, pickles())
    (tmp_path / PICKLES[0]).write_bytes(content)
    assert "may run code" in refusal(tmp_path)
    write_arrays(tmp_path)
    np.save(tmp_path / "train_x.npy", np.array([Evil(tmp_path / "hit")], dtype=object), allow_pickle=True)
    assert "train_x.npy" in refusal(tmp_path)
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize(
    "name",
    ["numpy load", "numpy fromfile", "numpy f2py.os.system", "numpy.core.multiarray fromfile", "numpyfake ndarray",
     "numpy.testing._private.utils runstring", "builtins getattr", "_codecs decode"],
)  # fmt: skip
def test_only_an_exact_list_of_names_is_admitted(tmp_path, name):
    (tmp_path / "x.pkl").write_bytes("c{}\n{}\n(Vx\ntR.".format(*name.split()).encode())
    with pytest.raises(UsageError, match="refused"):
        load_numpy_pickle(tmp_path / "x.pkl")


def dtype_with_state(state):
    """A pickle of an array of numbers whose dtype brings a state of its own, which numpy would trust."""

    class Dtype:
        def __reduce__(self):
            return np.dtype, ("u1", False, True), state

    class Array:
        def __reduce__(self):
            whole = (1, (3,), Dtype(), False, b"abc")
            return np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), whole

    return pickle.dumps(Array(), protocol=4)


@pytest.mark.parametrize(
    "state", [(3, "|", None, ("x",), {"x": 3}, 2**40, 1, 64), (3, "|", None, None, None, -1, -1, 63)]
)
def test_state_of_a_dtype_cannot_reach_numpy(tmp_path, state):
    path = tmp_path / "x.pkl"
    path.write_bytes(dtype_with_state(state))
    assert load_numpy_pickle(path).tolist() == list(b"abc")


def write_all_layouts(folder):
    """The images of the pickles in every layout, in folders of their own."""
    images_of = images_by_synset()
    write_pickles(folder / "pickles", pickles())
    (folder / "arrays").mkdir()
    for part, chosen, count in (("train", slice(TRAIN), TRAIN), ("test", slice(TRAIN, None), TEST)):
        np.save(
            folder / "arrays" / f"{part}_x.npy", np.concatenate([images_of[name][chosen] for name in sorted(SYNSETS)])
        )
        np.save(folder / "arrays" / f"{part}_y.npy", np.arange(N_CLASSES).repeat(count))
    for number, name in enumerate(SYNSETS):
        few_shot_part = "train" if number < 5 else "val" if number < 7 else "test"
        for index, image in enumerate(images_of[name]):
            part = "train" if index < TRAIN else "test"
            for root, place in (
                ("tree", f"{TREE}/{part}"),
                ("val", part.replace("test", "val")),
                ("few", few_shot_part),
            ):
                path = folder / root / place / name / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(path)


def test_all_layouts_of_the_same_images_are_the_same_run(tmp_path, monkeypatch):
    write_all_layouts(tmp_path)
    first = stream(tmp_path / "pickles", seed=3)
    for layout in ("arrays", "tree", "val", "few"):
        other = stream(tmp_path / layout, seed=3)
        assert other.spec == first.spec
        assert np.array_equal(other.train_data.images, first.train_data.images)
        assert np.array_equal(other.test_data.images, first.test_data.images)
        assert np.array_equal(other.train_rows, first.train_rows)
    images = np.load(tmp_path / "arrays/train_x.npy")
    np.save(tmp_path / "arrays/train_x.npy", images[::-1])
    assert stream(tmp_path / "arrays", seed=3).spec.fingerprint != first.spec.fingerprint
    monkeypatch.setattr(seq_miniimg, "load_numpy_pickle", lambda path: pytest.fail("read again"))
    assert np.array_equal(stream(tmp_path / "pickles", seed=3).train_data.images, first.train_data.images)


@pytest.mark.parametrize("layout", ["pickles", "few"])
def test_classes_keep_their_names(tmp_path, layout):
    write_all_layouts(tmp_path)
    by_name = stream(tmp_path / layout, class_order=tuple(SYNSETS))
    by_index = stream(tmp_path / layout, class_order=tuple(str(sorted(SYNSETS).index(name)) for name in SYNSETS))
    assert np.array_equal(by_name.train_data.labels, by_index.train_data.labels)
