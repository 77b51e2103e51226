"""`--save_model` and `--eval_only`: the final network as safetensors, with the configuration that made it."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import torch

from models.method import Method
from utils.config.arguments import SELECTORS, identity_options, resolve
from utils.device import set_up_device
from utils.errors import UsageError
from utils.files import write_atomically
from utils.run.build import Data, build_method, build_network
from utils.run.evaluation import accuracies
from utils.tables import accuracy_table

METHOD = "method"  # the method's own state, as bytes of `torch.save`


def save_model(path: Path, method: Method) -> None:
    """The network, and the method's own state where that is what predicts."""
    from safetensors.torch import save

    tensors = dict(method.net.state_dict())
    if type(method).predict is not Method.predict:
        content = io.BytesIO()
        torch.save(method.state_dict(), content)
        tensors[METHOD] = torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content = save(tensors, metadata={"config": json.dumps(identity_options(method.config))})
    write_atomically(path, lambda file: file.write(content))


def load_saved(path: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """(the options that made it, its tensors)."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            config = json.loads((file.metadata() or {})["config"])
            return config, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UsageError(f"{path} is not a network written by --save_model: {error}") from error


def evaluate_saved(explicit: dict) -> int:
    """The network's own configuration holds; flags may only say where the data are and what to run on."""
    path = Path(explicit["eval_only"])
    made_by, tensors = load_saved(path)
    for name, value in explicit.items():
        if name in made_by and _plain(value) != made_by[name]:
            raise UsageError(f"--{name} {value} contradicts {path}, which was made with {made_by[name]}: leave it out")
    config = resolve({name: _from_json(value) for name, value in made_by.items() if value is not None} | explicit)
    device = set_up_device(config)
    data = Data(config)
    net = build_network(config, data.spec, device)
    stream = data.stream(device)
    method = build_method(config, stream.spec, net, device)
    own = tensors.pop(METHOD, None)
    try:
        net.load_state_dict(tensors)
        if own is not None:
            method.load_state_dict(torch.load(io.BytesIO(own.numpy().tobytes()), weights_only=True))
    except (RuntimeError, KeyError, pickle.UnpicklingError) as error:
        raise UsageError(f"{path} does not fit its own configuration: {' '.join(str(error).split())}") from error
    results = accuracies(method, stream, range(data.spec.n_tasks))
    print(f"{path}: {', '.join(f'{name} {getattr(config, name)}' for name in SELECTORS)}")
    for setting, row in results.items():
        print("\n" + accuracy_table(setting, [row]))
    return 0


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


def _from_json(value):
    return tuple(value) if isinstance(value, list) else value
