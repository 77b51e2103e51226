"""What identifies a run: the same command on the same data is the same run, and has the same name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from utils.config.resolve import Config, identity_options, selected_entries
from utils.data.stream import StreamSpec
from utils.errors import UsageError

# Raised when a fix changes the results of all runs, so that older records are not taken for those of today's code.
# A fix of one model, norm, data set, backbone or buffer raises the `numerics_version` that it registers with.
NUMERICS_VERSION = 2


def run_identity(config: Config, spec: StreamSpec) -> dict[str, Any]:
    """Return all that a run's numbers depend on, as JSON reads it."""
    identity = identity_options(config) | {"numerics_version": NUMERICS_VERSION, "data": spec.fingerprint}
    for selector, entry in selected_entries(vars(config)).items():
        version = entry.traits.get("numerics_version")
        identity |= {} if version is None else {f"{selector}_numerics_version": version}
    try:
        return cast("dict[str, Any]", json.loads(json.dumps(identity, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"an option of this run has a value that no record can hold: {error}") from None


def run_hash(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def run_name(config: Config, spec: StreamSpec) -> str:
    """Return a name such as derpp-adab2n-seq-cifar100-online-m2000-s0-<hash>.

    Runs without test results are marked: derpp-bn-seq-digits-online-m200-s0-val-debug-<hash>.
    """
    words = [config.model, config.norm, config.dataset, config.scenario]
    words += [f"m{config.buffer_size}"] if "buffer_size" in config.values() else []
    marks = {"val": getattr(config, "validation", None), "debug": config.debug_mode}
    words += [f"s{config.seed}", *(mark for mark, value in marks.items() if value)]
    return "-".join([*words, run_hash(run_identity(config, spec))])


def run_folder(config: Config, spec: StreamSpec) -> Path:
    return Path(config.results_path) / "runs" / run_name(config, spec)


def unlike_options(identities: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return what runs differ in, apart from the seed and what follows it, with all values as text."""
    identities = list(identities)
    names = sorted({name for identity in identities for name in identity})
    unlike = {}
    for name in names:
        follows_seed = all(identity.get(name) == identity["seed"] for identity in identities)
        values = list(dict.fromkeys(_value_text(identity, name) for identity in identities))
        if len(values) > 1 and not follows_seed:
            unlike[name] = values
    return unlike


def hash_meanings(identities: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return, by run, the options in which runs differ whose names differ only in the hash, and their values."""
    groups: dict[str, list[str]] = {}
    for name in identities:
        groups.setdefault(name.rpartition("-")[0], []).append(name)
    meanings = {}
    for names in groups.values():
        unlike = unlike_options(identities[name] for name in names)
        for name in names if unlike else ():
            meanings[name] = ", ".join(f"{option} {_value_text(identities[name], option)}" for option in unlike)
    return meanings


def _value_text(identity: Mapping[str, Any], name: str) -> str:
    value = identity.get(name)  # many options are not hashed at their default
    return "default" if value is None else ",".join(map(str, value)) if isinstance(value, list) else str(value)
