"""Reading an untrusted pickle: plain containers and numpy arrays, and nothing that runs code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from utils.errors import UsageError

# The names in pickled arrays, scalars and dtypes; numpy 1 has them in `numpy.core`, numpy 2 in `numpy._core`.
_ADMITTED = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"{core}.{module}", name)
    for core in ("numpy.core", "numpy._core")
    for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
}


class _NumpyUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise UsageError(f"it asks for {module}.{name}, which is not numpy data, and may run code")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def load_numpy_pickle(path: Path) -> Any:
    """Return the content of a pickle of containers, numbers, text and numpy arrays."""
    try:
        with open(path, "rb") as file:
            return _NumpyUnpickler(file, encoding="latin1").load()  # as which Python 2 pickled bytes
    except UsageError as error:
        raise UsageError(f"refused to read {path}: {error}; get the file from a source you trust") from None
    except Exception as error:  # a damaged pickle can raise almost anything
        raise UsageError(f"{path} is not a readable pickle of numpy arrays: {error}") from error
