"""Records of runs: a number counts only in the folder of its run, as it was written, and if the record is consistent.

The seal is a checksum. It detects accidents, not forgery: whoever changes a record can compute it again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import resource
import subprocess
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from backbone.adab2n import __version__
from utils.config.resolve import Config, active_options, new_names, selected_entries
from utils.device import instruction_set
from utils.errors import UsageError
from utils.packages import version
from utils.run import metrics
from utils.run.identity import run_hash
from utils.tables import MEASURED_METRICS

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("main.py", *(f"{folder}/*.py" for folder in ("backbone", "models", "datasets", "utils", "scripts")))
CONDITION_TITLES = {
    "num_threads": "thread counts", "device": "devices", "instruction_set": "instruction sets",
    "torch": "versions of torch", "norm_impl": "implementations of a norm", "tf32": "--tf32",
    "deterministic": "--deterministic", "compile": "--compile", "variables": "environment variables",
}  # fmt: skip
# Environment variables that choose kernels.
VARIABLES = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "NVIDIA_TF32_OVERRIDE",
             "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA")  # fmt: skip


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
        check_entries(record)
        for problem in contradictions(record):
            raise BadRecord(f"it contradicts itself: {problem}")
        add_missing_metrics(record)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise BadRecord("it is a folder") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise BadRecord("it is damaged, or of an older version of this project") from None
    return record


def check_entries(record: dict[str, Any]) -> None:
    """Raise an error if an entry that all commands read is missing or has another type."""
    datetime.fromisoformat(record["date"])
    numbers = [each.get("num_threads", 1) for each in record["conditions"]]
    is_finished = record["status"] == "finished"
    if is_finished:
        numbers += [record[name] for name in ("steps", "seconds", "wall_seconds", "steps_per_second")]
        numbers += [result["metrics"]["faa"] for result in record["results"].values()]
    has_all = "commit" in record["environment"] and record["conditions"] and (not is_finished or record["results"])
    if not has_all or not all(isinstance(number, int | float) for number in numbers):
        raise ValueError


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
        expected = identity.get(name, value)
        is_hashed = name in options and options[name].changes_numbers
        if is_hashed and not {name, f"{name}_sha256"} & identity.keys():
            expected = options[name].omit_from_hash_at
        if value != (list(expected) if isinstance(expected, tuple) else expected):
            yield f"{name} is {value} in its configuration, and not in its identity"
    for setting, result in record["results"].items() if record["status"] == "finished" else ():
        recorded, run = result["metrics"], measured_in(result)
        expected = metrics.built_in(run)
        for name in expected.keys() & recorded.keys():
            ours, theirs = expected[name], recorded[name]
            if ours != theirs and (ours is None or theirs is None or not math.isclose(ours, theirs, abs_tol=1e-9)):
                yield f"{name} of {setting} is {theirs}, and {ours} by its accuracy matrix"
        if "confusion" in result and result["per_class"] != metrics.per_class(result["confusion"]):
            yield f"the accuracies by class of {setting} are not those of its confusion matrix"
        measured = [*run.matrix, result["untrained"], *(each["accuracy"] for each in result.get("points", []))]
        measured += [values or [] for values in (result.get("per_class"), *result.get("final_statistics", {}).values())]
        measured.append([recorded[name] for name in MEASURED_METRICS if name in recorded])
        if any(value is not None and not 0 <= value <= 100 for values in measured for value in values):
            yield f"an accuracy of {setting} lies outside of 0 to 100"
        if not all(isinstance(value, int | float | None) for value in recorded.values()):
            yield f"a metric of {setting} is no number"


def measured_in(result: dict[str, Any]) -> metrics.Measured:
    """Return what the results of a setting in a record say was measured."""
    untrained = None if result["metrics"].get("fwt") is None else result["untrained"]
    return metrics.measured(result["matrix"], untrained, result.get("points", []), result.get("confusion"))


def add_missing_metrics(record: dict[str, Any]) -> None:
    """Compute the metrics that were not registered when the record was made, and those of today's plug-ins."""
    for result in record.get("results", {}).values():
        recorded, run = result["metrics"], measured_in(result)
        own, plugins = metrics.built_in(run), metrics.of_plugins(run)
        recorded |= {name: value for name, value in own.items() if name not in recorded}
        recorded |= {name: value for name, value in plugins.items() if value is not None or name not in recorded}


def entries_of(record: Any, other: Any) -> Any:
    """Return the other record without entries that this one lacks: a run may have measured more."""
    if not (isinstance(record, dict) and isinstance(other, dict)):
        return other
    return {name: entries_of(record[name], value) for name, value in other.items() if name in record}


def provenance_text(record: dict[str, Any]) -> str:
    """Return when a record was made, and at which commit."""
    commit, plus, changes = (record["environment"]["commit"] or "unknown").partition("+")
    return f"on {record['date'][:16].replace('T', ' ')} UTC at commit {commit[:12]}{plus}{changes}"


def plain(config: Config) -> dict[str, Any]:
    json_types = int | float | str | tuple | None
    return {name: value if isinstance(value, json_types) else str(value) for name, value in config.values().items()}


def conditions(config: Config, device: torch.device) -> dict[str, Any]:
    """Return what rounding depends on beside the command: under the same conditions a run has the same bits.

    None is what is unknown, or has no effect on the device. torch does not report which instruction sets oneDNN and MKL
    use: they choose by the vendor and the instructions of the processor, unless an environment variable limits them.
    """
    on_cpu = device.type == "cpu"
    cpu = f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    norm_impl = getattr(config, "norm_impl", "auto")
    return {
        "device": cpu if on_cpu else torch.cuda.get_device_name(device),
        "instruction_set": instruction_set() if on_cpu else None,
        "norm_impl": None if norm_impl == "auto" else norm_impl,
        "num_threads": config.num_threads or torch.get_num_threads(),
        "torch": str(torch.__version__),
        "tf32": None if on_cpu else config.tf32,
        "deterministic": config.deterministic or torch.are_deterministic_algorithms_enabled(),
        "compile": config.compile,
        "variables": " ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ) or "none",
    }


def different_conditions(now: dict[str, Any], before: dict[str, Any]) -> str:
    """Return the conditions that differ, as text. What one of the two lacks is unknown, not different."""
    known = [name for name in now if None not in (now[name], before.get(name))]
    return ", ".join(f"{name} {now[name]} instead of {before[name]}" for name in known if now[name] != before[name])


def mixed_conditions(records: Iterable[dict[str, Any]]) -> list[str]:
    """Return a text for every condition in which records differ; each norm has implementations of its own."""
    values: dict[tuple[str, str], set[str]] = {}
    for record in records:
        for name, value in chain(*(each.items() for each in record["conditions"])):
            norm = record["config"]["norm"] if name == "norm_impl" else ""
            values.setdefault((name, norm), set()).update(() if value is None else (str(value),))
    texts = {name: f"records of different {CONDITION_TITLES.get(name, name)} ({', '.join(sorted(each))})"
             for (name, _), each in values.items() if len(each) > 1}  # fmt: skip
    return [f"{text}, which round differently" for text in texts.values()]


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
