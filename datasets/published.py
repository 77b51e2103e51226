"""What published data sets have in common: a download by one process at a time, and a digest to check the content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from datasets.dataset import RawData, by_content, content_digest
from utils.errors import UsageError


def check_content(raw: RawData, content: str, title: str, source: Path) -> RawData:
    """Return the data sorted by content, or raise a UsageError if they do not have this digest."""
    raw = by_content(raw)
    if content_digest(raw) != content:
        raise UsageError(
            f"the images in {source} are not those of {title}: some are missing, changed or of another class; "
            "download them again, or use --dataset seq-folder for images of your own"
        )
    return raw


@contextmanager
def first_download(folder: Path) -> Iterator[None]:
    """Let one process at a time download into a folder. A failed download leaves no empty folders behind."""
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / ".download.lock"
    try:
        with FileLock(lock):
            yield
    finally:
        lock.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: the download worked, or another process is downloading
            for parent in created:
                parent.rmdir()


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
