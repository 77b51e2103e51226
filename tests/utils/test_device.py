"""Devices, copies of small arrays to them, threads and precision."""

import ctypes
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import CPU, build_run, make_spec, make_stream, run_config

from datasets.seq_digits import SeqDigits
from utils.config.resolve import resolve
from utils.device import describe_device, send_together, set_up_device
from utils.errors import UsageError
from utils.step import StepIndex

DIGITS = ["--dataset", "seq-digits", "--num_filters", "2"]


def config_of(**flags):
    return resolve({"model": "sgd", "dataset": "seq-digits"} | flags)


# --- which device ---------------------------------------------------------------------------------------------


@pytest.fixture
def current_devices(monkeypatch):
    """The devices that CUDA is told to make the current one, on a machine with two GPUs."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "GPU")
    monkeypatch.setattr(torch._C, "_cuda_setDevice", chosen.append, raising=False)
    return chosen


@pytest.mark.parametrize(
    ("name", "index", "set_to"),
    [("auto", 0, [0]), ("cuda", 0, [0]), ("cuda:0", 0, [0]), ("cuda:1", 1, [1]), ("cpu", None, [])],
)
def test_named_device_becomes_the_current_one(current_devices, name, index, set_to):
    device = set_up_device(config_of(device=name))
    assert (device.type, device.index) == ("cpu" if name == "cpu" else "cuda", index)
    assert current_devices == set_to


def test_device_beyond_the_last_is_refused(current_devices):
    with pytest.raises(UsageError, match="--device cuda:2"):
        set_up_device(config_of(device="cuda:2"))
    assert current_devices == []


def test_gpu_older_than_the_build_of_torch_is_refused(current_devices, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (5, 2))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "compute_120"])
    with pytest.raises(UsageError, match=r"sm_52.*sm_75"):
        set_up_device(config_of(device="auto"))


def test_driver_that_is_too_old_is_refused_unless_the_cpu_is_asked_for(monkeypatch):
    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nUpdate it.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(UsageError, match=r"too old.*--device cpu"):
        set_up_device(config_of(device="auto"))
    assert set_up_device(config_of(device="cpu")) == CPU


def test_the_start_names_device_and_precision(current_devices):
    line = describe_device(torch.device("cuda", 0), config_of(tf32=True, amp="bfloat16"))
    assert all(word in line for word in ("GPU", "float32", "bfloat16", "TF32 on", "--compile"))
    assert describe_device(CPU, config_of()).startswith("device cpu, float32")


# --- small arrays on their way --------------------------------------------------------------------------------

ARRAYS = [
    np.arange(6).reshape(2, 3),
    np.empty((0, 4), dtype=np.int64),
    np.arange(12).reshape(3, 4)[:, ::2],
    np.array([[True], [False]]),
]


def test_arrays_for_the_cpu_are_themselves():
    sent = send_together(ARRAYS, CPU)
    for tensor, array in zip(sent, ARRAYS, strict=True):
        assert tensor.dtype == torch.int64
        assert np.array_equal(tensor.numpy(), array)
    assert np.shares_memory(sent[0].numpy(), ARRAYS[0])


def test_arrays_for_a_device_travel_in_one_copy(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor.clone()) or tensor)
    sent = send_together(ARRAYS, torch.device("meta"))
    assert [(tuple(tensor.shape), tensor.dtype) for tensor in sent] == [(array.shape, torch.int64) for array in ARRAYS]
    (flat,) = pinned
    assert flat.tolist() == np.concatenate([array.ravel() for array in ARRAYS]).tolist()
    offsets = [tensor.storage_offset() for tensor in sent]
    assert offsets == np.cumsum([0] + [array.size for array in ARRAYS[:-1]]).tolist()


# --- a whole command ------------------------------------------------------------------------------------------


def test_data_set_is_built_once_in_a_command(run_main, monkeypatch):
    built, original = [], SeqDigits.__init__
    monkeypatch.setattr(SeqDigits, "__init__", lambda self: built.append(self) or original(self))
    command = ["--model", "er", *DIGITS, "--debug_mode", "--batch_size", "60", "--save_model"]
    assert run_main(*command, "--dry_run").code == 0
    assert len(built) == 1
    ended = run_main(*command)
    assert len(built) == 2
    assert run_main(*command).record == ended.record
    assert len(built) == 3
    assert run_main("--eval_only", str(ended.folder)).code == 0
    assert len(built) == 4


# --- determinism ----------------------------------------------------------------------------------------------


def test_deterministic_run_uses_deterministic_algorithms_and_has_the_same_results(run_main, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", asked.append)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    command = ["--model", "er", *DIGITS, "--debug_mode", "--device", "cpu"]
    plain = run_main(*command).record
    assert asked == []
    deterministic = run_main(*command, "--rerun", "--deterministic").record
    assert (asked, torch.backends.cudnn.benchmark) == ([True], False)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert (deterministic["run"], deterministic["results"]) == (plain["run"], plain["results"])


def test_deterministic_steps_fill_no_new_memory(monkeypatch):
    """torch would fill every tensor that it allocates, in launches of their own."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    try:
        set_up_device(config_of(deterministic=True, device="cpu"))
        with torch.profiler.profile() as profile:
            torch.empty(3)
    finally:
        torch.use_deterministic_algorithms(False)
    assert "aten::fill_" not in {event.key for event in profile.key_averages()}


def test_tf32_is_off_unless_asked_for():
    for wanted in (True, False):
        set_up_device(config_of(tf32=wanted, device="cpu"))
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (wanted, wanted)


# --- half precision -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["bn", "gn", "cn", "adab2n", "brn"])
def test_a_step_in_half_precision(norm):
    """Convolutions are of bfloat16; logits, loss, statistics and gradients are float32, and near to those without."""
    losses = {}
    for amp in ("none", "bfloat16"):
        config = run_config("er_ace", norm, "resnet18", amp=amp)
        stream = make_stream(make_spec(image_shape=(3, 16, 16)))
        net, method = build_run(config, stream)
        seen = set()
        net.conv1.register_forward_hook(lambda layer, inputs, output, seen=seen: seen.add(output.dtype))
        method.grow()
        net.train()
        step = method.step(next(stream.batches(0, 0, 0)), StepIndex(0, 0))
        assert seen == {torch.float32 if amp == "none" else torch.bfloat16}
        assert step.outputs["current"].logits.dtype == step.loss.dtype == torch.float32
        assert {parameter.grad.dtype for parameter in net.parameters() if parameter.grad is not None} == {torch.float32}
        assert all(buffer.dtype != torch.bfloat16 for buffer in net.buffers())
        losses[amp] = step.loss.item()
    assert losses["bfloat16"] == pytest.approx(losses["none"], rel=0.05)
    assert losses["bfloat16"] != losses["none"]


# --- memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "parameters"), [({}, [-1, -3]), ({"MALLOC_MMAP_THRESHOLD_": "1048576"}, [-1])]
)  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
def test_freed_memory_is_kept_unless_a_variable_says_otherwise(monkeypatch, variables, parameters):
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    calls = []
    libc = SimpleNamespace(mallopt=lambda parameter, value: calls.append(parameter))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: libc)
    set_up_device(config_of(device="cpu"))
    assert calls == parameters
