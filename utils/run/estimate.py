"""`--dry_run`: the folder of a run and its steps, before it starts."""

from __future__ import annotations

import torch

from utils.config.resolve import Config
from utils.device import pick_device
from utils.errors import DataMissing
from utils.run.build import ABSENT, StreamBuilder, build_network, epoch_sizes
from utils.run.run_folder import RunFolder
from utils.run.training import total_steps


def dry_run_report(config: Config) -> str:
    """Return the folder and steps of a run, as comments of a TOML file. The data may be missing."""
    try:
        spec = StreamBuilder(config).spec
    except DataMissing:
        spec = StreamBuilder(config, ABSENT).spec
    build_network(config, spec, torch.device("meta")).norms.check_device(pick_device(config.device))
    folder, sizes = RunFolder(config, spec, {}), epoch_sizes(config, spec)
    status = "finished" if folder.finished_record() else "not finished"
    steps = f"{total_steps(config, sizes)} in {len(sizes)} task{'s' if len(sizes) > 1 else ''}"
    return f"# folder: {folder.path} ({status})\n# steps: {steps}"
