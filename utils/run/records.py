"""Records of runs: a number counts only in the folder of its run, as it was written, and if the record is consistent.

The seal is a checksum. It detects accidents, not forgery: whoever changes a record can compute it again.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from backbone.adab2n import __version__
from utils.config.resolve import Config, active_options, new_names, selected_entries
from utils.errors import UsageError
from utils.packages import version
from utils.run import metrics
from utils.run.identity import run_hash

if TYPE_CHECKING:
    from backbone.network import Network

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("main.py", *(f"{folder}/*.py" for folder in ("backbone", "models", "datasets", "utils", "scripts")))


class BadRecord(Exception):
    """A record that is not what a run has written; the text says why."""


def seal_of(record: dict[str, Any]) -> str:
    content = {name: value for name, value in record.items() if name != "seal"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the record of the run in whose folder it lies, or None; raise BadRecord if it is not as it was written."""
    try:
        record = json.loads(path.read_bytes())
        sealed = record["seal"] == seal_of(record)
        name, hash_ = record["run"], run_hash(record["identity"])
        if not sealed:
            raise BadRecord("its seal does not match: it has been changed, or damaged")
        if name != path.parent.name or not name.endswith(f"-{hash_}"):
            raise BadRecord(f"it is of another run, {name}")
        for problem in contradictions(record):
            raise BadRecord(f"it contradicts itself: {problem}")
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise BadRecord("it is damaged, or of an older version of this project") from None
    return record


def contradictions(record: dict[str, Any]) -> Iterator[str]:
    """Yield in what the configuration departs from the identity, and the results from their accuracy matrices."""
    names = new_names()
    config, identity = ({names.get(name, name): value for name, value in record[part].items()}
                        for part in ("config", "identity"))  # fmt: skip
    try:
        options = active_options(selected_entries(config))
    except UsageError:  # of a plug-in that is not loaded
        options = {}
    for name, value in config.items():
        if name in identity:
            agrees = identity[name] == value
        elif name in options and options[name].changes_numbers and f"{name}_sha256" not in identity:
            agrees = options[name].omit_from_hash_at == (tuple(value) if isinstance(value, list) else value)
        else:
            agrees = True
        if not agrees:
            yield f"{name} is {value} in its configuration, and not in its identity"
    for setting, result in record["results"].items() if record["status"] == "finished" else ():
        recorded, rows = result["metrics"], [[value for value in row if value is not None] for row in result["matrix"]]
        evals = result.get("points", [])
        untrained = None if recorded.get("fwt") is None else result["untrained"]
        expected = metrics.summary(rows, untrained, metrics.points_by_task(rows, evals))
        for name in expected.keys() & recorded.keys():
            ours, theirs = expected[name], recorded[name]
            if ours != theirs and (ours is None or theirs is None or not math.isclose(ours, theirs, abs_tol=1e-9)):
                yield f"{name} of {setting} is {theirs}, and {ours} by its accuracy matrix"
        if "confusion" in result and result["per_class"] != metrics.per_class(result["confusion"]):
            yield f"the accuracies by class of {setting} are not those of its confusion matrix"
        measured = [*rows, result["untrained"], *(each["accuracy"] for each in evals), result.get("per_class") or []]
        measured += [values or [] for values in result.get("final_statistics", {}).values()]
        measured.append([recorded[name] for name in recorded.keys() - expected.keys()])
        if any(value is not None and not 0 <= value <= 100 for values in measured for value in values):
            yield f"an accuracy of {setting} lies outside of 0 to 100"


def provenance_text(record: dict[str, Any]) -> str:
    """Return when a record was made, and at which commit."""
    commit, plus, changes = (record["environment"]["commit"] or "unknown").partition("+")
    return f"on {record['date'][:16].replace('T', ' ')} UTC at commit {commit[:12]}{plus}{changes}"


def plain(config: Config) -> dict[str, Any]:
    json_types = int | float | str | tuple | None
    return {name: value if isinstance(value, json_types) else str(value) for name, value in config.values().items()}


def conditions(net: Network) -> dict[str, Any]:
    """Return what rounding depends on beside the command: under the same conditions a run has the same bits."""
    device, cpu = next(net.parameters()).device, f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "num_threads": torch.get_num_threads(),
        "norm_impl": net.norms.implementation(device),
        "torch": str(torch.__version__),
    }


def environment() -> dict[str, Any]:
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "device_type": "cuda" if cuda else "cpu",
        "num_threads": torch.get_num_threads(),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "peak_cuda_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20, 1) if cuda else None,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: version(name) for name in ("torchvision", "numpy")},
        "version": __version__,
        "commit": commit(),
    }


def commit() -> str | None:
    """Return the commit, with `+changes` if the code differs from it; None if the checkout is no repository."""

    def git(*words: str) -> str:
        return subprocess.check_output(["git", *words], cwd=REPOSITORY, stderr=subprocess.DEVNULL, text=True).strip()

    try:
        if git("rev-parse", "--show-cdup"):  # the checkout lies below another repository
            return None
        changed = git("status", "--porcelain", "--untracked-files=no") or git("ls-files", "--others", "--", *SOURCES)
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
