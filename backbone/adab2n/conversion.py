"""Functions on whole models: replace BatchNorm, and collect what the layers computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .adab2n import AdaB2N, AdaB2N1d, AdaB2N2d, AdaB2N3d
from .continual_norm import CN
from .statistics import estimate_statistics
from .tbbn import TBBN

Model = TypeVar("Model", bound=nn.Module)
PLAIN = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
ADAB2N = {1: AdaB2N1d, 2: AdaB2N2d, 3: AdaB2N3d}


def convert(model: Model, norm: str, **options: Any) -> Model:
    """Replace every BatchNorm of a model, or what it was converted to before, and return the model.

    Parameters, running statistics, eps, momentum, data type, device and training mode are kept.

    Args:
        model: Any network. If it is a BatchNorm itself, the new layer is returned.
        norm: "adab2n", "cn", "tbbn", or "bn" to go back to BatchNorm.
        options: Further arguments of the new layers, such as `kappa=0.5`.

    Example:
        >>> net = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "adab2n", kappa=0.5)
        >>> type(net[1]).__name__
        'AdaB2N2d'
    """
    if norm not in ("adab2n", "cn", "tbbn", "bn"):
        raise ValueError(f"norm must be one of adab2n, cn, tbbn, bn (got {norm!r})")
    replaced: dict[nn.Module, nn.Module] = {}  # a layer that a model uses twice is replaced by one layer

    def visit(module: nn.Module) -> nn.Module:
        if isinstance(module, _BatchNorm) and module not in replaced:
            replaced[module] = _replacement(module, norm, options)
        if module in replaced:
            return replaced[module]
        for name, child in module._modules.items():
            if child is not None and (new := visit(child)) is not child:
                setattr(module, name, new)
        return module

    converted = visit(model)
    if not replaced:
        raise ValueError("the model has no BatchNorm layer")
    return converted  # type: ignore[return-value]


def _replacement(layer: _BatchNorm, norm: str, options: dict[str, Any]) -> nn.Module:
    dimensions = _dimensions(layer)
    if dimensions is None:
        raise ValueError(f"{type(layer).__name__} cannot be converted; convert the model before other conversions")
    if layer.running_mean is None:
        raise ValueError("a BatchNorm with track_running_stats=False cannot be converted")
    arguments: dict[str, Any] = {"eps": layer.eps, "affine": layer.affine}
    arguments |= {"device": layer.running_mean.device, "dtype": layer.running_mean.dtype}
    momentum = None if isinstance(layer, AdaB2N) and layer.kappa == 0 else layer.momentum
    new: nn.Module
    if norm == "adab2n":
        # BatchNorm's momentum=None is the cumulative average, kappa = 0.
        average = {"kappa": 0.0} if momentum is None else {"eta": momentum}
        new = ADAB2N[dimensions](layer.num_features, **(arguments | average | options))
    else:
        types: dict[str, type[nn.Module]] = {"cn": CN, "tbbn": TBBN, "bn": PLAIN[dimensions]}
        new = types[norm](layer.num_features, **(arguments | {"momentum": momentum} | options))
    new.dimensions = dimensions  # type: ignore[assignment]
    new.weight, new.bias = layer.weight, layer.bias
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        setattr(new, name, getattr(layer, name))
    new.train(layer.training)
    # Some libraries have the activation inside their BatchNorm.
    activations = [child for child in layer.children() if not isinstance(child, nn.ParameterList)]
    return nn.Sequential(new, *activations) if activations else new


def _dimensions(layer: _BatchNorm) -> int | None:
    """Return how many dimensions the layer has beside samples and channels."""
    for dimensions in (1, 2, 3):
        if isinstance(layer, PLAIN[dimensions] | ADAB2N[dimensions]):
            return dimensions
    return getattr(layer, "dimensions", 2) if isinstance(layer, CN | TBBN | AdaB2N) else None


def _adab2n_layers(model: nn.Module) -> dict[str, AdaB2N]:
    layers = {name: module for name, module in model.named_modules() if isinstance(module, AdaB2N)}
    if not layers:
        raise ValueError('the model has no AdaB²N layer; call convert(model, "adab2n") first')
    return layers


def penalty(model: nn.Module) -> Tensor:
    """Return the penalty of the last training forward pass (Eq. 15), summed over the layers, to be added to the loss.

    The paper gives it the weight lambda, and the released code adds it in steps that replay. Call it before the next
    forward pass.
    """
    return torch.stack([layer.penalty() for layer in _adab2n_layers(model).values()]).sum()


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the (tasks,) task weights p_t of the last batch (Eq. 14) by name of the layer."""
    layers = _adab2n_layers(model).items()
    return {name: layer.task_weights.detach() for name, layer in layers if layer.task_weights is not None}


def new_parameters(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> list[nn.Parameter]:
    """Return the parameters psi that the optimizer does not have yet; `tasks` adds one per layer for a new task.

    Args:
        optimizer: Without it, the parameters that no earlier call has returned.

    Example:
        >>> model = convert(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), "adab2n")
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with tasks([0, 0, 1]):
        ...     out = model(torch.randn(3, 4))
        >>> optimizer.add_param_group({"params": new_parameters(model, optimizer)})
        >>> len(new_parameters(model, optimizer))
        0
    """
    if optimizer is not None:
        present = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [psi for layer in _adab2n_layers(model).values() for psi in layer.psi if id(psi) not in present]
    new = []
    for layer in _adab2n_layers(model).values():
        new += list(layer.psi)[layer.n_returned :]
        layer.n_returned = len(layer.psi)
    return new


def reestimate(model: nn.Module, loader: Iterable[Any], weights: Callable[[Any], Tensor] | None = None) -> None:
    """Recompute the running statistics of all BatchNorm, AdaB²N, CN and TBBN layers in one pass over data.

    In the pass every layer normalizes with the statistics of the batch. The result is the plain average of the
    batches' means and biased variances.

    Args:
        model: Put into eval mode for the pass, and back.
        loader: Yields batches: a tensor of inputs, or a tuple or list that starts with it.
        weights: Returns, for a batch of the loader, (N,) weights of its samples, which sum to 1; by default all
            samples have the same weight. `balanced_weights(ids)` gives all tasks of a batch the same weight.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), estimate_statistics(layers) as estimates:
            for batch in loader:
                estimates.weights = None if weights is None else weights(batch)
                model(batch[0] if isinstance(batch, tuple | list) else batch)
    finally:
        for module, training in modes.items():
            module.training = training
    estimates.apply()
