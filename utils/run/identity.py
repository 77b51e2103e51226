"""What a run is: the same command on the same data is the same run, and has the same name."""

from __future__ import annotations

import hashlib
import json
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
    """Readable first, exact last: derpp-adab2n-seq-cifar100-online-m2000-s0-<hash>."""
    words = [config.model, config.norm, config.dataset, config.scenario]
    if "buffer_size" in config.values():
        words.append(f"m{config.buffer_size}")
    return "-".join([*words, f"s{config.seed}", run_hash(run_identity(config, spec))])
