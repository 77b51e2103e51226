"""Normalization layers, one file each, built by a factory that a network takes at construction.

A norm is registered under a name and called with the channel count first and keywords after:

    @NORMS.register("gn", options=(GROUPS,))
    def group_norm(channels, *, spatial, groups): ...

`spatial` is the size of the map it will see, () for a vector, None if the network does not say; the rest are the
norm's own options. A norm that registers a class with `shared=` gets an object of it instead of options: what the norm
layers of one network have in common (see `backbone.norms.shared`).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from backbone.norms.shared import SharedNormState
from utils.config.options import ByFidelity, Option, by_fidelity, choice
from utils.config.registry import NORMS, Entry


def fidelity_option(name: str, official: str, paper: str, help: str) -> Option:
    """Return an option with two values: `--fidelity official` chooses the released code's, `paper` the paper's."""
    return Option(name, choice(official, paper), help, default=ByFidelity(official=official, paper=paper))


class NormFactory:
    """Builds the norm layers of one network: `factory(64, spatial=(32, 32))`, or `norm_layer=factory`."""

    def __init__(self, entry: Entry, options: dict[str, Any]):
        self.entry = entry
        if "shared" in entry.traits:
            self.shared: SharedNormState = entry.traits["shared"](**options)
            self.options: dict[str, Any] = {"shared": self.shared}
        else:
            self.shared, self.options = SharedNormState(), options
        self.n_built = 0

    def __call__(self, channels: int, *, spatial: tuple[int, ...] | None = None) -> nn.Module:
        layer = self.entry.build(channels, spatial=spatial, **self.options)
        layer.norm_number = self.n_built  # by which a network's norm layers are known
        self.n_built += 1
        return layer


def norm_factory(name: str, **options: Any) -> NormFactory:
    """Return the factory of a registered norm; options that are not given take their official default."""
    entry = NORMS.get(name)
    defaults = {option.name: by_fidelity(option.default, "official") for option in entry.options}
    return NormFactory(entry, defaults | options)
