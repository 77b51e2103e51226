"""`seq-domainnet`: DomainNet, six domains that share 345 classes, one after the other (Domain-IL, Table 9).

Read from its list files `<domain>_train.txt` and `<domain>_test.txt` with lines `path label`, in `DomainNet/` below
--base_path or in --base_path itself; paths start from there.
The paper has only the buffer of 2000; batches of 32 and the learning rate are those of ImageNet-sub, which is ours.
"""

import re
from pathlib import Path

import numpy as np

from datasets.dataset import BASE_PATH, Config
from datasets.image_files import ImageFiles, find_root
from datasets.streamed_images import DOMAIN_STREAM_OPTIONS, StreamedDomains
from utils.config.options import Rule, SameAs
from utils.config.registry import DATASETS
from utils.data.file_stream import Files
from utils.errors import DataMissing, UsageError

FOLDER = "DomainNet"
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
# Sizes of the published lists, for a dry run without the data.
TRAIN_SIZES = (33_525, 36_023, 50_416, 120_750, 120_906, 48_212)
TEST_SIZES = (14_604, 15_582, 21_850, 51_750, 52_041, 20_916)


@DATASETS.register(
    "seq-domainnet",
    help="DomainNet, 6 domains of the same 345 classes, streamed from the user's files",
    options=(BASE_PATH, *DOMAIN_STREAM_OPTIONS),
    rules=(
        Rule({"buffer_size": 2000, "lr": 0.1, "lambd": 1e-3, "batch_size": 32}),
        Rule({"minibatch_size": SameAs("batch_size")}),
        Rule({"lambd": 1e-5}, when={"penalty_norm": "sum"}),
        Rule({"alpha": 0.3, "beta": 0.8}, when={"model": ("derpp", "derpp_lider")}),
    ),
)
class SeqDomainNet(StreamedDomains):
    name = "seq-domainnet"
    n_classes = 345

    def sizes(self, config: Config) -> tuple[np.ndarray, np.ndarray]:
        if not self.given_fingerprint:
            return super().sizes(config)
        train, test = np.zeros((2, len(DOMAINS), self.n_classes), dtype=int)
        train[:, 0], test[:, 0] = TRAIN_SIZES, TEST_SIZES  # only the sum of a domain is used
        return train, test

    def files(self, config: Config) -> ImageFiles:
        layout = "the lists <domain>_train.txt and <domain>_test.txt, and the images that they name"
        root = find_root(Path(config.base_path), FOLDER, [f"{DOMAINS[0]}_train.txt"], layout)
        lists = [f"{name}_{part}.txt" for part in ("train", "test") for name in DOMAINS]
        if missing := [name for name in lists if not (root / name).is_file()]:
            raise DataMissing(f"{root} has some lists of DomainNet, but not {', '.join(missing)}; add them")
        train, test = (self._files(root, part) for part in ("train", "test"))
        classes, advice = [*map(str, range(self.n_classes))], "replace {}, or remove the line from its list"
        return ImageFiles(
            root, classes, train, test, "lists of images", labels_in_digest=True, domains=DOMAINS, advice=advice
        )

    def _files(self, root: Path, part: str) -> Files:
        names, labels = [], []
        for domain, domain_name in enumerate(DOMAINS):
            for name, label in read_list(root / f"{domain_name}_{part}.txt", self.n_classes):
                names.append(name)
                labels.append(domain * self.n_classes + label)
        return Files(np.array(names), np.array(labels, dtype=np.int64))


def read_list(path: Path, n_classes: int) -> list[tuple[bytes, int]]:
    """Return the paths and labels of a list; paths are bytes, since a name need not be valid text."""
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        name, label = (*line.rsplit(maxsplit=1), b"", b"")[:2]
        if not re.fullmatch(b"[0-9]{1,9}", label) or int(label) >= n_classes or name.startswith(b"/"):
            raise UsageError(f"{path}, line {number} is not a relative path and a label from 0 to {n_classes - 1}")
        rows.append((name.strip(), int(label)))
    if not rows:
        raise UsageError(f"{path} lists no images")
    return rows
