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
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._dynamo.utils import counters
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from models.step_runner import Batches, Computed, Groups
from utils.errors import UsageError
from utils.step import Normalization, Output, StepIndex

if TYPE_CHECKING:
    from models.method import Method

BACKEND = "inductor"
CUDA_OPTIONS = {"triton.cudagraphs": True, "combo_kernels": True}  # one kernel for several small independent ones
MAX_GRAPHS = 256  # above torch's default of 8; the number is bounded by tasks times ways of a step
MAX_TASK_GRAPHS = 4  # more new ones in a task mean one for every step
WITHOUT_HOST_ARRAYS: dict[str, Any] = {"images": None, "labels_host": None, "tasks_host": None}  # no loss uses them

Buffers = dict[str, torch.Tensor]


class CompiledStep:
    """Computes the same as `StepRunner.compute`, as one graph, with the backward pass as another."""

    def __init__(self, method: Method):
        parameter = next(method.net.parameters())
        require_compiler(parameter.device)
        self.method, self.graph = method, compile_method(method)
        self.dtype, self.device = parameter.dtype, parameter.device
        self.buffers: Buffers = {}
        self.new_buffers: Buffers = {}
        self.state: list[torch.Tensor] = []  # tensors in the method's attributes, which `loss` may write to
        self.new_state: list[torch.Tensor] = []
        self.tasks_begun, self.task_graphs = -1, 0

    def compute(self, batches: Batches, groups: Groups, index: StepIndex, penalty_weight: float | None) -> Computed:
        """Return outputs (logits and embedding) and loss terms, detached, and the loss. No state changes yet."""
        torch.compiler.cudagraph_mark_step_begin()
        if self.tasks_begun != self.method.tasks_begun:  # a new task may have added buffers
            self.tasks_begun, self.task_graphs = self.method.tasks_begun, 0
            # Buffers without dimensions get one: torch traces them as Python numbers on CPUs first, and then again.
            self.buffers = {name: torch.atleast_1d(buffer) for name, buffer in self.method.net.named_buffers()}
            for buffer in self.buffers.values():
                torch._dynamo.mark_static_address(buffer)
        stripped = {name: replace(batch, **WITHOUT_HOST_ARRAYS) for name, batch in batches.items()}
        stage = StepIndex(task=min(index.task, 1), step=0)  # with other numbers, every task would need a graph
        weight = penalty_weight and torch.full((1,), penalty_weight, dtype=self.dtype, device=self.device)
        attributes = self._attributes()
        of_network = {*map(id, self.method.net.buffers())}  # which are committed as `new_buffers`
        leaves = [leaf for leaves in attributes.values() for leaf in leaves if id(leaf) not in of_network]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for tensor in tensors:
            torch._dynamo.mark_static_address(tensor)
        self.state = [tensor.data for tensor in tensors]  # autograd does not see who writes to them
        old_state = [tensor.clone() for tensor in self.state]
        outputs, terms, loss, self.new_buffers = self._run(attributes, stripped, groups, stage, weight, self.buffers)
        # Until the backward pass is over, the state is as before: the pass may compute values anew from it.
        self.new_state = [tensor.clone() for tensor in self.state]
        copy_all(self.state, old_state)
        return outputs, terms, loss

    def _attributes(self) -> dict[str, list[Any]]:
        """Return what the method's attributes hold by name, nested dictionaries and lists flattened."""
        return {name: tree_leaves(value) for name, value in vars(self.method).items()}

    def _run(self, attributes: dict[str, list[Any]], *arguments: Any) -> Any:
        """Call the graph. Raise UsageError if there is none, or if every step would need its own."""
        n_graphs = counters["stats"]["unique_graphs"]
        try:
            with self.method.net.norms.stacked_for_compile():
                results = self.graph(*arguments)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            reason = str(error).strip().splitlines()[0]
            raise self._unsuitable(f"cannot become one graph ({reason}); use tensor operations") from error
        self.task_graphs += counters["stats"]["unique_graphs"] - n_graphs
        if self.task_graphs > MAX_TASK_GRAPHS:
            raise self._unsuitable("reads a number that changes with every step; keep it in a tensor")
        for name, leaves in self._attributes().items():
            if [*map(id, leaves)] != [*map(id, attributes.get(name, ()))]:
                raise self._unsuitable(
                    f"assigns to self.{name}; write to tensors in place, such as tensor.copy_(value)"
                )
        return results

    def _unsuitable(self, reason: str) -> UsageError:
        return UsageError(f"--compile: `loss` of --model {self.method.config.model} {reason}, or remove --compile")

    @torch.no_grad()
    def commit(self) -> None:
        """Write the values of the forward pass into the network's buffers and the method, after the backward pass."""
        new_buffers = [self.new_buffers[name] for name in self.buffers]
        copy_all([*self.buffers.values(), *self.state], [*new_buffers, *self.new_state])
        self.new_buffers, self.new_state = {}, []


def copy_all(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for dtype in {tensor.dtype for tensor in targets}:  # tensors of one type in one operation
        pairs = [(target, value) for target, value in zip(targets, values, strict=True) if target.dtype == dtype]
        torch._foreach_copy_([target for target, _ in pairs], [value for _, value in pairs])


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
