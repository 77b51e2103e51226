"""What published data sets have in common: a download by one process at a time, and a digest to check the content."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from datasets.dataset import RawData, by_content, content_digest
from utils.errors import DataMissing, UsageError
from utils.files import waited_lock

Result = TypeVar("Result")


def check_content(raw: RawData, content: str, title: str, source: Path) -> RawData:
    """Return the data sorted by content, or raise a UsageError if they do not have this digest."""
    raw = by_content(raw)
    if content_digest(raw) != content:
        raise UsageError(
            f"the images in {source} are not those of {title}: some are missing, changed or of another class; "
            "download them again, or use --dataset seq-folder for images of your own"
        )
    return raw


def download(load: Callable[[], Result], folder: Path, advice: str) -> Result:
    """Return what `load` downloads into a folder; runs that start together download once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with waited_lock(folder / ".download.lock", f"that downloads into {folder}"):
            return load()
    except (OSError, RuntimeError) as error:
        raise DataMissing(f"cannot download into {folder} ({' '.join(str(error).split())}); {advice}") from error
