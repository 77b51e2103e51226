"""Reading an untrusted pickle: plain containers and numpy arrays of numbers or text, and nothing that runs code.

The unpickler admits an exact list of names, none of which leads to numpy itself: arrays are read into stand-ins, which
check type, shape and length before they build the array, because numpy trusts what it unpickles.
"""

from __future__ import annotations

import math
import pickle
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from utils.errors import UsageError

PLAIN = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248]|[SU]\d{1,4})")


class _Dtype:
    def __init__(self, code: str, *_align_and_copy: Any):
        self.code = code

    def __setstate__(self, state: tuple) -> None:
        order = state[1]  # the rest describes records and objects, which are not admitted
        self.code = (order if order in ("<", ">") else "") + self.code.lstrip("<>=|")


def _array(content: bytes | str, dtype: _Dtype, shape: tuple[int, ...], order: Literal["C", "F"] = "C") -> np.ndarray:
    if not isinstance(dtype.code, str) or not PLAIN.fullmatch(dtype.code):
        raise UsageError(f"it holds an array of {dtype.code!r}, which are neither numbers nor text")
    # Files of Python 2 hold bytes as text.
    content = content.encode("latin1") if isinstance(content, str) else bytes(content)
    if math.prod(shape) * np.dtype(dtype.code).itemsize != len(content):
        raise UsageError("it holds an array whose shape and length disagree")
    return np.frombuffer(content, dtype.code).reshape(shape, order=order)


class _Array:
    """Stands in for an array: `_reconstruct` makes it empty, `__setstate__` fills it."""

    def __init__(self, *_subtype_shape_and_code: Any):
        self.value: np.ndarray | None = None

    def __setstate__(self, state: tuple) -> None:
        _version, shape, dtype, is_fortran_order, content = state
        self.value = _array(content, dtype, shape, "F" if is_fortran_order else "C")


def _bytes_of(text: str, encoding: str) -> bytes:
    """Return the bytes of protocol 2, which are text in latin-1; no other codec is admitted."""
    if encoding not in ("latin1", "latin-1"):
        raise UsageError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


# The names in pickled arrays, scalars and dtypes of numpy 1 and 2, and their stand-ins.
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _bytes_of,
}
for _core in ("numpy.core", "numpy._core"):
    _ADMITTED[f"{_core}.multiarray", "_reconstruct"] = _Array
    _ADMITTED[f"{_core}.multiarray", "scalar"] = lambda dtype, content: _array(content, dtype, (1,))[0]
    _ADMITTED[f"{_core}.numeric", "_frombuffer"] = _array


class _NumpyUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise UsageError(f"it asks for {module}.{name}, which is not numpy data, and may run code") from None


def load_numpy_pickle(path: Path) -> Any:
    """Return the content of a pickle of containers, numbers, text and numpy arrays."""
    try:
        with open(path, "rb") as file:
            # Files of Python 2 hold their bytes as latin-1 text.
            return _real(_NumpyUnpickler(file, encoding="latin1").load())
    except UsageError as error:
        raise UsageError(f"refused to read {path}: {error}; get the file from a source you trust") from None
    except Exception as error:  # a damaged pickle can raise almost anything
        raise UsageError(f"{path} is not a readable pickle of numpy arrays: {error}") from error


def _real(value: Any) -> Any:
    """Return the value with every stand-in replaced by its array."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {_real(key): _real(item) for key, item in value.items()}
    return type(value)(map(_real, value)) if isinstance(value, list | tuple) else value
