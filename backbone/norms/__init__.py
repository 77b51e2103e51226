"""Normalization layers, one file each, built by a factory that a network takes at construction.

A norm is registered under a name and called with the channel count first and keywords after:

    @NORMS.register("gn", options=(GROUPS,))
    def group_norm(channels, *, spatial, shared, groups): ...

`spatial` is the size of the map it will see, () for a vector; `shared` is what the norm layers of one network
have in common (see `backbone.norms.shared`); the rest are the norm's own options.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from utils.config.registry import NORMS, Entry


class NormFactory:
    """Builds the norm layers of one network: `factory(64, spatial=(32, 32))`."""

    def __init__(self, entry: Entry, options: dict[str, Any]):
        from backbone.norms.shared import SharedNormState

        self.entry = entry
        shared_type = entry.traits.get("shared", SharedNormState)
        taken = {option.name for option in shared_type.options}
        self.shared = shared_type(**{name: value for name, value in options.items() if name in taken})
        self.options = {name: value for name, value in options.items() if name not in taken}

    def __call__(self, channels: int, *, spatial: tuple[int, ...]) -> nn.Module:
        return self.entry.build(channels, spatial=spatial, shared=self.shared, **self.options)


def norm_factory(name: str, **options: Any) -> NormFactory:
    """The factory of a registered norm; options that are not given take their official default."""
    from utils.config.arguments import default_values

    entry = NORMS.get(name)
    return NormFactory(entry, default_values(entry.options) | options)
