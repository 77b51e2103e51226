"""The CUDA code of a compiled step, generated without a GPU: how much a step launches, and whether it compiles.

A compiled step is traced on the CPU. Its two graphs, forward and backward, are moved to an imagined A100 with fake
tensors, and Inductor generates their code as it would there. `ptxas` from Triton's wheel compiles the kernels.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._inductor import compile_fx
from torch._inductor import config as inductor
from torch._inductor.graph import GraphLowering

from models import compiled_step
from models.compiled_step import CUDA_OPTIONS
from scripts.bench.common import training_step
from utils.errors import UsageError
from utils.packages import import_or_usage_error

GPU, ARCHITECTURE = torch.device("cuda", 0), 80
A100 = SimpleNamespace(
    name="A100", major=8, minor=0, multi_processor_count=108, warp_size=32, total_memory=40 << 30, is_integrated=0,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65536,
    shared_memory_per_block=48 << 10, shared_memory_per_block_optin=163 << 10, L2_cache_size=40 << 20,
)  # fmt: skip
KERNEL = re.compile(r"^(\w+) = async_compile\.triton\('\w+', '''\n(.*?)'''", re.MULTILINE | re.DOTALL)
LAUNCH = re.compile(r"^ +\w+\.run\(", re.MULTILINE)
LIBRARY_CALL = re.compile(r"^ +[^#\n]*(?:extern_kernels|torch\.ops\.aten)\.[\w.]+\(", re.MULTILINE)


class Captured(Exception):
    """Ends Inductor's work once the code is there."""


def cuda_code(**options: Any) -> list[str]:
    """Return the code of forward and backward of a compiled step with these options of a run."""
    code: list[str] = []

    def generate(graph: fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Callable[[list[Any]], Any]:
        """Generate code for the GPU; return the graph as it is, for the CPU."""

        def capture(lowering: GraphLowering) -> None:
            code.append(lowering.codegen()[0].value)
            raise Captured

        on_gpu, gpu_inputs = move_to_gpu(graph, inputs)
        fake_mode = torch._guards.detect_fake_mode(inputs)
        tracing = torch._guards.tracing(torch._guards.TracingContext(fake_mode))
        with imagined_gpu(), tracing, mock.patch.object(GraphLowering, "compile_to_module", capture):
            try:
                compile_fx.compile_fx_inner(on_gpu, gpu_inputs, **keywords | {"cudagraphs": None})
            except torch._inductor.exc.InductorError as error:
                if not isinstance(error.inner_exception, Captured):
                    raise
        return boxed(graph)

    def backend(graph: fx.GraphModule, inputs: list[torch.Tensor], **_: Any) -> Any:
        inner_compile: Any = generate
        return compile_fx.compile_fx(graph, inputs, inner_compile=inner_compile)

    torch._dynamo.reset()
    with mock.patch.object(compiled_step, "BACKEND", backend):
        training_step(compile=True, **options)()
    return code


def boxed(graph: fx.GraphModule) -> Callable[[list[Any]], Any]:
    def run(inputs: list[Any]) -> Any:
        return graph(*inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def move_to_gpu(graph: fx.GraphModule, inputs: Sequence[Any]) -> tuple[fx.GraphModule, list[Any]]:
    """Return a copy of a graph with all its tensors on the imagined GPU, and inputs for it."""
    moved = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for node in moved.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = node.kwargs | {"device": GPU}
    moved.recompile()
    fake_mode = torch._guards.detect_fake_mode(inputs)
    assert fake_mode is not None
    with fake_mode:
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=GPU) if isinstance(x, torch.Tensor)
                 else x for x in inputs]  # fmt: skip
        Propagation(moved).run(*fakes)
    return moved, fakes


class Propagation(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        n.meta["val"] = super().run_node(n)
        return n.meta["val"]


class ImaginedDriver:
    """Triton's driver, as far as the compiler asks it."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", ARCHITECTURE, A100.warp_size)

    def get_current_device(self) -> int:
        return 0


@contextmanager
def imagined_gpu() -> Iterator[None]:
    """Let torch and Triton believe that there is one GPU, with the options of a compiled step there."""
    import_or_usage_error("triton", "the CUDA code of a step")
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import scheduler
    from torch._inductor.runtime import triton_helpers
    from triton.runtime import driver

    if torch.cuda.is_available():
        raise UsageError("this machine has a GPU; `make test-cuda` runs the code instead of imagining it")
    results: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "is_available": True,
            "device_count": 1,
            "get_device_capability": (A100.major, A100.minor),
            "get_rng_state": torch.zeros(1),
            **dict.fromkeys(("get_device_properties", "_get_device_properties"), A100),
            **dict.fromkeys(("current_device", "_exchange_device", "_maybe_exchange_device"), 0),
            **dict.fromkeys(("_lazy_init", "set_rng_state", "synchronize"), None),
        },
        CudaInterface: {"is_available": True, "get_compute_capability": ARCHITECTURE, "get_device_properties": A100},
        CudaInterface.Worker: {"get_device_properties": A100, "current_device": 0},
        scheduler: {"has_triton": True},
        triton_helpers: {"set_driver_to_gpu": None},
    }
    with ExitStack() as patches:
        for owner, by_name in results.items():
            for name, result in by_name.items():
                answer = mock.Mock(return_value=result)
                patches.enter_context(mock.patch.object(owner, name, answer, create=name == "_get_device_properties"))
        patches.enter_context(mock.patch.object(driver, "_active", ImaginedDriver()))
        patches.enter_context(inductor.patch({"fx_graph_cache": False, "compile_threads": 1, **CUDA_OPTIONS}))
        yield


def launches(code: list[str]) -> dict[str, int]:
    """Return how many generated kernels and library calls (convolutions, matrix products) a step launches."""
    calls = [KERNEL.sub("", part) for part in code]
    patterns = {"kernels": LAUNCH, "library calls": LIBRARY_CALL}
    return {name: sum(len(pattern.findall(part)) for part in calls) for name, pattern in patterns.items()}


def compile_kernels(code: list[str]) -> int:
    """Compile all kernels with ptxas; return their number."""
    from torch._inductor.codecache import _load_triton_kernel_from_source

    kernels = {name: source for part in code for name, source in KERNEL.findall(part)}
    with imagined_gpu():
        for name, source in kernels.items():
            _load_triton_kernel_from_source(name, source).precompile(warm_cache_only=True)
    return len(kernels)
