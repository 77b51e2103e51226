"""Reading a stranger's pickle safely: only numpy arrays, their types and plain containers are let in."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from utils.errors import UsageError


def _bytes_of(text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes: text in latin-1, and no other codec."""
    if encoding not in ("latin1", "latin-1"):
        raise UsageError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


# The exact globals that pickled arrays, scalars and dtypes of numpy 1 and 2 refer to. Anything else could run code.
_ADMITTED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _bytes_of,
    **{
        (f"numpy.{core}.multiarray", name): getattr(np._core.multiarray, name)
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    },
    **{(f"numpy.{core}.numeric", "_frombuffer"): np._core.numeric._frombuffer for core in ("core", "_core")},
}


class _NumpyUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise UsageError(f"it asks for {module}.{name}, which is not numpy data, and may run code") from None


def load_numpy_pickle(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            # Files of Python 2 hold their bytes as latin-1 text.
            return _NumpyUnpickler(file, encoding="latin1").load()
    except UsageError as error:
        raise UsageError(f"refused to read {path}: {error}; get the file from a source you trust") from None
    except (
        pickle.UnpicklingError,
        EOFError,
        OSError,
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
        KeyError,
    ) as e:
        raise UsageError(f"{path} is not a readable pickle of numpy arrays: {e}") from e
