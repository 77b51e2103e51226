"""Normalization layers, one file each, built by a factory that a network takes at construction.

A norm is registered under a name and called with the channel count first and keywords after:

    @NORMS.register("gn", options=(GROUPS,))
    def group_norm(channels, *, spatial, groups): ...

`spatial` is the size of the map it will see, () for a vector, None if the network does not say; the rest are the
norm's own options. A norm that registers with `shared=` also gets `shared`, what the norm layers of one network have
in common (see `backbone.norms.shared`).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from utils.config.options import default_values
from utils.config.registry import NORMS, Entry


class NormFactory:
    """Builds the norm layers of one network: `factory(64, spatial=(32, 32))`, or `norm_layer=factory`."""

    def __init__(self, entry: Entry, options: dict[str, Any]):
        from backbone.norms.shared import SharedNormState

        self.entry = entry
        shared_type = entry.traits.get("shared", SharedNormState)
        taken = {option.name for option in shared_type.options}
        self.shared = shared_type(**{name: value for name, value in options.items() if name in taken})
        self.options = {name: value for name, value in options.items() if name not in taken}
        if "shared" in entry.traits:
            self.options["shared"] = self.shared
        self.n_built = 0

    def __call__(self, channels: int, *, spatial: tuple[int, ...] | None = None) -> nn.Module:
        layer = self.entry.build(channels, spatial=spatial, **self.options)
        layer.norm_number = self.n_built  # by which a network's norm layers are known
        self.n_built += 1
        return layer


def norm_factory(name: str, **options: Any) -> NormFactory:
    """The factory of a registered norm; options that are not given take their official default."""
    entry = NORMS.get(name)
    return NormFactory(entry, default_values(entry.options) | options)
