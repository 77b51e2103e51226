"""Triton kernels without a GPU: their numbers and memory traffic under Triton's interpreter, and that they compile.

The interpreter must be chosen before Triton is imported, so that everything here runs in processes of its own: this
file as a script, with the name of what to do, which prints its findings as JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from scripts.bench.norms import TRAFFIC

ROOT = Path(__file__).parents[2]
LARGE_KERNELS = ("_moments", "_scale_and_shift", "_gradient_sums", "_input_gradient")  # over the activation
SMALL_KERNELS = ("_statistics", "_coefficients")  # over its moments
KERNELS = (*LARGE_KERNELS, *SMALL_KERNELS)


def in_own_process(what: str, folder: Path, **environment: str):
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, "-m", "tests.backbone.test_triton", what],
        cwd=ROOT,
        env=kept | {"TRITON_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_numbers_of_the_reference(tmp_path):
    """Largest difference over largest value, of everything that is returned and of all gradients."""
    found = in_own_process("numbers", tmp_path, TRITON_INTERPRET="1")
    # Mean 1e3, variance 1: a difference of squares would be wrong by a tenth in float32.
    assert 0 <= found.pop("variance beside a large mean") <= 1e-4
    assert set(found) == set(EXAMPLES)
    assert len(found) < 20
    for name, differences in found.items():
        assert set(differences) == {"out", "mu", "sigma2", "a", "weights", "gamma", "beta"}
        dtype = EXAMPLES[name]["dtype"]
        for part, difference in differences.items():
            # What has the activation's type: the interpreter cuts bits off where a GPU rounds, hence a whole unit.
            rounded = dtype == "bfloat16" and part in ("out", "a")
            bound = 2**-7 if rounded else {"float64": 1e-10}.get(dtype, 1e-5)
            assert 0 <= difference <= bound, (name, part, difference)


def test_traffic_is_that_of_the_table(tmp_path):
    """Elements read from and written to tensors of the activation's size, per element of the activation.

    Tensor operations beside the kernels only make views and empty tensors of that size.
    """
    traffic, operations = in_own_process("traffic", tmp_path, TRITON_INTERPRET="1")
    assert set(traffic) == set(operations) == set(TRAFFIC_EXAMPLES)
    for name, kernels in traffic.items():
        assert kernels == {
            "_moments": {"read": {"a": 1}, "written": {}},
            "_scale_and_shift": {"read": {"a": 1}, "written": {"out": 1}},
            "_gradient_sums": {"read": {"a": 1, "g": 1}, "written": {}},
            "_input_gradient": {"read": {"a": 1, "g": 1}, "written": {"out": 1}},
        }, name
        totals = {
            kernel: (sum(counts["read"].values()), sum(counts["written"].values()))
            for kernel, counts in kernels.items()
        }
        forward = np.add(totals["_moments"], totals["_scale_and_shift"])
        backward = np.add(totals["_gradient_sums"], totals["_input_gradient"])
        assert (*forward, *backward) == TRAFFIC["adab2n, Triton"] == (2, 1, 4, 1)
        assert "aten.empty_like.default" in operations[name], name  # the two results
        assert set(operations[name]) <= {"aten.empty_like.default", "aten.select.int", "aten.detach.default"}, name


def test_kernels_compile_for_a_gpu(tmp_path):
    found = in_own_process("compile", tmp_path)
    assert set(found) == {f"{kernel} {dtype}" for kernel in KERNELS for dtype in POINTERS}
    for name, start in found.items():
        assert start == "\x7fELF", name


def test_triton_without_a_gpu_is_refused(run_main, results, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    flags = ["--model", "er", "--norm", "adab2n", "--dataset", "seq-digits", "--norm_impl", "triton", "--device", "cpu"]
    finished = run_main(*flags)
    assert finished.code == 2
    assert finished.stdout == ""
    [line] = finished.stderr.splitlines()
    assert line.startswith("error: --norm_impl triton needs a CUDA device")
    assert not results.exists()


# --- in the other process --------------------------------------------------------------------------------------------


def example(shape, dtype="float32", layout="nchw", tasks=(0, 2, 0, 1, 2), within=False, balanced=False) -> dict:
    tasks = [tasks[n % len(tasks)] for n in range(shape[0])]
    return {
        "shape": shape,
        "dtype": dtype,
        "layout": layout,
        "tasks": tasks,
        "within": within,
        "balanced": balanced,
    }


EXAMPLES = {
    "odd": example((5, 7, 3, 5)),
    "odd, within": example((5, 7, 3, 5), within=True),
    "odd, channels-last": example((5, 7, 3, 5), layout="channels-last", balanced=True),
    "odd, channels-last, within": example((5, 7, 3, 5), layout="channels-last", within=True),
    "float64": example((4, 5, 6, 7), "float64", within=True, balanced=True),
    "float64, channels-last": example((4, 5, 6, 7), "float64", "channels-last"),
    "bfloat16": example((4, 6, 5, 5), "bfloat16", balanced=True),
    "bfloat16, within": example((4, 6, 5, 5), "bfloat16", within=True),
    "bfloat16, channels-last": example((4, 6, 5, 5), "bfloat16", "channels-last"),
    "more than a block": example((2, 2, 40, 40), balanced=True),
    "more than a block, channels-last": example((2, 3, 40, 40), layout="channels-last"),
    "more than a block, float64": example((2, 2, 33, 35), "float64", within=True),
    "many channels": example((3, 130, 2, 2)),
    "many channels, channels-last": example((3, 37, 2, 3), "float64", "channels-last", balanced=True),
    "1x1 map": example((6, 5, 1, 1), "float64", balanced=True),
    "vector": example((7, 19), "float64", within=True),
    "vector, float32": example((7, 19)),
    "one channel": example((5, 1, 3, 3), layout="channels-last"),
    "one sample": example((1, 3, 4, 5), "float64", within=True),
}
POINTERS = {"float32": ("*fp32", "*fp32"), "bfloat16": ("*bf16", "*fp32"), "float64": ("*fp64", "*fp64")}


def inputs_of(case, seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case["dtype"])
    small = torch.float64 if dtype == torch.float64 else torch.float32
    n, channels = case["shape"][:2]

    def normal(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=draw)

    a, noise = normal(*case["shape"]) + 0.7, normal(*case["shape"])
    g = 0.5 + a + 0.3 * noise  # not at right angles to the output, or the sums would cancel
    if a.dim() == 4 and case["layout"] == "channels-last":
        a, g = a.to(memory_format=torch.channels_last), g.to(memory_format=torch.channels_last)
    same = torch.tensor(np.equal.outer(case["tasks"], case["tasks"]) / 1.0)
    return {
        "a": a.to(dtype),
        "g": g.to(dtype),
        "weights": ((0.3 + torch.rand(n, dtype=torch.float64, generator=draw)) / n).to(small),
        "gamma": (normal(channels) + 1.5).to(small),
        "beta": normal(channels).to(small),
        "g_mu": normal(channels).to(small),
        "g_sigma2": normal(channels).to(small),
        "same_group": (same / same.sum(1, keepdim=True)).to(small) if case["within"] else None,
    }


def results_of(primitive, case, inputs) -> dict[str, torch.Tensor]:
    from backbone.norms.kernels.weighted import SampleWeights

    leaves = {name: inputs[name].detach().requires_grad_() for name in ("a", "weights", "gamma", "beta")}
    by = SampleWeights(leaves["weights"], inputs["same_group"], case["balanced"])
    done = primitive(leaves["a"], by, leaves["gamma"], leaves["beta"], 1e-5)
    torch.autograd.backward([done.out, done.mu, done.sigma2], [inputs[name] for name in ("g", "g_mu", "g_sigma2")])
    gradients = {name: leaf.grad for name, leaf in leaves.items()}
    return {"out": done.out.detach(), "mu": done.mu.detach(), "sigma2": done.sigma2.detach()} | gradients


def by_triton(*arguments):
    from backbone.norms.batch_norm_family import weighted_batch_norm

    return weighted_batch_norm(*arguments, impl="triton")


def numbers() -> dict:
    from backbone.norms.kernels.weighted import reference

    differences = {}
    for name, case in EXAMPLES.items():
        inputs = inputs_of(case)
        expected, found = results_of(reference, case, inputs), results_of(by_triton, case, inputs)
        differences[name] = {}
        for part, value in expected.items():
            assert found[part].dtype == value.dtype, (name, part)
            assert found[part].shape == value.shape, (name, part)
            assert value.isfinite().all(), (name, part)
            difference = (found[part].double() - value.double()).abs().max().item()
            differences[name][part] = difference / value.abs().max().item()
    differences["variance beside a large mean"] = error_beside_a_large_mean()
    return differences


def error_beside_a_large_mean() -> float:
    from backbone.norms.kernels.weighted import UNIFORM

    inputs = inputs_of(example((3, 4, 36, 36)))
    a = inputs["a"] + 1e3
    done = by_triton(a, UNIFORM, inputs["gamma"], inputs["beta"], 1e-5)
    return (done.sigma2 - a.double().var((0, 2, 3), correction=0)).abs().max().item()


class Spied:
    """A kernel that notes, while it runs, which elements of tensors as large as the activation it reads and writes."""

    def __init__(self, kernel, size: int):
        self.kernel, self.size = kernel, size
        self.read: dict[str, np.ndarray] = {}
        self.written: dict[str, np.ndarray] = {}

    def __getitem__(self, grid):
        def launch(*arguments):
            names = dict(zip(self.kernel.arg_names, arguments, strict=True))
            watched = {name: value for name, value in names.items() if getattr(value, "nelement", int)() == self.size}
            with watching(watched, self.read, self.written):
                self.kernel[grid](*arguments)

        return launch


class watching:
    """Counts, for every element of the named tensors, how often the interpreter loads and stores it."""

    def __init__(self, tensors: dict[str, torch.Tensor], read: dict, written: dict):
        self.tensors, self.read, self.written = tensors, read, written

    def __enter__(self):
        from triton.runtime.interpreter import interpreter_builder as builder

        self.builder, self.load, self.store = builder, builder.create_masked_load, builder.create_masked_store

        def load(ptrs, mask, *rest):
            self.count(self.read, ptrs.data, mask.data)
            return self.load(ptrs, mask, *rest)

        def store(ptrs, value, mask, *rest):
            self.count(self.written, ptrs.data, mask.data)
            return self.store(ptrs, value, mask, *rest)

        builder.create_masked_load, builder.create_masked_store = load, store

    def __exit__(self, *_):
        self.builder.create_masked_load, self.builder.create_masked_store = self.load, self.store

    def count(self, totals: dict, addresses: np.ndarray, mask: np.ndarray) -> None:
        touched = addresses[np.broadcast_to(mask, addresses.shape)].astype(np.int64)
        for name, tensor in self.tensors.items():
            index = (touched - tensor.data_ptr()) // tensor.element_size()
            index = index[(index >= 0) & (index < tensor.numel())]
            if len(index):
                np.add.at(totals.setdefault(name, np.zeros(tensor.numel(), dtype=int)), index, 1)


TRAFFIC_EXAMPLES = {
    "nchw": example((3, 5, 9, 7)),
    "channels-last": example((3, 5, 9, 7), "bfloat16", "channels-last", balanced=True),
    "more than a block": example((2, 2, 34, 33), within=True),
    "more than a block, channels-last": example((2, 20, 9, 11), "float64", "channels-last", within=True),
}


def traffic() -> dict:
    """Per kernel and tensor: how often each element is read and written, one number if it is the same for all."""
    from backbone.norms.kernels import triton_passes

    kernels, found = {kernel: getattr(triton_passes, kernel) for kernel in LARGE_KERNELS}, {}
    for name, case in TRAFFIC_EXAMPLES.items():
        inputs = inputs_of(case)
        spied = {kernel: Spied(own, inputs["a"].numel()) for kernel, own in kernels.items()}
        for kernel, spy in spied.items():
            setattr(triton_passes, kernel, spy)
        results_of(by_triton, case, inputs)

        def told(counts: dict[str, np.ndarray]) -> dict:
            return {tensor: int(n[0]) if (n == n[0]).all() else n.tolist() for tensor, n in counts.items()}

        found[name] = {kernel: {"read": told(s.read), "written": told(s.written)} for kernel, s in spied.items()}
    for kernel, own in kernels.items():
        setattr(triton_passes, kernel, own)
    return found


def operations() -> dict:
    """The tensor operations of a forward and backward that take or make a tensor of the activation's size."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    from backbone.norms.kernels import triton_passes
    from backbone.norms.kernels.weighted import SampleWeights

    class Noting(TorchDispatchMode):
        def __init__(self, size: int):
            super().__init__()
            self.size, self.noted = size, []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            if any(tensor.numel() == self.size for tensor in tensors):
                self.noted.append(str(function))
            return result

    class Unwatched:
        """The interpreter's own copies are no part of what a GPU does."""

        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            def launch(*arguments):
                with torch.utils._python_dispatch._disable_current_modes():
                    self.kernel[grid](*arguments)

            return launch

    for kernel in KERNELS:
        setattr(triton_passes, kernel, Unwatched(getattr(triton_passes, kernel)))
    found = {}
    for name, case in TRAFFIC_EXAMPLES.items():
        inputs = inputs_of(case)
        leaves = {part: inputs[part].detach().requires_grad_() for part in ("a", "weights", "gamma", "beta")}
        by = SampleWeights(leaves["weights"], inputs["same_group"], case["balanced"])
        with Noting(inputs["a"].numel()) as mode:
            done = by_triton(leaves["a"], by, leaves["gamma"], leaves["beta"], 1e-5)
            outputs, directions = [done.out, done.mu, done.sigma2], [inputs[k] for k in ("g", "g_mu", "g_sigma2")]
            torch.autograd.grad(outputs, list(leaves.values()), directions)
        found[name] = sorted(set(mode.noted))
    return found


def compile_all() -> dict:
    """The first bytes of the machine code of every kernel and type."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from backbone.norms.kernels import triton_passes

    found = {}
    for kernel in KERNELS:
        function = getattr(triton_passes, kernel)
        for dtype, (large, small) in POINTERS.items():
            pointers = {name: large if name in ("a", "g", "out") else small for name in function.arg_names}
            integers = dict.fromkeys(("N", "C", "S", "area", "stride_n", "stride_c", "stride_s"), "i32")
            sizes = {"ACC": tl.float64 if dtype == "float64" else tl.float32, "BC": 16, "BS": 64}
            sizes = {name: size for name, size in sizes.items() if name in function.arg_names}
            kinds = pointers | integers | dict.fromkeys(sizes, "constexpr")
            signature = {name: kinds[name] for name in function.arg_names}
            built = triton.compile(ASTSource(function, signature, constexprs=sizes), target=GPUTarget("cuda", 80, 32))
            found[f"{kernel} {dtype}"] = built.asm["cubin"][:4].decode("latin-1")
    return found


if __name__ == "__main__":
    tasks = {"numbers": numbers, "traffic": lambda: (traffic(), operations()), "compile": compile_all}
    print(json.dumps(tasks[sys.argv[1]]()))
