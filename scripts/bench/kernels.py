"""what a step asks of a device: operations dispatched as it is, against generated kernels and library calls compiled

Forward, loss and backward of a step of the second task; the optimizer, the draws and the buffer are the same in both.
Views cost nothing and are not counted. The compiled step is counted in the code that Inductor writes: kernels of its
own, and calls of a library (convolutions and products).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scripts.bench import workloads
from utils.tables import aligned

# In the code that Inductor writes, a line for every call.
OWN = re.compile(r"^\s+(?:\w+ = )?(?:cpp_fused\w*|triton_\w+)(?:\.run)?\(", re.MULTILINE)
LIBRARY = re.compile(r"^\s+(?:\w+ = )?(?:extern_kernels\.\w+|torch\.ops\.\w+\.[\w.]+)\(", re.MULTILINE)


def add_arguments(parser) -> None:
    parser.add_argument("--width", type=int, default=16, help="--num_filters (default 16): it changes no count")
    parser.add_argument("--models", nargs="+", default=["er_ace", "derpp"], help="(default er_ace derpp)")
    parser.add_argument("--norms", nargs="+", default=["bn", "gn", "cn", "adab2n"], help="(default bn gn cn adab2n)")


def run(arguments) -> dict:
    rows = [["model, norm: a step's", "operations", "kernels", "library calls", "together, less by"]]
    results = {}
    for model in arguments.models:
        for norm in arguments.norms:
            found = results[f"{model}, {norm}"] = counted(model, norm, arguments.width)
            compiled = found["kernels"] + found["library_calls"]
            gain = f"{found['operations'] / compiled:.1f}"
            rows.append([f"{model}, {norm}", *(str(found[name]) for name in found), gain])
    print(aligned(rows), end="\n\n")
    return results


def counted(model: str, norm: str, width: int) -> dict[str, int]:
    options = {"model": model, "norm": norm, "num_filters": width}
    if norm in ("gn", "cn"):
        options["groups"] = 16
    plain, compiled = (workloads.training_in_second_task(**options, compile=way) for way in (False, True))
    _learn(plain)  # once before, so that constants are where they belong
    with Operations() as dispatched:
        _learn(plain)
    with written_code() as code:
        _learn(compiled)  # whose numbers are nothing now
    whole = "\n".join(code)
    return {
        "operations": dispatched.count,
        "kernels": len(OWN.findall(whole)),
        "library_calls": len(LIBRARY.findall(whole)),
    }


def _learn(training) -> None:
    """A step without what comes before and after the network."""
    method, place = training.method, workloads.second_task(training)
    batches = method.batches(workloads.first_batch(training), place)
    by = method.compiled or method
    weight = method.net.norms.penalty_weight(place.task, True) or None
    with torch.autograd.set_multithreading_enabled(False):  # a mode sees its own thread
        _, _, loss = by.compute(batches, method.groups(batches, place.task, replayed=True), place, weight)
        loss.backward()


class Operations(TorchDispatchMode):
    """Counts what is computed."""

    def __init__(self):
        super().__init__()
        self.count, self.names = 0, Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.count += 1
            self.names[str(function)] += 1
        return function(*args, **(kwargs or {}))


@contextmanager
def written_code() -> Iterator[list[str]]:
    """The code of all graphs that are compiled within. Its C++ is only read: to build it takes minutes."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.graph import GraphLowering

    found: list[str] = []
    with (
        inductor.patch(fx_graph_cache=False),
        functorch.patch(enable_autograd_cache=False),
        patch.object(GraphLowering, "save_output_code", staticmethod(found.append)),
        patch.object(AsyncCompile, "cpp_pybinding", lambda *_, **__: lambda *_: None),
    ):
        yield found
