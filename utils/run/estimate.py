"""`--dry_run`: what a run would be, and what it would cost, before it starts."""

from __future__ import annotations

import math

import torch

from models.method import draw_sizes
from utils.config.arguments import Config
from utils.config.registry import MODELS
from utils.data.stream import StreamSpec
from utils.device import pick_device
from utils.run.build import buffer_bytes, build_network, epoch_sizes
from utils.run.folder import RunFolder
from utils.run.training import total_steps

MEGABYTE = 1e6


def dry_run_report(config: Config, spec: StreamSpec, folder: RunFolder) -> str:
    lines = [f"  {name} = {_shown(value)}" for name, value in sorted(config.values().items())]
    sizes = epoch_sizes(config, spec)
    memory = memory_estimate(config, spec)
    parts = ", ".join(f"{name} {size / MEGABYTE:.1f}" for name, size in memory.items())
    status = "finished" if folder.finished_record() else "not finished"
    return "\n".join(
        [
            "configuration",
            *lines,
            f"folder: {folder.path} ({status})",
            f"steps: {total_steps(config, sizes)} in {len(sizes)} task{'s' if len(sizes) > 1 else ''}",
            f"memory: about {sum(memory.values()) / MEGABYTE:.0f} MB ({parts})",
        ]
    )


def _shown(value) -> str:
    return "-" if value is None else str(value)


def memory_estimate(config: Config, spec: StreamSpec) -> dict[str, float]:
    """Bytes by use: data and buffer exactly, the network with its gradients, activations of one step roughly."""
    image = math.prod(spec.image_shape)
    net = build_network(config, spec, torch.device("meta"))
    net.norms.check_device(pick_device(config.device))
    weights = sum(tensor.nbytes for tensor in net.state_dict().values())
    parts = (spec.train_sizes, spec.test_sizes)
    # Images that tasks share are held once, and transformed for the task whose turn it is.
    images = 0 if spec.streamed else sum(2 * sizes[0] if spec.shared_images else sum(sizes) for sizes in parts)
    drawn = draw_sizes(config, len(MODELS.get(config.model).build.draw_names), spec.n_tasks)
    samples = config.batch_size + sum(min(size, config.buffer_size) for size in drawn)
    return {
        "data": image * images,
        "buffer": buffer_bytes(config, spec),
        "network and gradients": 2 * weights,
        "activations": samples * _activation_bytes(net, spec, config),
    }


def _activation_bytes(net: torch.nn.Module, spec: StreamSpec, config: Config) -> int:
    """What one sample leaves behind for the backward: the outputs of all layers, traced without computing."""
    sizes: list[int] = []
    hooks = [
        module.register_forward_hook(lambda _, __, out: sizes.append(out.nbytes))
        for module in net.modules()
        if not list(module.children())
    ]
    net.eval()
    with torch.no_grad():
        net(torch.empty((1, *spec.input_shape), dtype=getattr(torch, config.dtype), device="meta"))
    for hook in hooks:
        hook.remove()
    return 2 * sum(sizes)
