"""`dom-folder`: images of several domains that share their classes, `<domain>/<class>/*` below --base_path (Domain-IL).

PACS and Office-Home are published in this layout. A domain whose only folders are `train/` and `test/` (or `val/`) has
its classes in both. Of any other, --test_share of every class's images is held out for testing, the same for all
seeds. Domains are ordered by name, or as in --domains. Settings are ours: the paper does not have it.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from datasets.dataset import BASE_PATH, Config, held_out_count
from datasets.image_files import ImageFiles, files_by_label, images_in, subfolders
from datasets.streamed_images import DOMAIN_STREAM_OPTIONS, SEEN, STORED, StreamedDomains
from utils.config.options import Option, Rule, integer, number
from utils.config.registry import DATASETS
from utils.data.augment import Flip, RandomResizedCrop
from utils.data.random import generator
from utils.data.stream import StreamSpec
from utils.errors import UsageError

VAL_PART = re.compile(rb"^([^/]+)/val/(?=[^/]+/[^/]+$)")  # of a domain that has parts


def _drop_default_domains(config: dict[str, Any], explicit: dict[str, Any]) -> None:
    """Make all domains in their default order the same run as without the option."""
    if config["domains"] and [*config["domains"]] == subfolders(Path(config["base_path"])):
        config["domains"] = None


OPTIONS = (
    BASE_PATH,
    Option(
        "domains",
        lambda text: tuple(text.split(",")),
        "Folders of the domains in order (default: all, by name).",
        check=_drop_default_domains,
    ),
    Option("test_share", number(0, 1, exclusive=True), "Share for testing, without folders train and test.", 0.2),
    Option("image_size", integer(1, 2048), "Width and height in pixels that the network sees.", default=SEEN),
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

    def spec(self, config: Config) -> StreamSpec:
        stored = round(config.image_size * STORED / SEEN)
        self.image_shape = (3, stored, stored)
        self.augmentation = (RandomResizedCrop(config.image_size, stored), Flip())
        return super().spec(config)

    def files(self, config: Config) -> ImageFiles:
        root = Path(config.base_path)
        folders = subfolders(root)
        if not folders:
            raise UsageError(f"no folders in {root}: point --base_path to a folder with <domain>/<class>/*")
        for name in config.domains or ():
            if name not in folders or config.domains.count(name) > 1:
                raise UsageError(f"--domains: {name!r} is not one folder in {root} ({', '.join(folders)[:200]})")
        domains = config.domains or folders
        first = _parts(root / domains[0])[0]
        classes = subfolders(first)
        if not classes:
            raise UsageError(f"{first} has no class folders: put the images into <domain>/<class>/")
        if len(domains) == 1 and subfolders(first / classes[0]):
            raise UsageError(f"{first / classes[0]} holds folders instead of images; maybe set --base_path to {first}")
        splits = [split for name in domains for split in _splits(root / name, classes, config.test_share)]
        train, test = (files_by_label(root, images) for images in zip(*splits, strict=True))
        layout = "<domain>/<class>/*" if first.parent == root else "<domain>/{train,test}/<class>/*"
        files = ImageFiles(root, classes, train, test, layout, labels_in_digest=True, domains=domains)
        selection = [config.domains and [*config.domains], config.test_share]
        return replace(files, selection=selection, published_name=partial(VAL_PART.sub, rb"\1/test/"))


def _parts(domain: Path) -> list[Path]:
    """Return the folders with the classes of a domain: `train` and `test` or `val` if it has only these, or itself."""
    folders = subfolders(domain)
    is_split = len(folders) == 2 and "train" in folders and {*folders} < {"train", "test", "val"}
    return sorted((domain / name for name in folders), key=lambda part: part.name != "train") if is_split else [domain]


def _splits(domain: Path, classes: list[str], share: float) -> Iterator[tuple[list[Path], list[Path]]]:
    """Yield the training and the test images of every class of a domain."""
    parts = _parts(domain)
    for part in parts:
        if differing := {*classes} ^ {*subfolders(part)}:
            raise UsageError(f"{part} has other classes than the first domain: {', '.join(sorted(differing))[:200]}")
    for label, name in enumerate(classes):
        images, *test = (images_in(part / name) for part in parts)
        if test:
            yield images, test[0]
            continue
        count = int(held_out_count(len(images), share))
        if not 0 < count < len(images):
            raise UsageError(f"--test_share {share} leaves nothing to train or to test on in {domain / name}")
        order = generator(0, f"test_share/{os.fsencode(domain.name).hex()}", label).permutation(len(images))
        yield [images[index] for index in sorted(order[count:])], [images[index] for index in sorted(order[:count])]
