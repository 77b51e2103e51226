"""`--probe stability,weights`: observers that record what the norm layers do in every step, for the figures.

    stability   the loss; per layer and over all layers, the cosine similarity of the normalized representation with
                the gradient of the loss with respect to it, and the magnitude of that gradient (Fig. 1 of the paper)
    statistics  per layer, the Euclidean norms of mean and variance of the batch and of the running ones (Figs. 4, 6
                and 7); the mean over a step's forward passes
    weights     per layer, each task's weight in the batch statistics (AdaB2N's p_t, BN's N_t / N; the mean over a
                step's forward passes), and its effective weight in the running statistics, by their actual updates

Probes use hooks and change no result. Values stay on the device until the loop syncs anyway, are part of checkpoints,
and are written to recordings/<probe>.npz in the run's folder. The record has the digest of the file.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from backbone.adab2n.statistics import batch_input
from backbone.adab2n.tbbn import TBBN
from backbone.network import Network
from backbone.norms.family import FamilyBatchNorm
from models.method import Method
from utils.config.registry import OBSERVERS
from utils.errors import RunFailed, UsageError
from utils.files import write_atomically
from utils.run.eval_statistics import StatLayer, batch_stat_layers, norm_layers
from utils.run.observers import Observer
from utils.step import Normalization, Output, Step


class Probe(Observer):
    """Rows of named values, one for every step with a loss; they are written to a recording."""

    def __init__(self, method: Method):
        super().__init__(method)
        self.layers = norm_layers(method.net)
        self.device = next(method.net.parameters()).device
        self.n_tasks = method.spec.n_tasks
        self.fresh: list[dict[str, torch.Tensor]] = []  # on the device, since the last log line
        self.rows: dict[str, list[np.ndarray]] = {}
        self.begin()

    def begin(self) -> None:
        """Forget what hooks have seen, before a step."""

    def measure(self, step: Step) -> dict[str, torch.Tensor]:
        """Return the values of a step."""
        raise NotImplementedError

    def on_step(self, step: Step) -> None:
        values = None if step.loss is None else self.measure(step)
        self.begin()
        if values:
            place = torch.tensor([step.index.step, step.index.task])
            self.fresh.append({"place": place} | {name: value.detach() for name, value in values.items()})

    def on_log(self, event: dict[str, Any]) -> None:
        for name in self.fresh[0] if self.fresh else ():
            values = torch.stack([row[name] for row in self.fresh]).cpu().numpy()
            values = values.astype(np.int64 if name == "place" else np.float32)
            self.rows.setdefault(name, []).append(values)
        self.fresh = []

    def state_dict(self) -> dict[str, Any]:
        self.on_log({})
        return {name: torch.from_numpy(np.concatenate(parts)) for name, parts in self.rows.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = {name: [rows.numpy()] for name, rows in state.items()}

    def recording(self) -> dict[str, np.ndarray]:
        rows = {name: tensor.numpy() for name, tensor in Probe.state_dict(self).items()}
        step, task = rows.pop("place", np.empty((0, 2), np.int64)).T
        return rows | {"step": step, "task": task, "layers": np.array([name for name, _ in self.layers])}


@OBSERVERS.register("stability", help="loss, and similarity of representation and gradient of every norm layer")
class Stability(Probe):
    name = "stability"

    def __init__(self, method: Method):
        if method.keeps_graph:
            raise UsageError("--probe stability needs one gradient per step, this method has several; remove it")
        super().__init__(method)
        for number, (_, layer) in enumerate(self.layers):
            layer.register_forward_hook(partial(self._seen, number))

    def begin(self) -> None:
        # Of every layer: representation times gradient, and the squared lengths of both.
        self.sums = torch.zeros(len(self.layers), 3, dtype=torch.float64, device=self.device)

    def _seen(self, number: int, layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if layer.training and output.requires_grad:
            gamma, shifted = without_shift(layer, output.detach())
            output.register_hook(partial(self._add, number, gamma, shifted))

    @torch.no_grad()
    def _add(self, number: int, gamma: torch.Tensor | None, shifted: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add the sums of one forward pass.

        y = gamma a + beta, so y - beta is gamma a, and the gradient with respect to a is gamma dL/dy. Where gamma is 0,
        a cannot be computed from y and counts as 0.
        """
        gradient = gradient.to(shifted.dtype).reshape(shifted.shape)
        product = torch.linalg.vecdot(shifted, gradient).double()  # (samples, scales), as the two below
        a_squared, g_squared = (torch.linalg.vector_norm(x, dim=-1).double().square() for x in (shifted, gradient))
        if gamma is not None:
            scale = gamma.double().square()
            a_squared, g_squared = torch.where(gamma == 0, 0.0, a_squared / scale), g_squared * scale
        self.sums[number] += torch.stack([product.sum(), a_squared.sum(), g_squared.sum()])

    def measure(self, step: Step) -> dict[str, torch.Tensor]:
        assert step.loss is not None
        product, a_squared, g_squared = torch.cat([self.sums, self.sums.sum(0, keepdim=True)]).unbind(1)
        cosine = product / (a_squared * g_squared).sqrt().clamp(min=torch.finfo(product.dtype).tiny)
        by_layer = {"cosine": cosine, "magnitude": g_squared.sqrt()}
        of_all = {f"{name}_of_all": values[-1] for name, values in by_layer.items()}
        return {"loss": step.loss} | {name: values[:-1] for name, values in by_layer.items()} | of_all


def without_shift(layer: nn.Module, output: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the scales of a norm layer (the last of a sequence), and its output minus its shift.

    The latter is a copy (samples, scales, values of each), since later layers may change the output in place.
    """
    while isinstance(layer, nn.Sequential):
        layer = layer[-1]
    gamma, beta = (getattr(layer, name, None) for name in ("weight", "bias"))
    if beta is not None and beta.ndim == 1:
        beta = beta.view(-1, *[1] * (output.ndim - 2))
    shifted = output.to(torch.promote_types(output.dtype, torch.float32), copy=beta is None)
    if beta is not None:
        shifted = shifted - beta.detach()
    if gamma is None:
        return None, shifted.reshape(*shifted.shape[:2], -1)
    return gamma.detach().flatten().clone(), shifted.reshape(len(shifted), gamma.numel(), -1)


def layers_with_one_normalization(net: Network, feature: str) -> list[StatLayer]:
    """Return the layers with batch statistics; raise UsageError if they normalize a batch in several ways."""
    layers = batch_stat_layers(net, feature)
    if any(isinstance(layer, TBBN) for layer in layers):
        raise UsageError(f"{feature} records one mean per batch, --norm tbbn has several; remove it or change the norm")
    return layers


@OBSERVERS.register("statistics", help="lengths of batch and running statistics of every norm layer")
class Statistics(Probe):
    name = "statistics"

    def __init__(self, method: Method):
        super().__init__(method)
        self.parts = layers_with_one_normalization(method.net, f"--probe {self.name}")
        for number, part in enumerate(self.parts):
            if isinstance(part, _BatchNorm):  # which does not report its statistics
                part.register_forward_pre_hook(partial(self._compute, number))

    def begin(self) -> None:
        self.seen: list[list[Sequence[torch.Tensor]]] = [[] for _ in self.layers]

    @torch.no_grad()
    def _compute(self, number: int, part: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        """Store mean and biased variance of every channel, on a CPU far quicker than with torch.var."""
        if part.training:
            values = batch_input(part, inputs[0])
            values = values.to(torch.promote_types(values.dtype, torch.float32))
            over = [0, *range(2, values.ndim)]
            mean = values.mean(over, keepdim=True)
            self.seen[number].append((mean.flatten(), (values - mean).square_().mean(over)))

    def measure(self, step: Step) -> dict[str, torch.Tensor]:
        for norms, _ in forwards_with_batches(step.outputs):
            for number, *pair in zip(norms.layers, norms.means, norms.variances, strict=True):
                self.seen[number].append(pair)
        values: dict[str, torch.Tensor] = {}
        for which, name in enumerate(("mean", "var")):
            batches = [torch.stack([pair[which].detach().norm() for pair in seen]).mean() for seen in self.seen]
            running = torch._foreach_norm([part.get_buffer(f"running_{name}") for part in self.parts])
            values |= {f"batch_{name}": torch.stack(batches), f"running_{name}": torch.stack(running).double()}
        return values


@OBSERVERS.register("weights", help="weights of the tasks in the statistics of every norm layer")
class TaskWeights(Probe):
    name = "weights"

    def __init__(self, method: Method):
        super().__init__(method)
        self.parts = layers_with_one_normalization(method.net, f"--probe {self.name}")
        # (tasks, layers): how much of each task is in the running statistics.
        self.effective = torch.zeros(self.n_tasks, len(self.parts), dtype=torch.float64, device=self.device)
        for number, part in enumerate(self.parts):
            part.register_forward_pre_hook(partial(self._store_momentum, number))

    def begin(self) -> None:
        self.momenta: list[list[torch.Tensor]] = [[] for _ in self.layers]

    def _store_momentum(self, number: int, part: Any, inputs: Any) -> None:
        """Store the momentum of the update that follows this forward pass."""
        if part.training:
            momentum = part.shared.momentum(part) if isinstance(part, FamilyBatchNorm) else part.momentum
            self.momenta[number].append(torch.zeros((), dtype=torch.float64, device=self.device) + momentum)

    def measure(self, step: Step) -> dict[str, torch.Tensor]:
        shares, forwards = [], forwards_with_batches(step.outputs)
        if any(len(momenta) != len(forwards) for momenta in self.momenta):
            raise RunFailed("--probe weights needs every norm layer in every forward pass of a step; remove it")
        for number, (norms, names) in enumerate(forwards):
            tasks = torch.cat([step.batches[name].tasks for name in names])
            members = (tasks.unsqueeze(1) == torch.arange(self.n_tasks, device=self.device)).double()
            shares.append(self._share(members, norms.sample_weights))
            update = self._share(members, norms.running_weights)
            momentum = torch.stack([momenta[number] for momenta in self.momenta])
            self.effective = (1 - momentum) * self.effective + momentum * update
        return {"weight": torch.stack(shares).mean(0), "effective": self.effective}

    def _share(self, members: torch.Tensor, weights: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
        """Return the sum (tasks, layers) of the samples' weights by task; equal weights if the norm reports none.

        `members` (samples, tasks) is 1 where the sample is of the task.
        """
        equal = members.mean(0)
        if not weights:
            return equal.unsqueeze(1).expand(-1, len(self.parts))
        return torch.stack([equal if w is None else members.T @ w.detach().double() for w in weights], dim=1)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"_effective": self.effective}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows = dict(state)
        self.effective = rows.pop("_effective").to(self.device)
        super().load_state_dict(rows)


def forwards_with_batches(outputs: dict[str, Output]) -> list[tuple[Normalization, list[str]]]:
    """Return the forward passes of a step, with the names of the batches in each."""
    passes: dict[int, tuple[Normalization, list[str]]] = {}
    for name, output in outputs.items():
        passes.setdefault(id(output.norms), (output.norms, []))[1].append(name)
    return list(passes.values())


def recording_path(folder: Path, name: str) -> Path:
    return folder / "recordings" / f"{name}.npz"


def write_recording(folder: Path, probe: Probe) -> str:
    """Write the recording and return the file's SHA-256."""
    path, content, arrays = recording_path(folder, probe.name), io.BytesIO(), cast("dict[str, Any]", probe.recording())
    np.savez_compressed(content, **arrays)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, lambda file: file.write(content.getbuffer()))
    return hashlib.sha256(content.getbuffer()).hexdigest()


def has_recording(folder: Path, name: str, record: dict) -> bool:
    """Return whether a run has the recording, unchanged; of an observer that records nothing, whether it had that."""
    if not issubclass(OBSERVERS.get(name).build, Probe):
        return name in record["config"].get("probe", ())
    path, digest = recording_path(folder, name), record.get("recordings", {}).get(name)
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def read_recording(folder: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(recording_path(folder, name), allow_pickle=False) as arrays:
        return dict(arrays)
