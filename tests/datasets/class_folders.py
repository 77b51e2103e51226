"""Trees of small images for `seq-folder`, and what it makes of them."""

import numpy as np
import pytest
from PIL import Image

from datasets.seq_folder import SeqFolder
from utils.config.resolve import resolve
from utils.errors import UsageError

CLASSES = ("ant", "bee", "cat", "dog")


def pixels(seed, shape=(8, 8, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


def fill(root, train=3, test=2, seed=0):
    """PNG images of 8x8 pixels; returns them by (part, class)."""
    content = {}
    for part, count in (("train", train), ("test", test)):
        for name in CLASSES:
            images = [pixels((seed, len(part), ord(name[0]), k)) for k in range(count)]
            for k, image in enumerate(images):
                save(root / part / name / f"{k}.png", image)
            content[part, name] = np.stack(images)
    return content


def config(root, **flags):
    flags = {"n_tasks": 2, "image_size": 8, "non_verbose": True, **flags}
    return resolve({"model": "sgd", "dataset": "seq-folder", "base_path": str(root), **flags})


def stream(root, **flags):
    dataset, options = SeqFolder(), config(root, **flags)
    return dataset.stream(options, dataset.spec(options))


def caches(folder):
    return sorted(folder.glob("seq-folder-*v[0-9]"))


def refusal(root, **flags):
    with pytest.raises(UsageError) as caught:
        stream(root, **flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)
