"""`--compile`: forward pass, loss and backward pass of a step as one graph of `torch.compile`, on CUDA as CUDA graphs.

Numbers that change during a run enter the graph as tensors, so that one graph serves the first task and one all later
tasks; only `--current_share 1/T`, `bn_frozen` and `tbbn` need one for every task. Steps with smaller batches (the first
of a run, the last of an epoch) run uncompiled: a graph for each of their sizes would cost more than it saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call

from models.step_runner import Batches, Computed, Groups
from utils.errors import UsageError
from utils.step import Normalization, Output, StepIndex

if TYPE_CHECKING:
    from models.method import Method

BACKEND = "inductor"
CUDA_OPTIONS = {"triton.cudagraphs": True, "combo_kernels": True}  # one kernel for several small independent ones
MAX_GRAPHS = 256  # above torch's default of 8; the number is bounded by tasks times ways of a step
WITHOUT_HOST_ARRAYS: dict[str, Any] = {"images": None, "labels_host": None, "tasks_host": None}  # no loss uses them

Buffers = dict[str, torch.Tensor]


class CompiledStep:
    """Computes the same as `StepRunner.compute`, as one graph, with the backward pass as another."""

    def __init__(self, method: Method):
        parameter = next(method.net.parameters())
        require_compiler(parameter.device)
        self.method, self.graph = method, compile_method(method)
        self.dtype, self.device = parameter.dtype, parameter.device
        for value in method.state_dict().values():
            if isinstance(value, torch.Tensor):
                torch._dynamo.mark_static_address(value)  # `loss` may write to it
        self.buffers: Buffers = {}
        self.new_buffers: Buffers = {}
        self.tasks_begun = -1

    def compute(self, batches: Batches, groups: Groups, index: StepIndex, penalty_weight: float | None) -> Computed:
        """Return outputs (logits and embedding) and loss terms, detached, and the loss. Buffers are unchanged."""
        torch.compiler.cudagraph_mark_step_begin()
        if self.tasks_begun != self.method.tasks_begun:  # a new task may have added buffers
            self.tasks_begun = self.method.tasks_begun
            # Buffers without dimensions get one: torch traces them as Python numbers on CPUs first, and then again.
            self.buffers = {name: torch.atleast_1d(buffer) for name, buffer in self.method.net.named_buffers()}
            for buffer in self.buffers.values():
                torch._dynamo.mark_static_address(buffer)
        stripped = {name: replace(batch, **WITHOUT_HOST_ARRAYS) for name, batch in batches.items()}
        stage = StepIndex(task=min(index.task, 1), step=0)  # with other numbers, every task would need a graph
        weight = penalty_weight and torch.full((1,), penalty_weight, dtype=self.dtype, device=self.device)
        with self.method.net.norms.stacked_for_compile():
            outputs, terms, loss, self.new_buffers = self.graph(stripped, groups, stage, weight, self.buffers)
        return outputs, terms, loss

    @torch.no_grad()
    def commit_buffers(self) -> None:
        """Write the values of the forward pass into the network's buffers, after the backward pass."""
        for dtype in {buffer.dtype for buffer in self.buffers.values()}:  # buffers of one type in one operation
            names = [name for name, buffer in self.buffers.items() if buffer.dtype == dtype]
            torch._foreach_copy_([self.buffers[name] for name in names], [self.new_buffers[name] for name in names])
        self.new_buffers = {}


class MethodModule(nn.Module):
    """A method's computation as a module, for `functional_call` with other buffers."""

    def __init__(self, method: Method):
        super().__init__()
        self.net, self.compute = method.net, method.runner.compute

    def forward(self, *arguments: Any) -> Computed:
        return self.compute(*arguments)


def compile_method(method: Method) -> Callable[..., Any]:
    """Return the compiled computation of a method, with the network's buffers as an argument and a result."""
    module = MethodModule(method)
    scalars = tuple(name for name, buffer in module.named_buffers() if not buffer.dim())

    def run(batches: Batches, groups: Groups, index: StepIndex, weight: torch.Tensor | None, buffers: Buffers) -> Any:
        # With copies of the buffers: torch's partitioner may recompute in the backward pass what depends on buffers
        # (pytorch/pytorch#197039), which would be wrong if they had been written to.
        buffers = {f"net.{name}": buffer.clone() for name, buffer in buffers.items()}
        buffers |= {name: buffers[name].squeeze(0) for name in scalars}
        weight = None if weight is None else weight.squeeze(0)
        outputs, terms, loss = functional_call(module, buffers, (batches, groups, index, weight), tie_weights=False)
        outputs = {n: Output(o.logits.detach(), o.embedding.detach(), (), Normalization()) for n, o in outputs.items()}
        terms = {name: term.detach() for name, term in terms.items()}
        return outputs, terms, loss, {n.removeprefix("net."): torch.atleast_1d(b) for n, b in buffers.items()}

    torch._dynamo.config.specialize_float = True  # floats of a configuration do not change
    on_cuda = next(method.net.parameters()).device.type == "cuda" and BACKEND == "inductor"
    options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "recompile_limit": MAX_GRAPHS}
    options |= {"options": CUDA_OPTIONS if on_cuda else None, "isolate_recompiles": True}
    return torch.compile(run, backend=BACKEND, **options)


def require_compiler(device: torch.device) -> None:
    """Raise before the run begins, instead of at its second step."""
    if device.type == "cuda" and find_spec("triton") is None:
        raise UsageError("--compile needs Triton on CUDA, which is not installed; remove the flag")
    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"--compile needs a C++ compiler ({reason}); install g++, or remove the flag") from None
