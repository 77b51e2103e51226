"""`--save_model` and `--eval_only`: the final network as safetensors, with the configuration that made it."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from utils.config.arguments import SELECTORS, Config, identity_options, resolve
from utils.device import set_up_device
from utils.errors import UsageError
from utils.files import write_atomically
from utils.run.build import build_augment, build_network, build_spec, build_stream
from utils.run.evaluation import accuracies
from utils.tables import accuracy_table


def save_model(path: Path, net: torch.nn.Module, config: Config) -> None:
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in net.state_dict().items()}
    content = save(tensors, metadata={"config": json.dumps(identity_options(config))})
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
    spec = build_spec(config)
    stream = build_stream(config, spec, device)
    net = build_network(config, spec, device)
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise UsageError(f"{path} does not fit its own configuration: {' '.join(str(error).split())}") from error
    augment = build_augment(config, stream.spec, device)
    results = accuracies(net, stream, range(spec.n_tasks), augment)
    print(f"{path}: {', '.join(f'{name} {getattr(config, name)}' for name in SELECTORS)}")
    for setting, row in results.items():
        print("\n" + accuracy_table(setting, [row]))
    return 0


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


def _from_json(value):
    return tuple(value) if isinstance(value, list) else value
