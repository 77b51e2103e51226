"""`--save_model` and `--eval_only`: the final network as safetensors, with the configuration that made it, sealed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from pathlib import Path

import torch

from models.method import Method
from utils.config.arguments import SELECTORS, Config, number_options, resolve
from utils.config.options import path as path_type
from utils.config.parser import as_words, parse
from utils.config.registry import DATASETS
from utils.device import set_up_device
from utils.errors import UsageError
from utils.files import write_atomically
from utils.run.build import Data, build_method, build_network
from utils.run.evaluation import accuracies
from utils.run.sources import changed_sources, shortened, sources_of
from utils.tables import accuracy_table, reservation_lines

METHOD = "method"  # the method's own state, as bytes of `torch.save`
HOW_TO_EVALUATE = ("eval_statistics",)  # these may differ from what the network was made with


def save_model(path: Path, method: Method) -> None:
    """The network, and the method's own state where that is what predicts."""
    from safetensors.torch import save

    tensors = dict(method.net.state_dict())
    if type(method).predict is not Method.predict:
        content = io.BytesIO()
        torch.save(method.state_dict(), content)
        tensors[METHOD] = torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    about = {
        "config": number_options(method.config),
        "data": method.spec.fingerprint,
        "sources": sources_of(method.config),
        "where": _where(method.config),
    }
    about = json.loads(json.dumps(about))  # as it will be read
    # One entry: several would be written in an order that changes from process to process.
    content = save(tensors, metadata={"about": json.dumps(about | {"seal": _seal(about, tensors)})})
    write_atomically(path, lambda file: file.write(content))


def _where(config: Config) -> dict[str, str]:
    """Where the data of the run were."""
    options = [option for option in DATASETS.get(config.dataset).options if option.type is path_type]
    named = {option.name: getattr(config, option.name) for option in options}
    return {name: os.path.abspath(value) for name, value in named.items() if value}


def _seal(about: dict, tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode(errors="surrogatepass"))
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def load_saved(path: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """(what is said about the network: config, data and sources; its tensors), if they are as they were written."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        seal = about.pop("seal")
        if seal != _seal(about, tensors):
            raise ValueError("its seal does not match, so it has been changed or damaged; train and save it again")
        if not (isinstance(about["config"], dict) and isinstance(about["sources"], dict)):
            raise ValueError("it says nothing about its run")
    except Exception as error:  # a damaged or foreign file can raise almost anything
        missing = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise UsageError(f"{path} is not a network written by --save_model: {missing}") from error
    if odd := [name for name, tensor in tensors.items() if tensor.is_floating_point() and not tensor.isfinite().all()]:
        raise UsageError(f"{path} holds infinite values or no numbers in {odd[0]}: the network is of no use")
    return about, tensors


def evaluate_saved(explicit: dict) -> int:
    """The network's own configuration holds; flags may only say what to run on, how to evaluate, and where the data are
    if they are no longer where they were."""
    path = Path(explicit["eval_only"])
    about, tensors = load_saved(path)
    for name, registry in SELECTORS.items():  # before its flags, which are unknown where a plug-in is missing
        registry.get(str(about["config"].get(name)))
    made_by = parse(as_words(about["config"]))
    for name, value in explicit.items():
        if name in about["config"] and name not in HOW_TO_EVALUATE and value != made_by.get(name):
            raise UsageError(
                f"--{name} {value} contradicts {path}, which was made with {about['config'][name]}: leave it out"
            )
    there = {name: where for name, where in about.get("where", {}).items() if os.path.exists(where)}
    config = resolve(made_by | there | explicit)
    if getattr(config, "eval_statistics", "running") == "buffer":
        raise UsageError(f"{path} has no buffer: give --eval_statistics running or batch")
    device = set_up_device(config)
    data = Data(config)
    if data.spec.fingerprint != about.get("data"):
        raise UsageError(f"{path} was trained on other data than those here: check --base_path")
    if changed := changed_sources(about["sources"], sources_of(config)):
        print(f"note: the code has changed since it was trained: {shortened(changed)}", file=sys.stderr)
    net = build_network(config, data.spec, device)
    stream = data.stream(device)
    method = build_method(config, stream.spec, net, device)
    own = tensors.pop(METHOD, None)
    try:
        net.load_state_dict(tensors)
        if own is not None:
            method.load_state_dict(torch.load(io.BytesIO(own.numpy().tobytes()), weights_only=True))
    except Exception as error:
        raise UsageError(f"{path} does not fit its own configuration: {' '.join(str(error).split())}") from error
    results = accuracies(method, stream, range(data.spec.n_tasks))
    print(f"{path}: {', '.join(f'{name} {getattr(config, name)}' for name in SELECTORS)}")
    for line in reservation_lines(config.values()):
        print(line)
    for setting, row in results.items():
        print("\n" + accuracy_table(setting, [row], config.values()))
    return 0
