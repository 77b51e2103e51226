"""`--compile`: forward, loss and backward of a step as one graph of `torch.compile`, on CUDA replayed as CUDA graphs.

What the host decides stays outside: draws, augmentation, groups of samples, the optimizer and the buffer. The graph
takes tensors and gives tensors. Numbers of the host that change during a run enter it as tensors or not at all, so that
a graph serves a whole run: there is one for steps of the first task and one for later ones, or one for all. More come
only with `--current_share 1/T`, whose draws have another size in every task, and with `bn_frozen`, whose layers know
the number of tasks: one for every task.

Steps that are not `full` (a run's first, an epoch's last batch if smaller) are computed as without `--compile`: a graph
for each of their sizes would cost more than it saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.func import functional_call

from utils.errors import UsageError
from utils.step import Batch, Output

if TYPE_CHECKING:
    from models.method import Method

BACKEND = "inductor"
GRAPHS = 256  # tasks times ways; torch's own limit of 8 is for those who do not count


@dataclass(frozen=True)
class Stage:
    """All that a graph knows of a step's place: with the task's number it would have to be another in every task."""

    first_task: bool


class CompiledStep:
    """`method.compute` as one graph, and its backward as another."""

    def __init__(self, method: Method):
        self.like = next(method.net.parameters())
        refuse_without_compiler(self.like.device)
        self.method, self.graph = method, compiled(method)
        for tensor in method.state_dict().values():
            torch._dynamo.mark_static_address(tensor)  # `loss` may write to it
        self.weights: dict[float, torch.Tensor] = {}
        self.moved: dict[str, torch.Tensor] = {}
        self.n_grown = -1

    def compute(self, batches, groups, place, penalty_weight):
        """As `method.compute`, but outputs and terms have no gradients, and the network's buffers are as before."""
        torch.compiler.cudagraph_mark_step_begin()
        bare = {name: without_host(batch) for name, batch in batches.items()}
        if self.n_grown != self.method.n_grown:
            self._find_buffers()
        with self.method.net.norms.grown_as_tensors():
            stage, weight = Stage(place.first_task), self._on_device(penalty_weight)
            *found, self.moved = self.graph(bare, groups, stage, weight, self.buffers)
        return found

    def _find_buffers(self) -> None:
        """A new task may have brought new ones; then they stay where they are, and a captured graph reads them there.
        Those without axes are given one: else, on CPUs, they are taken for numbers first, and all is traced twice."""
        self.n_grown = self.method.n_grown
        self.buffers = {name: torch.atleast_1d(buffer) for name, buffer in self.method.net.named_buffers()}
        for buffer in self.buffers.values():
            torch._dynamo.mark_static_address(buffer)

    @torch.no_grad()
    def move(self) -> None:
        """The buffers to where the forward has brought them, once the backward is over."""
        for dtype in {buffer.dtype for buffer in self.buffers.values()}:  # of one type, all are copied at once
            names = [name for name, buffer in self.buffers.items() if buffer.dtype == dtype]
            torch._foreach_copy_([self.buffers[name] for name in names], [self.moved[name] for name in names])
        self.moved = {}

    def _on_device(self, weight: float | None) -> torch.Tensor | None:
        if weight is not None and weight not in self.weights:
            self.weights[weight] = torch.tensor([weight], dtype=self.like.dtype, device=self.like.device)
        return None if weight is None else self.weights[weight]


def compiled(method: Method) -> Callable:
    whole = Whole(method)
    single = tuple(name for name, buffer in whole.named_buffers() if not buffer.dim())

    def run(batches, groups, stage, penalty_weight, buffers):
        """Buffers are not written to: torch's partitioner may compute anew in the backward what depends on them
        (pytorch/pytorch#197039), from what would then be the moved ones."""
        buffers = {f"net.{name}": buffer.clone() for name, buffer in buffers.items()}
        buffers |= {name: buffers[name].squeeze(0) for name in single}
        penalty_weight = penalty_weight if penalty_weight is None else penalty_weight.squeeze(0)
        outputs, losses, loss = functional_call(
            whole, buffers, (batches, groups, stage, penalty_weight), tie_weights=False
        )
        return (
            {name: detached(output) for name, output in outputs.items()},
            {name: term.detach() for name, term in losses.items()},
            loss,
            {name.removeprefix("net."): torch.atleast_1d(buffer) for name, buffer in buffers.items()},
        )

    torch._dynamo.config.specialize_float = True  # those of a configuration do not change
    on_cuda = next(method.net.parameters()).device.type == "cuda" and BACKEND == "inductor"
    return torch.compile(
        run,
        backend=BACKEND,
        mode="reduce-overhead" if on_cuda else None,
        fullgraph=True,
        dynamic=False,
        isolate_recompiles=True,
        recompile_limit=GRAPHS,
    )


def refuse_without_compiler(device: torch.device) -> None:
    """Before a run begins, not at its second step."""
    if device.type == "cuda" and find_spec("triton") is None:
        raise UsageError("--compile needs Triton on CUDA, which is not installed: leave it out")
    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"--compile needs a C++ compiler on a CPU ({reason}): install g++, or leave it out"
            ) from None


class Whole(nn.Module):
    """A method's computation as a module, whose buffers can be given."""

    def __init__(self, method: Method):
        super().__init__()
        self.net, self.compute = method.net, method.compute

    def forward(self, *arguments):
        return self.compute(*arguments)


def without_host(batch: Batch) -> Batch:
    """The tensors that a loss is made of."""
    return replace(batch, images=None, labels_host=None, tasks_host=None)


def detached(output: Output) -> Output:
    """Without the maps, which only LiDER looks at. An output with a gradient of its own would be one more way through
    the backward, whether or not anything comes that way."""
    norms = output.norms
    tuples = {
        name: tuple(tensor if tensor is None else tensor.detach() for tensor in getattr(norms, name))
        for name in ("means", "variances", "sample_weights", "running_weights")
    }
    single = {
        name: tensor.detach() for name in ("group_weights", "penalty") if (tensor := getattr(norms, name)) is not None
    }
    return Output(output.logits.detach(), output.embedding.detach(), (), replace(norms, **tuples, **single))
