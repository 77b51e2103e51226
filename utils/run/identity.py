"""What identifies a run: the same command on the same data is the same run, and has the same name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

from utils.config.resolve import SELECTORS, Config, identity_options
from utils.data.stream import StreamSpec

# Raised when a fix changes the results of all runs, so that older records are not taken for those of today's code.
# A fix of one model, norm, data set or backbone raises the `numerics_version` that it registers with.
NUMERICS_VERSION = 2


def run_identity(config: Config, spec: StreamSpec) -> dict[str, Any]:
    """Return all that a run's numbers depend on, as JSON reads it."""
    identity = identity_options(config) | {"numerics_version": NUMERICS_VERSION, "data": spec.fingerprint}
    for selector, registry in SELECTORS.items():
        version = registry.get(getattr(config, selector)).traits.get("numerics_version")
        identity |= {} if version is None else {f"{selector}_numerics_version": version}
    return cast("dict[str, Any]", json.loads(json.dumps(identity)))


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
