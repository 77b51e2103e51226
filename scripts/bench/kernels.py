"""operations that a plain step dispatches, against kernels and library calls of a compiled step

Forward pass, loss and backward pass of a step of the second task; optimizer, draws and buffer are the same in both.
Views are not counted. The compiled step is counted in the code that Inductor generates.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scripts.bench import common
from utils.run.training import Training

# Calls in the code that Inductor generates, one a line: of its own kernels, and of libraries.
KERNEL = re.compile(r"^\s+(?:\w+ = )?(?:cpp_fused\w*|triton_\w+)(?:\.run)?\(", re.MULTILINE)
LIBRARY = re.compile(r"^\s+(?:\w+ = )?(?:extern_kernels\.\w+|torch\.ops\.\w+\.[\w.]+)\(", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=16, help="--num_filters (default 16); changes no count")
    parser.add_argument("--models", nargs="+", default=["er_ace", "derpp"], help="(default er_ace derpp)")
    parser.add_argument("--norms", nargs="+", default=["bn", "gn", "cn", "adab2n"], help="(default bn gn cn adab2n)")


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, int]]]:
    for model, norm in product(arguments.models, arguments.norms):
        options = {"model": model, "norm": norm, "num_filters": arguments.width}
        options |= common.norm_options(norm, arguments.width)
        plain, compiled = (common.training_in_second_task(**options, compile=way) for way in (False, True))
        forward_and_backward(plain)  # creates constants
        with Operations() as operations:
            forward_and_backward(plain)
        code = generated_code(compiled)
        calls = {"kernels": len(KERNEL.findall(code)), "library_calls": len(LIBRARY.findall(code))}
        yield f"{model}, {norm}", {"operations": operations.names.total(), **calls}


def forward_and_backward(training: Training) -> None:
    method = training.method
    batch, index = common.next_step(training)
    batches = method.batches(batch, index)
    norms: Any = method.net.norms
    weight = norms.penalty_weight(index.task, True) or None
    with torch.autograd.set_multithreading_enabled(False):  # a dispatch mode sees only its own thread
        step = method.compiled or method.runner
        _, _, loss = step.compute(batches, method.runner.groups(batches, index.task, replayed=True), index, weight)
        loss.backward()


class Operations(TorchDispatchMode):
    """Counts dispatched operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not function.is_view:
            self.names[str(function)] += 1
        return function(*args, **(kwargs or {}))


def generated_code(training: Training) -> str:
    """Return the code of a step's graphs. Its C++ is not built, which would take minutes; the numbers are void."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.utils import run_and_get_code

    with (
        inductor.patch(fx_graph_cache=False),
        functorch.patch(enable_autograd_cache=False),
        patch.object(AsyncCompile, "cpp_pybinding", lambda *_, **__: lambda *_: None),
    ):
        return "\n".join(run_and_get_code(forward_and_backward, training)[1])
