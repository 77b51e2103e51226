"""`--save_model` and `--eval_only`: the final network as safetensors, beside the record that has its digest."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from backbone.network import Network
from models.method import Method
from utils.config.options import content_file
from utils.config.parser import parse
from utils.config.registry import DATASETS
from utils.config.resolve import (
    SELECTORS,
    Config,
    chosen_entries,
    identity_options,
    number_options,
    options_by_name,
    resolve,
)
from utils.console import log
from utils.data.random import seed_global_generators
from utils.data.stream import Stream
from utils.device import set_up_device
from utils.errors import UsageError
from utils.files import write_atomically
from utils.run.build import StreamBuilder, build_method, build_network
from utils.run.code_digest import changed_files, code_digests, shortened
from utils.run.evaluation import accuracies
from utils.run.records import BadRecord, read_record
from utils.tables import accuracy_table, caveat_lines

STATES = ("method", "buffer")  # saved as the bytes of `torch.save`


def save_model(path: Path, method: Method) -> str:
    """Write the network and the states of the method and its buffer; return the SHA-256 of the file."""
    from safetensors.torch import save

    tensors = dict(method.net.state_dict())
    for name, part in zip(STATES, (method, method.buffer), strict=True):
        if part is not None:
            state = io.BytesIO()
            torch.save(part.state_dict(), state)
            tensors[name] = torch.frombuffer(state.getbuffer(), dtype=torch.uint8)
    content = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})
    write_atomically(path, lambda file: file.write(content))
    return hashlib.sha256(content).hexdigest()


def has_model(folder: Path, record: dict[str, Any]) -> bool:
    """Return whether the saved network is there and unchanged."""
    path, digest = folder / "model.safetensors", record.get("model_sha256")
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def read_saved(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the record of a run and the tensors that it saved."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        record, content = read_record(folder / "record.json"), (folder / "model.safetensors").read_bytes()
        if record is None or hashlib.sha256(content).hexdigest() != record.get("model_sha256"):
            raise BadRecord("its record.json does not have the digest of its model.safetensors")
        return record, load(content)
    except (BadRecord, OSError, SafetensorError) as error:
        raise UsageError(f"{folder} is not the folder of a run with --save_model: {error}") from None


def load_network(folder: Path) -> Network:
    """Return the trained network of a run with --save_model, in eval mode."""
    record, tensors = read_saved(folder)
    config = _config_of(record, {}, folder)
    spec = StreamBuilder(config).spec
    net = build_network(config, spec, set_up_device(config))
    if net.unseen is not None:
        net.begin_task(spec.classes_of(spec.n_tasks - 1).stop)
    net.load_state_dict({name: tensor for name, tensor in tensors.items() if name not in STATES})
    return net.eval()


def load_saved(folder: Path, explicit: dict[str, Any]) -> tuple[dict[str, Any], Method, Stream]:
    """Return a run's record, method and data; flags may say what to run on, how to evaluate and where the data are."""
    record, tensors = read_saved(folder)
    config = _config_of(record, explicit, folder)
    sources, device, data = code_digests(config), set_up_device(config), StreamBuilder(config)
    if data.spec.fingerprint != record["identity"]["data"]:
        raise UsageError(f"{folder} was trained on other data than those here: check --base_path")
    if changed := changed_files(record["sources"], sources):
        log.info(f"the code has changed since it was trained: {shortened(changed)}")
    net, stream = build_network(config, data.spec, device), data.stream(device)
    method = build_method(config, stream.spec, net, device)
    states = {name: tensors.pop(name).numpy().tobytes() for name in STATES if name in tensors}
    if getattr(config, "eval_statistics", "running") == "buffer" and "buffer" not in states:
        raise UsageError(f"{folder} has no buffer: give --eval_statistics running or batch")
    try:  # in the order in which a checkpoint is loaded: a method may rely on its network and buffer
        for task in range(len(stream.train_sizes)):
            seed_global_generators(config.seed, "begin_task", task)
            method.grow()
        net.load_state_dict(tensors)
        for name, part in (("buffer", method.buffer), ("method", method)):
            if part is not None:
                part.load_state_dict(torch.load(io.BytesIO(states[name]), weights_only=True))
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError, pickle.UnpicklingError) as error:
        raise UsageError(f"{folder} does not fit today's code: {' '.join(str(error).split())}") from error
    return record, method, stream


def evaluate_saved(explicit: dict[str, Any]) -> int:
    """Print the accuracies of the network in the run folder that `--eval_only` names."""
    given = Path(explicit["eval_only"]).absolute()
    folder = given.parent if given.name == "model.safetensors" else given
    record, method, stream = load_saved(folder, explicit)
    config, results = method.config, accuracies(method, stream, range(stream.spec.n_tasks))
    recorded = {setting: result["matrix"][-1] for setting, result in record["results"].items()}
    if results != recorded and record["config"].get("eval_statistics") == config.values().get("eval_statistics"):
        means = ", ".join(f"{setting} {fmean(row):.2f}" for setting, row in recorded.items())
        log.warning(f"the run itself had {means}; python -m scripts.check_plugin finds state that was not saved")
    parts = [f"{name} {value}" for name, value in config.values().items() if name in SELECTORS]
    print(f"{folder}: {', '.join(parts)}")
    tables = (f"\n{accuracy_table(setting, [[*row]], config.values())}" for setting, row in results.items())
    print(*caveat_lines(config.values()), *tables, sep="\n")
    return 0


def _config_of(record: dict[str, Any], explicit: dict[str, Any], folder: Path) -> Config:
    """Return the configuration of the run, with the flags that do not contradict it."""
    options = options_by_name(chosen_entries(record["config"]))
    files = [name for name in explicit if name in options and options[name].type is content_file]
    recorded = parse(["--config", str(folder / "record.json"), *(f"--{name}={explicit[name]}" for name in files)])
    numbers = number_options(resolve(recorded))
    for name, value in explicit.items():
        if name in numbers and name != "eval_statistics" and value != numbers[name]:
            raise UsageError(f"--{name} {value} contradicts {folder}, which has {numbers[name]}: leave it out")
    data_options = DATASETS.get(record["config"]["dataset"]).options
    paths = {option.name: record["config"].get(option.name) for option in data_options if not option.changes_numbers}
    existing = {name: path for name, path in paths.items() if isinstance(path, str) and os.path.exists(path)}
    config = resolve(recorded | existing | explicit)
    for name, digest in identity_options(config).items():
        if name.endswith("_sha256") and digest != record["identity"].get(name):
            flag = name.removesuffix("_sha256")
            raise UsageError(f"--{flag}: {getattr(config, flag)} is not the file that {folder} was trained with")
    return config
