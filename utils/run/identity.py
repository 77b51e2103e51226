"""What a run is: the same command on the same data is the same run, and has the same name."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from utils.config.arguments import Config, identity_options
from utils.data.stream import StreamSpec

# Raised when a fix changes results, so that older records are not taken for those of today's code.
NUMERICS_VERSION = 2


def run_identity(config: Config, spec: StreamSpec) -> dict[str, Any]:
    """As plain data, the way JSON gives them back."""
    identity = identity_options(config) | {"numerics_version": NUMERICS_VERSION, "data": spec.fingerprint}
    return json.loads(json.dumps(identity))


def run_hash(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def run_name(config: Config, spec: StreamSpec) -> str:
    """Readable first, exact last: derpp-adab2n-seq-cifar100-online-m2000-s0-<hash>. What gives no test results says so:
    derpp-bn-seq-digits-online-m200-s0-val-debug-<hash>."""
    marks = {"val": getattr(config, "validation", None), "debug": config.debug_mode}
    return "-".join([*_readable(config), *(word for word, value in marks.items() if value), _hash(config, spec)])


def run_folder(config: Config, spec: StreamSpec) -> Path:
    """Where it lies. A run from before names said `val` and `debug` stays where it is: its hash is the same."""
    runs = Path(config.results_path) / "runs"
    now, before = runs / run_name(config, spec), runs / "-".join([*_readable(config), _hash(config, spec)])
    return before if os.path.isdir(before) and not os.path.isdir(now) else now


def _readable(config: Config) -> list[str]:
    buffer = [f"m{config.buffer_size}"] if "buffer_size" in config.values() else []
    return [config.model, config.norm, config.dataset, config.scenario, *buffer, f"s{config.seed}"]


def _hash(config: Config, spec: StreamSpec) -> str:
    return run_hash(run_identity(config, spec))
