"""What published data sets have in common: one download at a time, and a digest that their content must have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from datasets.dataset import RawData, by_content, content_digest
from utils.errors import UsageError
from utils.files import waiting_lock


def verified(raw: RawData, content: str, title: str, source: Path) -> RawData:
    """The images in an order of their own, if they are those of the digest."""
    raw = by_content(raw)
    if content_digest(raw) != content:
        raise UsageError(
            f"the images in {source} are not those of {title}: some are missing, changed or of another class; "
            "get them anew, or use --dataset seq-folder for images of your own"
        )
    return raw


@contextmanager
def first_download(folder: Path) -> Iterator[None]:
    """For one process at a time; a failed one leaves no empty folders behind."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / ".download.lock"
    try:
        with waiting_lock(lock):
            yield
    finally:
        lock.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: the download worked, or somebody else is at it
            for each in made:
                each.rmdir()


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
