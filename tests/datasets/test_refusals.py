"""Damaged, missing and unfit files: each is refused in one line that names it, whatever the data set."""

import pickle
import re
import shutil

import numpy as np
import pytest
import test_cifar
import test_dom_folder
import test_domainnet
import test_imagenet_sub
import test_miniimg
import test_mnist
import test_tinyimg
from class_folders import fill, pixels, save
from helpers import CPU
from PIL import Image

from datasets.seq_miniimg import ARRAYS, PICKLES
from utils.config.resolve import resolve
from utils.errors import UsageError
from utils.run.build import StreamBuilder


def build_folder(tmp_path, monkeypatch):
    fill(tmp_path)
    return tmp_path, {"dataset": "seq-folder", "n_tasks": 2, "image_size": 8}


def build_mini(write):
    def build(tmp_path, monkeypatch):
        test_miniimg.shrink(monkeypatch)
        write(tmp_path)
        return tmp_path, {"dataset": "seq-miniimg", "n_tasks": 5}

    return build


def build_tiny(tmp_path, monkeypatch):
    test_tinyimg.shrink(monkeypatch)
    test_tinyimg.Tiny(tmp_path)
    return tmp_path, {"dataset": "seq-tinyimg", "n_tasks": 2}


def build_cifar(tmp_path, monkeypatch):
    test_cifar.shrink("seq-cifar10", tmp_path, monkeypatch).write_tree()
    return tmp_path, {"dataset": "seq-cifar10"}


def build_mnist(tmp_path, monkeypatch):
    test_mnist.write(tmp_path, test_mnist.shrink(monkeypatch), gzipped=test_mnist.FILES[1:2])
    return tmp_path, {"dataset": "seq-mnist"}


def build_imagenet(tmp_path, monkeypatch):
    base_path = test_imagenet_sub.build(tmp_path, monkeypatch)
    return base_path, {"dataset": "seq-imagenet-sub", "n_tasks": 2, "num_workers": 0}


def build_domainnet(tmp_path, monkeypatch):
    return test_domainnet.build(tmp_path, monkeypatch), {"dataset": "seq-domainnet", "num_workers": 0}


def build_domains(tmp_path, monkeypatch):
    return test_dom_folder.build(tmp_path), {"dataset": "dom-folder", "image_size": 28, "num_workers": 0}


FIXTURES = {
    "folder": build_folder,
    "arrays": build_mini(test_miniimg.write_arrays),
    "pickles": build_mini(lambda folder: test_miniimg.write_pickles(folder, test_miniimg.pickles())),
    "tree": build_mini(test_miniimg.write_tree),
    "tiny": build_tiny,
    "cifar": build_cifar,
    "mnist": build_mnist,
    "imagenet": build_imagenet,
    "domainnet": build_domainnet,
    "domains": build_domains,
}


# --- damages: functions of the folder; flags are what they return --------------------------------------------------


def remove(*names):
    def damage(root):
        for name in names:
            path = root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def change(name, edit):
    return lambda root: (root / name).write_bytes(edit((root / name).read_bytes()))


def write(name, content):
    return lambda root: (root / name).write_bytes(content)


def cut(name, share):
    return change(name, lambda content: content[: int(len(content) * share)])


def array(name, value):
    return lambda root: np.save(root / name, value)


def image(name, value, **options):
    return lambda root: save(root / name, value, **options)


def flags(**values):
    return lambda root: values


def line(name, number, text):
    """The lines of a file from this number on become this one."""
    return change(name, lambda content: b"\n".join([*content.splitlines()[: number - 1], text.encode(), b""]))


def pickled(images, class_dict):
    return write(PICKLES[0], pickle.dumps({"image_data": images, "class_dict": class_dict}))


def move(name, target):
    return lambda root: (root / name).rename(root / target)


def cut_all(*names):
    """Cut all of these files."""
    return lambda root: [cut(name, 0.66)(root) for name in names]


def change_pixel(root):
    path = next((root / "CIFAR10/train").glob("*/*"))
    content = np.array(Image.open(path))
    content[0, 0, 0] ^= 1
    Image.fromarray(content).save(path)


def add_class(root):
    for part in ("train", "test"):
        shutil.copytree(next((root / "CIFAR10/train").iterdir()), root / "CIFAR10" / part / "unicorn")


mini, mnist, tiny = test_miniimg, test_mnist, test_tinyimg
ALL, LABELS = mini.N_CLASSES * mini.TRAIN, np.arange(mini.N_CLASSES).repeat(mini.TRAIN)
FIRST = mini.pickles()[PICKLES[0]]["class_dict"]
IMAGES, GZIPPED, _, TEST_LABELS = mnist.FILES
GZIPPED = f"{GZIPPED}.gz"
SYNSET = "MiniImageNet/train/n00000070"
REAL = "DomainNet/real_train.txt"
ANNOTATIONS = "val/val_annotations.txt"

CASES = [
    # fixture, damage, keyword
    ("folder", remove("train"), "--base_path"),
    ("folder", remove("test"), "neither test/ nor val/"),
    ("folder", remove(*(f"train/{name}" for name in ("ant", "bee", "cat", "dog"))), "no class folders"),
    ("folder", remove(*(f"test/bee/{k}.png" for k in range(2))), "test/bee"),
    ("folder", move("train/bee", "train/cow"), "bee"),
    ("folder", move("test/bee", "elsewhere"), "test/bee"),
    ("folder", flags(train_per_class=4), "train/ant"),
    ("folder", flags(n_tasks=None), "--n_tasks"),
    ("folder", flags(n_tasks=3), "--task_classes"),
    ("folder", write("train/bee/7.jpg", b"no image"), "train/bee/7.jpg"),
    ("folder", cut("train/bee/1.png", 0.66), "train/bee/1.png"),
    ("folder", lambda root: (root / "train/bee/7.png").symlink_to("gone.png"), "train/bee/7.png"),
    ("folder", image("train/ant/7.png", np.arange(64, dtype=np.uint16).reshape(8, 8)), "8 bit"),
    ("folder", cut_all("train/bee/1.png", "train/cat/2.png"), "train/cat/2.png"),
    ("arrays", remove(*ARRAYS[1:3]), "train_y.npy, test_x.npy"),
    ("arrays", array("train_x.npy", mini.pixels(ALL - 1)), f"({ALL - 1}, 6, 6, 3)"),
    ("arrays", array("train_x.npy", mini.pixels(ALL)[..., 0]), f"({ALL}, 6, 6)"),
    ("arrays", array("test_x.npy", mini.pixels(mini.N_CLASSES * mini.TEST).astype(np.float32)), "float32"),
    ("arrays", array("train_y.npy", LABELS + 1), "train_y.npy"),
    ("arrays", array("train_y.npy", LABELS[:, None]), f"train_y.npy has shape ({ALL}, 1)"),
    ("arrays", array("test_y.npy", np.array(3)), "test_y.npy has shape ()"),
    ("arrays", cut("test_x.npy", 0.5), "test_x.npy"),
    ("pickles", write(PICKLES[0], pickle.dumps([1, 2, 3])), "class_dict"),
    ("pickles", pickled(mini.pixels(12), {"n0": [0, 99]}), "class_dict"),
    ("pickles", remove(*PICKLES[1:]), f"not {PICKLES[1]}, {PICKLES[2]}"),
    ("pickles", pickled(mini.pixels(12), {"n0": [[0], [1, 2]]}), PICKLES[0]),
    ("pickles", pickled([[1], [1, 2]], {"n0": [0]}), PICKLES[0]),
    ("pickles", pickled(np.zeros(4, np.uint8), {"n0": 0}), PICKLES[0]),
    ("pickles", pickled(mini.pixels(12), {"n0": [0, 1]}), "6 rows"),
    ("pickles", pickled(mini.pixels(30, size=7), FIRST), "(30, 7, 7, 3)"),
    ("pickles", pickled(mini.pixels(12), {}), "5 classes"),
    ("pickles", cut(PICKLES[1], 0.5), PICKLES[1]),
    ("tree", image(f"{SYNSET}/3.png", pixels(1, (7, 7, 3))), "7x7"),
    ("tree", remove(f"{SYNSET}/3.png"), "n00000070"),
    ("tree", cut(f"{SYNSET}/3.png", 0.6), "replace it"),
    ("tree", remove(SYNSET, SYNSET.replace("train", "test")), "9 classes"),
    ("tiny", remove("wnids.txt"), "wnids.txt"),
    ("tiny", remove(ANNOTATIONS), "val_annotations.txt"),
    ("tiny", remove("train/n03/images/n03_2.JPEG"), "n03"),
    *(("tiny", line(ANNOTATIONS, 3, text), "line 3") for text in ("val_1.JPEG\tn99", "val_77.JPEG\tn01", "val_1.JPEG")),
    ("tiny", change(ANNOTATIONS, lambda content: content + content.splitlines()[0] + b"\n"), "twice"),
    ("tiny", change(ANNOTATIONS, lambda content: b"\n".join(content.splitlines()[:-1])), "instead of 2"),
    ("tiny", write("wnids.txt", "\n".join(tiny.CLASSES[:3]).encode()), "wnids.txt"),
    ("cifar", change_pixel, "CIFAR10"),
    ("cifar", add_class, "CIFAR10"),
    ("cifar", lambda root: next((root / "CIFAR10/train").glob("*/*")).unlink(), "CIFAR10"),
    ("mnist", remove(IMAGES), IMAGES),
    ("mnist", change(IMAGES, lambda content: content[:11] + b" " + content[12:]), IMAGES),
    ("mnist", cut(TEST_LABELS, 0.9), TEST_LABELS),
    ("mnist", change(TEST_LABELS, lambda content: content[:20] + b"\n" + content[21:]), "not those of MNIST"),
    *(("mnist", cut(GZIPPED, share), GZIPPED) for share in (0, 0.9)),
    ("mnist", write(GZIPPED, b"plain text"), GZIPPED),
    ("imagenet", remove("ImageNet/val"), "--base_path"),
    ("imagenet", remove("ImageNet/train/n02"), "--class_list"),
    ("imagenet", flags(class_list=("n00", "n99")), "'n99'"),
    ("imagenet", flags(class_list=("n00", "n00")), "'n00'"),
    ("imagenet", remove("ImageNet/val/n03"), "val/n03"),
    ("imagenet", cut("ImageNet/train/n03/n03_1.JPEG", 0.6), "n03_1.JPEG"),
    ("domainnet", remove("DomainNet/clipart_train.txt"), "--base_path"),
    ("domainnet", remove("DomainNet/real_test.txt", "DomainNet/clipart_test.txt"), "clipart_test.txt, real_test.txt"),
    ("domainnet", write(REAL, b"\n"), "real_train.txt"),
    ("domainnet", write(REAL, b"real/gone.png 1\nreal/lost.png 1\n"), "lost.png"),
    *(("domainnet", line(REAL, 3, text), "line 3") for text in ("real/x.png 3", "real/x.png", "1", "/real/x.png 0")),
    ("domainnet", cut("DomainNet/clipart/ant/train_0.png", 0.6), "train_0.png"),
    ("domains", remove("art", "photo", "sketch"), "no folders"),
    ("domains", remove("art/dog", "art/elk", "art/train"), "no class folders"),
    ("domains", remove("photo/elk"), "elk"),
    ("domains", flags(domains=("art", "oil")), "'oil'"),
    ("domains", flags(domains=("art", "art")), "'art'"),
    ("domains", flags(test_share=0.01), "art/dog"),
    ("domains", flags(test_share=0.99), "art/dog"),
    ("domains", flags(validation=0.01), "--validation"),
]


def read_all(config):
    stream = StreamBuilder(config).stream(CPU)
    for task in range(stream.spec.n_tasks):
        assert list(stream.in_order(task, 100))
        assert list(stream.test(task, 100))


@pytest.mark.parametrize(("fixture", "damage", "keyword"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_unfit_files_are_refused_in_one_line(tmp_path, monkeypatch, fixture, damage, keyword):
    root, options = FIXTURES[fixture](tmp_path / "data", monkeypatch)
    changed = damage(root)
    options |= {"model": "sgd", "base_path": str(root), "non_verbose": True}
    config = resolve(options | (changed if isinstance(changed, dict) else {}))
    with pytest.raises((UsageError, OSError)) as caught:  # either is exit code 2
        read_all(config)
    assert "\n" not in str(caught.value)
    assert keyword in str(caught.value)


# --- a folder that is near --------------------------------------------------------------------------------------------

NEAR = [("..", name) for name in ("folder", "tree", "tiny", "imagenet", "domainnet", "domains", "cifar", "mnist")]
NEAR += [("train", "folder"), ("train", "tiny"), ("ImageNet/train", "imagenet")]


@pytest.mark.parametrize(("place", "fixture"), NEAR)
def test_base_path_that_a_message_advises_is_accepted(tmp_path, monkeypatch, no_network, place, fixture):
    root, options = FIXTURES[fixture](tmp_path / "upper" / "data", monkeypatch)
    options |= {"model": "sgd", "non_verbose": True}
    with pytest.raises(UsageError) as caught:
        read_all(resolve(options | {"base_path": str((root / place).resolve())}))
    (advised,) = re.findall(r"set --base_path to (\S+)$", str(caught.value))
    read_all(resolve(options | {"base_path": advised}))
