"""Does a setting diverge? The first steps of the first two tasks, where AdaB2N's penalty is largest, on real images.

    python -m scripts.stability --base_path data --seeds 0,1,2 --models er_ace,derpp --datasets seq-cifar10

Every run is one line of JSON in `--log`; what the log already has is not run again. Flags after `--` go to every run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from itertools import islice, product
from pathlib import Path

import torch

from utils.config.arguments import resolve
from utils.config.parser import parse
from utils.run.build import Data, build_method, build_network
from utils.step import Place

TASKS = 2


def first_steps(flags: list[str], steps: int) -> dict:
    """The losses and penalties of the first `steps` steps of the first tasks, up to where one is not finite."""
    config = resolve(parse(flags))
    torch.set_num_threads(config.num_threads or 1)
    device = torch.device("cpu")
    data = Data(config)
    net = build_network(config, data.spec, device)
    stream = data.stream(device)
    method = build_method(config, stream.spec, net, device)
    chosen = {name: getattr(config, name) for name in ("num_filters", "lr", "kappa", "lambd", "ada_t0")}
    losses, penalties, count = [], [], 0
    net.train()
    for task in range(TASKS):
        method.grow()
        method.begin_task(task, stream)
        for batch in islice(stream.batches(task, 0, 0), steps):
            step = method.step(batch, Place(task, count, 0))
            count += 1
            losses.append(step.loss.item())
            penalties.append(step.losses["penalty"].item() if "penalty" in step.losses else 0.0)
            if not math.isfinite(losses[-1]):
                return chosen | outcome(losses, penalties, diverged=count)
    return chosen | outcome(losses, penalties, diverged=None)


def outcome(losses: list[float], penalties: list[float], diverged: int | None) -> dict:
    finite = [loss for loss in losses if math.isfinite(loss)]
    return {
        "diverged_at": diverged,
        "largest_loss": max(finite),
        "largest_penalty": max((p for p in penalties if math.isfinite(p)), default=0.0),
        "last_losses": losses[-3:] if diverged is None else [],
        "steps": len(losses),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.stability", description=__doc__.splitlines()[0])
    parser.add_argument("--base_path", default="data")
    parser.add_argument("--models", default="er_ace,derpp")
    parser.add_argument("--datasets", default="seq-cifar10,seq-cifar100")
    parser.add_argument("--seeds", default=",".join(map(str, range(10))))
    parser.add_argument("--steps", type=int, default=60, help="in each of the first two tasks")
    parser.add_argument("--log", type=Path, default=Path("stability.jsonl"))
    parser.add_argument("flags", nargs="*", help="after --: flags of main.py for every run")
    arguments = parser.parse_args()
    done = [json.loads(line) for line in arguments.log.read_text().splitlines()] if arguments.log.exists() else []
    known = {tuple(line["flags"]): line for line in done}
    worst, count = [], 0
    for dataset, model, seed in product(
        arguments.datasets.split(","), arguments.models.split(","), arguments.seeds.split(",")
    ):
        flags = ["--model", model, "--norm", "adab2n", "--dataset", dataset, "--seed", seed, *arguments.flags]
        line = known.get(tuple(flags))
        if line is None:
            line = {"flags": flags, **first_steps([*flags, "--base_path", arguments.base_path], arguments.steps)}
            with open(arguments.log, "a") as file:
                file.write(json.dumps(line) + "\n")
        count += 1
        if line["diverged_at"]:
            worst.append(line)
        end = f"DIVERGED at step {line['diverged_at']}" if line["diverged_at"] else f"{line['steps']} steps"
        print(
            f"{' '.join(flags)}: {end}, largest loss {line['largest_loss']:.3g}, "
            f"largest penalty {line['largest_penalty']:.3g}",
            flush=True,
        )
    print(f"{len(worst)} of {count} runs diverged")
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
