"""`dom-folder`: images of several domains that share their classes, `<domain>/<class>/*` below --base_path (Domain-IL).

As PACS, Office-Home and the like are published. A domain that has nothing but folders `train/` and `test/` has its
classes in both; of any other, --test_share of every class's images is held out for testing, the same for all seeds.
Domains come in the order of their names, or as --domains says. Settings are ours: the paper does not have it.

    python main.py --model er --norm adab2n --dataset dom-folder --base_path PACS --domains photo,cartoon,sketch
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from datasets.dataset import BASE_PATH, held_out
from datasets.image_files import Listing, files_of, images_in
from datasets.streamed_images import DOMAIN_STREAM_OPTIONS, SEEN, STORED, StreamedDomains
from utils.config.options import Option, Rule, integer, number, text
from utils.config.registry import DATASETS
from utils.data.augment import Flip, RandomResizedCrop
from utils.data.random import generator
from utils.data.stream import StreamSpec
from utils.errors import UsageError

PARTS = ("train", "test")


def domain_names(words: str) -> tuple[str, ...]:
    """Option type: different names separated by commas."""
    names = tuple(text(words).split(","))
    if "" in names or len({*names}) < len(names) or any("/" in name for name in names):
        raise argparse.ArgumentTypeError(f"must be different folders such as photo,sketch; got {words[:80]!r}")
    return names


domain_names.metavar = "NAME,..."

OPTIONS = (
    BASE_PATH,
    Option("domains", domain_names, "folders of the domains, in the order in which they come (default: all, by name)"),
    Option(
        "test_share",
        number(0, 1, exclusive=True),
        "share of every class's images that is for testing, where a domain has no folders train and test",
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

    def n_domains(self, config):
        return len(_domains(config))

    def spec(self, config) -> StreamSpec:
        stored = round(config.image_size * STORED / SEEN)
        self.image_shape = (3, stored, stored)
        self.augmentation = (RandomResizedCrop(config.image_size, stored), Flip())
        return super().spec(config)

    def files(self, config) -> Listing:
        root, domains = Path(config.base_path), _domains(config)
        classes = _classes(root / domains[0])
        both = [_split(root / name, classes, config.test_share) for name in domains]
        train, test = (files_of(root, [group for domain in both for group in domain[part]]) for part in (0, 1))
        return Listing(root, classes, train, test)


def _folders(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


def _domains(config) -> tuple[str, ...]:
    root = Path(config.base_path)
    if not root.is_dir():
        raise UsageError(f"no folder {root}: point --base_path to a folder with <domain>/<class>/*")
    there = _folders(root)
    for name in config.domains or ():
        if name not in there:
            raise UsageError(f"--domains: {name[:80]!r} is no folder in {root}, which has {', '.join(there)[:200]}")
    if not there:
        raise UsageError(f"{root} has no folders: put the images into <domain>/<class>/")
    return config.domains or tuple(there)


def _is_split(domain: Path) -> bool:
    return _folders(domain) == sorted(PARTS)


def _classes(domain: Path) -> list[str]:
    inside = domain / PARTS[0] if _is_split(domain) else domain
    classes = _folders(inside)
    if not classes:
        raise UsageError(f"{inside} has no class folders: put the images into <domain>/<class>/")
    return classes


def _split(domain: Path, classes: list[str], share: float) -> tuple[list[list[Path]], list[list[Path]]]:
    """The training and test images of every class of a domain."""
    for inside in [domain / part for part in PARTS] if _is_split(domain) else [domain]:
        if differing := {*classes} ^ {*_folders(inside)}:
            raise UsageError(
                f"{inside} has other classes than the first domain: {', '.join(sorted(differing))[:200]}; all domains "
                "need the same"
            )
    if _is_split(domain):
        return tuple([images_in(domain / part / name) for name in classes] for part in PARTS)
    train, test, draws = [], [], f"test_share/{os.fsencode(domain.name).hex()}"
    for label, name in enumerate(classes):
        images = images_in(domain / name)
        count = held_out(len(images), share)
        if not 0 < count < len(images):
            raise UsageError(
                f"--test_share {share} of the {len(images)} images in {domain / name} leaves none to "
                f"{'train on' if count else 'test on'}"
            )
        chosen = {*generator(0, draws, label).permutation(len(images))[:count].tolist()}
        test.append([image for index, image in enumerate(images) if index in chosen])
        train.append([image for index, image in enumerate(images) if index not in chosen])
    return train, test
