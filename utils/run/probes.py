"""Probes: observers that record what the norm layers do in every step, for the figures. `--probe stability,weights`.

    stability   the loss; per layer and over all of them, the cosine similarity of the normalized representation with
                the gradient of the loss with respect to it, and that gradient's magnitude (the paper's Fig. 1)
    statistics  per layer, the Euclidean norms of the batch mean and variance that were used and of the running ones
                (Figs. 4, 6 and 7); where a step has several forwards, the mean of theirs
    weights     per layer, each task's weight in the batch statistics (AdaB2N's p_t, BN's N_t / N; the mean over a
                step's forwards), and its effective weight in the running ones, by their recursion as it really went

They watch through hooks and change no result. What they measure stays on the device until the loop waits anyway, is
part of checkpoints, and ends up as recordings/<probe>.npz in the run's folder; its digest stands in the record.
"""

from __future__ import annotations

import hashlib
import io
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from backbone.norms.batch_norm_family import WeightedBatchNorm
from models.method import Method
from utils.errors import RunFailed, UsageError
from utils.files import write_atomically
from utils.run.observers import Observer
from utils.run.statistics import norm_layers, statistical
from utils.step import Normalization, Output, Step


class Probe(Observer):
    """Rows of named values, one for every step with a loss, or for every `every`-th."""

    name: str

    def __init__(self, method: Method, every: int = 1):
        self.every = every
        self.layers = norm_layers(method.net)
        self.device = next(method.net.parameters()).device
        self.n_tasks = method.spec.n_tasks
        self.fresh: list[dict[str, torch.Tensor]] = []  # on the device, since the loop last waited
        self.rows: dict[str, list[np.ndarray]] = {}
        self.begin()

    def begin(self) -> None:
        """Before a step: forget what hooks have seen."""

    def measure(self, step: Step) -> dict[str, torch.Tensor]:
        """The values of a step. Called for every one, whether or not its row is kept."""
        raise NotImplementedError

    def on_step(self, step):
        values = None if step.loss is None else self.measure(step)
        self.begin()
        if values and step.place.step % self.every == 0:
            place = torch.tensor([step.place.step, step.place.task])
            self.fresh.append({"place": place} | {name: value.detach() for name, value in values.items()})

    def on_log(self, event):
        self._fetch()

    def _fetch(self) -> None:
        for name in self.fresh[0] if self.fresh else ():
            together = torch.stack([row[name] for row in self.fresh]).cpu()
            self.rows.setdefault(name, []).append(together.numpy().astype(np.int64 if name == "place" else np.float32))
        self.fresh = []

    def state_dict(self):
        self._fetch()
        return {name: torch.from_numpy(np.concatenate(chunks)) for name, chunks in self.rows.items()}

    def load_state_dict(self, state):
        self.rows = {name: [rows.numpy()] for name, rows in state.items()}

    def recording(self) -> dict[str, np.ndarray]:
        self._fetch()
        rows = {name: np.concatenate(chunks) for name, chunks in self.rows.items()}
        place = rows.pop("place", np.empty((0, 2), np.int64))
        layers = np.array([name for name, _ in self.layers])
        return rows | {"step": place[:, 0], "task": place[:, 1], "layers": layers}


# --- stability --------------------------------------------------------------------------------------------------------


class Stability(Probe):
    name = "stability"

    def __init__(self, method: Method, every: int = 1):
        if method.keeps_graph:
            raise UsageError(
                "--probe stability needs one gradient a step, and this method takes several: use other probes"
            )
        super().__init__(method, every)
        for number, (_, layer) in enumerate(self.layers):
            layer.register_forward_hook(partial(self._seen, number))

    def begin(self):
        # Of every layer: representation times gradient, and the squared lengths of both.
        self.sums = torch.zeros(len(self.layers), 3, dtype=torch.float64, device=self.device)

    def _seen(self, number: int, layer: nn.Module, inputs, output: torch.Tensor) -> None:
        if layer.training and output.requires_grad:
            gamma, shifted = without_shift(layer, output.detach())
            output.register_hook(partial(self._add, number, gamma, shifted))

    @torch.no_grad()
    def _add(self, number: int, gamma: torch.Tensor | None, shifted: torch.Tensor, gradient: torch.Tensor) -> None:
        """y = gamma a + beta, so y - beta is gamma a, and the gradient with respect to a is gamma dL/dy. Where gamma is
        0, y says nothing of a, which counts as 0 there."""
        gradient = gradient.to(shifted.dtype).reshape(shifted.shape)
        product = torch.linalg.vecdot(shifted, gradient).double()  # (samples, scales), as the two below
        one, other = (torch.linalg.vector_norm(values, dim=-1).double().square() for values in (shifted, gradient))
        if gamma is not None:
            squared = gamma.double().square()
            one, other = torch.where(gamma == 0, 0.0, one / squared), other * squared
        self.sums[number] += torch.stack([product.sum(), one.sum(), other.sum()])

    def measure(self, step):
        each, whole = self.sums, self.sums.sum(0)
        return {
            "loss": step.loss,
            "cosine": cosine(each),
            "magnitude": each[:, 2].sqrt(),
            "cosine_of_all": cosine(whole),
            "magnitude_of_all": whole[2].sqrt(),
        }


def cosine(sums: torch.Tensor) -> torch.Tensor:
    product, one, other = sums.unbind(-1)
    return product / (one * other).sqrt().clamp(min=torch.finfo(sums.dtype).tiny)


def without_shift(layer: nn.Module, output: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
    """The scales of a norm layer (of several in a row, the last one's), and a copy of its output less its shift as
    (samples, scales, values of each): what follows a norm may change its output in place."""
    while isinstance(layer, nn.Sequential):
        layer = layer[-1]
    gamma, beta = (getattr(layer, name, None) for name in ("weight", "bias"))
    if beta is not None and beta.ndim == 1:
        beta = beta.view(-1, *[1] * (output.ndim - 2))
    shifted = output.to(torch.promote_types(output.dtype, torch.float32), copy=beta is None)
    if beta is not None:
        shifted = shifted - beta.detach()
    n_scales = output.shape[1] if gamma is None else gamma.numel()
    gamma = None if gamma is None else gamma.detach().flatten().clone()
    return gamma, shifted.reshape(len(output), n_scales, -1)


# --- statistics -------------------------------------------------------------------------------------------------------


def length(vectors) -> torch.Tensor:
    """(layers,) Euclidean norms."""
    return torch.stack(torch._foreach_norm([vector.detach() for vector in vectors])).double()


def mean_and_variance(activation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every channel, the variance biased. On a CPU far quicker than torch.var, which test-time
    statistics keep for the sake of their last bits."""
    activation = activation.to(torch.promote_types(activation.dtype, torch.float32))
    over = [0, *range(2, activation.ndim)]
    mean = activation.mean(over, keepdim=True)
    return mean.flatten(), (activation - mean).square_().mean(over)


class Statistics(Probe):
    name = "statistics"

    def __init__(self, method: Method, every: int = 1):
        super().__init__(method, every)
        self.parts = statistical(method.net, f"--probe {self.name}")
        for number, part in enumerate(self.parts):
            if isinstance(part, _BatchNorm):  # which does not say what it computed
                part.register_forward_pre_hook(partial(self._compute, number))

    def begin(self):
        self.seen: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in self.layers]

    @torch.no_grad()
    def _compute(self, number: int, part: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if part.training:
            self.seen[number].append(mean_and_variance(inputs[0]))

    def measure(self, step):
        forwards = [norms for norms, _ in forwards_with_batches(step.outputs) if norms.layers]
        for norms in forwards:
            for number, mean, var in zip(norms.layers, norms.means, norms.variances, strict=True):
                self.seen[number].append((mean, var))
        means = [torch.stack([mean.detach().norm() for mean, _ in seen]).mean() for seen in self.seen]
        variances = [torch.stack([var.detach().norm() for _, var in seen]).mean() for seen in self.seen]
        return {
            "batch_mean": torch.stack(means),
            "batch_var": torch.stack(variances),
            "running_mean": length(part.running_mean for part in self.parts),
            "running_var": length(part.running_var for part in self.parts),
        }


# --- weights ----------------------------------------------------------------------------------------------------------


class TaskWeights(Probe):
    name = "weights"

    def __init__(self, method: Method, every: int = 1):
        super().__init__(method, every)
        self.parts = statistical(method.net, f"--probe {self.name}")
        # (tasks, layers): how much of each task is in the running statistics.
        self.effective = torch.zeros(self.n_tasks, len(self.parts), dtype=torch.float64, device=self.device)
        for number, part in enumerate(self.parts):
            part.register_forward_pre_hook(partial(self._note_momentum, number))

    def begin(self):
        self.momenta: list[list[torch.Tensor]] = [[] for _ in self.layers]

    def _note_momentum(self, number: int, part: nn.Module, inputs) -> None:
        """Of the update that follows this forward."""
        if part.training:
            momentum = part.shared.momentum(part) if isinstance(part, WeightedBatchNorm) else part.momentum
            kept = torch.zeros((), dtype=torch.float64, device=self.device)
            self.momenta[number].append(kept + momentum)

    def measure(self, step):
        shares = []
        n_forwards = len(forwards_with_batches(step.outputs))
        if any(len(momenta) != n_forwards for momenta in self.momenta):
            raise RunFailed("--probe weights needs every norm layer in every forward of a step, which is not so here")
        for number, (norms, names) in enumerate(forwards_with_batches(step.outputs)):
            tasks = torch.cat([step.batches[name].tasks for name in names])
            members = (tasks.unsqueeze(1) == torch.arange(self.n_tasks, device=self.device)).double()
            shares.append(self._share(members, norms.sample_weights))
            moved = self._share(members, norms.running_weights)
            momentum = torch.stack([momenta[number] for momenta in self.momenta])
            self.effective = (1 - momentum) * self.effective + momentum * moved
        return {"weight": torch.stack(shares).mean(0), "effective": self.effective}

    def _share(self, members: torch.Tensor, weights: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
        """(tasks, layers) the sum of the samples' weights, from (samples, tasks): is it of the task? A norm that says
        nothing counts them alike."""
        alike = members.mean(0)
        if not weights:
            return alike.unsqueeze(1).expand(-1, len(self.parts))
        return torch.stack([alike if w is None else members.T @ w.detach().double() for w in weights], dim=1)

    def state_dict(self):
        return super().state_dict() | {"_effective": self.effective}

    def load_state_dict(self, state):
        self.effective = state["_effective"].to(self.device)
        super().load_state_dict({name: rows for name, rows in state.items() if name != "_effective"})


def forwards_with_batches(outputs: dict[str, Output]) -> list[tuple[Normalization, list[str]]]:
    """The forwards of a step, with the batches that went through the network in each."""
    found: dict[int, tuple[Normalization, list[str]]] = {}
    for name, output in outputs.items():
        found.setdefault(id(output.norms), (output.norms, []))[1].append(name)
    return list(found.values())


# --- files ------------------------------------------------------------------------------------------------------------

PROBES = {probe.name: probe for probe in (Stability, Statistics, TaskWeights)}


def recording_path(folder: Path, name: str) -> Path:
    return folder / "recordings" / f"{name}.npz"


def write_recording(folder: Path, probe: Probe) -> str:
    """Its digest."""
    content = io.BytesIO()
    np.savez_compressed(content, **probe.recording())
    path = recording_path(folder, probe.name)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, lambda file: file.write(content.getbuffer()))
    return hashlib.sha256(content.getbuffer()).hexdigest()


def has_recording(folder: Path, name: str, record: dict) -> bool:
    """Whether the record has it, and the file is as it was written."""
    digest = record.get("recordings", {}).get(name)
    try:
        with open(recording_path(folder, name), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False


def read_recording(folder: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(recording_path(folder, name), allow_pickle=False) as arrays:
        return dict(arrays)
