"""`--dry_run`: the folder of a run, its steps and its memory, before it starts."""

from __future__ import annotations

import math

import torch

from models.replay import draw_sizes
from utils.config.resolve import Config
from utils.data.buffer import Buffer
from utils.data.stream import StreamSpec
from utils.device import pick_device
from utils.errors import DataMissing
from utils.run.build import ABSENT, StreamBuilder, build_network, epoch_sizes, method_class
from utils.run.run_folder import RunFolder
from utils.run.training import total_steps

MEGABYTE = 1e6


def dry_run_report(config: Config) -> str:
    """Return the folder, steps and memory of a run, as comments of a TOML file. The data may be missing."""
    try:
        spec = StreamBuilder(config).spec
    except DataMissing:
        spec = StreamBuilder(config, ABSENT).spec
    folder, sizes, memory = RunFolder(config, spec, {}), epoch_sizes(config, spec), memory_estimate(config, spec)
    status = "finished" if folder.finished_record() else "not finished"
    parts = ", ".join(f"{name} {size / MEGABYTE:.1f}" for name, size in memory.items())
    return (
        f"# folder: {folder.path} ({status})\n"
        f"# steps: {total_steps(config, sizes)} in {len(sizes)} task{'s' if len(sizes) > 1 else ''}\n"
        f"# memory: about {sum(memory.values()) / MEGABYTE:.0f} MB ({parts})"
    )


def memory_estimate(config: Config, spec: StreamSpec) -> dict[str, float]:
    """Return bytes by use: exact for data, buffer and network with gradients, rough for the activations of a step."""
    method, dtype = method_class(config), getattr(torch, config.dtype)
    net = build_network(config, spec, torch.device("meta"))
    net.norms.check_device(pick_device(config.device))
    # Images that tasks share are held once, and a transformed copy for the present task.
    splits = () if spec.streamed else (spec.train_sizes, spec.test_sizes)
    images = sum(2 * sizes[0] if spec.shared_images else sum(sizes) for sizes in splits)
    buffer = 0
    if method.uses_buffer:
        buffer = config.buffer_size * Buffer.bytes_of_one(spec, dtype if method.stores_logits else None)
    draws = draw_sizes(config, len(method.draw_names), spec.n_tasks)
    samples = config.batch_size + sum(min(size, config.buffer_size) for size in draws)
    network = sum(tensor.nbytes for tensor in net.state_dict().values())
    outputs: list[int] = []
    for module in net.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _, __, output: outputs.append(output.nbytes))
    with torch.no_grad():
        net.eval()(torch.empty((1, *spec.input_shape), dtype=dtype, device="meta"))
    return {
        "data": math.prod(spec.image_shape) * images,
        "buffer": buffer,
        "network and gradients": 2 * network,
        "activations": 2 * samples * sum(outputs),
    }
