"""`dom-folder`: images of several domains that share their classes, `<domain>/<class>/*` below --base_path (Domain-IL).

PACS and Office-Home are published in this layout. A domain whose only folders are `train/` and `test/` has its classes
in both. Of any other, --test_share of every class's images is held out for testing, the same for all seeds. Domains are
ordered by name, or as in --domains. Settings are ours: the paper does not have it.

    python main.py --model er --norm adab2n --dataset dom-folder --base_path PACS --domains photo,cartoon,sketch
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from datasets.dataset import BASE_PATH, Config, held_out_count
from datasets.image_files import ImageFiles, files_by_label, images_in
from datasets.streamed_images import DOMAIN_STREAM_OPTIONS, SEEN, STORED, StreamedDomains
from utils.config.options import Option, Rule, integer, number
from utils.config.registry import DATASETS
from utils.data.augment import Flip, RandomResizedCrop
from utils.data.random import generator
from utils.data.stream import StreamSpec
from utils.errors import UsageError

PARTS = ("train", "test")


def domain_names(words: str) -> tuple[str, ...]:
    """Option type: different folder names separated by commas."""
    names = tuple(words.split(","))
    if "" in names or len({*names}) < len(names) or any("/" in name for name in names):
        raise argparse.ArgumentTypeError(f"must be different folders such as photo,sketch; got {words[:80]!r}")
    return names


setattr(domain_names, "metavar", "NAME,...")  # noqa: B010 (functions have no declared attributes)

OPTIONS = (
    BASE_PATH,
    Option("domains", domain_names, "folders of the domains, in their order (default: all, by name)"),
    Option(
        "test_share",
        number(0, 1, exclusive=True),
        "share of every class's images for testing, if a domain has no folders train and test",
        default=0.2,
    ),
    Option(
        "image_size",
        integer(1, 2048),
        "width and height in pixels that the network sees; images are stored 8/7 as large",
        default=SEEN,
    ),
    *DOMAIN_STREAM_OPTIONS,
)


@DATASETS.register(
    "dom-folder",
    help="folders of images <domain>/<class>/*, domain by domain, streamed",
    options=OPTIONS,
    rules=(Rule({"buffer_size": 500, "lr": 0.03}),),
)
class DomFolder(StreamedDomains):
    name = "dom-folder"

    def n_domains(self, config: Config) -> int:
        return len(_domains(config))

    def spec(self, config: Config) -> StreamSpec:
        stored = round(config.image_size * STORED / SEEN)
        self.image_shape = (3, stored, stored)
        self.augmentation = (RandomResizedCrop(config.image_size, stored), Flip())
        return super().spec(config)

    def files(self, config: Config) -> ImageFiles:
        root, domains = Path(config.base_path), _domains(config)
        classes = _classes(root / domains[0])
        splits = [_split(root / name, classes, config.test_share) for name in domains]
        train = files_by_label(root, [images for train, _ in splits for images in train])
        test = files_by_label(root, [images for _, test in splits for images in test])
        return ImageFiles(root, classes, train, test, labels_in_digest=True)


def _folders(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))


def _domains(config: Config) -> tuple[str, ...]:
    root = Path(config.base_path)
    if not root.is_dir():
        raise UsageError(f"no folder {root}: point --base_path to a folder with <domain>/<class>/*")
    folders = _folders(root)
    for name in config.domains or ():
        if name not in folders:
            raise UsageError(f"--domains: {name[:80]!r} is no folder in {root} ({', '.join(folders)[:200]})")
    if not folders:
        raise UsageError(f"{root} has no folders: put the images into <domain>/<class>/")
    return config.domains or tuple(folders)


def _is_split(domain: Path) -> bool:
    return _folders(domain) == sorted(PARTS)


def _classes(domain: Path) -> list[str]:
    inside = domain / PARTS[0] if _is_split(domain) else domain
    classes = _folders(inside)
    if not classes:
        raise UsageError(f"{inside} has no class folders: put the images into <domain>/<class>/")
    return classes


def _split(domain: Path, classes: list[str], share: float) -> tuple[list[list[Path]], list[list[Path]]]:
    """Return the training and the test images of every class of a domain."""
    for inside in [domain / part for part in PARTS] if _is_split(domain) else [domain]:
        if differing := {*classes} ^ {*_folders(inside)}:
            raise UsageError(
                f"{inside} has other classes than the first domain: {', '.join(sorted(differing))[:200]}; all domains "
                "need the same"
            )
    if _is_split(domain):
        train, test = ([images_in(domain / part / name) for name in classes] for part in PARTS)
        return train, test
    train, test, draws = [], [], f"test_share/{os.fsencode(domain.name).hex()}"
    for label, name in enumerate(classes):
        images = images_in(domain / name)
        count = held_out_count(len(images), share)
        if not 0 < count < len(images):
            raise UsageError(
                f"--test_share {share} of the {len(images)} images in {domain / name} leaves none to "
                f"{'train on' if count else 'test on'}"
            )
        chosen = {*generator(0, draws, label).permutation(len(images))[:count].tolist()}
        test.append([image for index, image in enumerate(images) if index in chosen])
        train.append([image for index, image in enumerate(images) if index not in chosen])
    return train, test
