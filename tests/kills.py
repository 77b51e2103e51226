"""Runs that are killed with SIGKILL at random moments and resumed, which must end like an uninterrupted run.

A run is killed at any moment, while it writes a checkpoint, and between a task's last step and the end of its
evaluation. Runs are forked from a server that has everything imported, so that a start costs little.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

# Imported once in the server, not in every run.
import safetensors.torch  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch._dynamo  # noqa: F401 (torch.optim imports it)
import torchvision  # noqa: F401

import utils.run.execution  # noqa: F401
from main import main
from tests.outcomes import outcome

NORMS = ("bn", "cn", "adab2n")
REPLAY = ("er", "er_ace", "derpp", "er_ace_lider", "derpp_lider", "der", "agem_r")
OWN_BUFFER = ("agem", "gdumb", "icarl")
WITHOUT_BUFFER = ("sgd", "joint", "ewc_on")
AIMS = ("any moment", "inside a checkpoint", "at the end of a task")
CHECKPOINT_STEPS = 2
FLAGS = ["--dataset", "seq-digits", "--batch_size", "40", "--num_filters", "2", "--log_every", "3", "--save_model"]
FLAGS += ["--checkpoint_every", str(CHECKPOINT_STEPS), "--num_threads", "1", "--non_verbose"]
FLAGS_OF = {"gdumb": ["--fitting_epochs", "4"], "cn": ["--groups", "2"]}
ROOT = Path(__file__).resolve().parents[1]


class Kill(NamedTuple):
    aim: str
    hit: bool  # a file half written, or an evaluation cut short; always for "any moment"


def combinations() -> list[list[str]]:
    """Return the flags of every method with three norms, and with both kinds of buffer where it has the choice."""
    buffer = ["--buffer_size", "50"]
    kinds = {REPLAY: ([*buffer, "--buffer_mode", "reservoir"], [*buffer, "--buffer_mode", "ring"]),
             OWN_BUFFER: (buffer,), WITHOUT_BUFFER: ([],)}  # fmt: skip
    return [["--model", model, "--norm", norm, *flags] for models, variants in kinds.items()
            for model, norm, flags in itertools.product(models, NORMS, variants)]  # fmt: skip


def run(options: list[str], results: Path) -> None:
    further = [flag for part, flags in FLAGS_OF.items() if part in options for flag in flags]
    with open(results.with_suffix(".output"), "a") as output, redirect_stdout(output), redirect_stderr(output):
        code = main([*options, *further, *FLAGS, "--results_path", str(results)])
    os._exit(code)


def start(options: list[str], results: Path) -> multiprocessing.process.BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.kills"])
    process = context.Process(target=run, args=(options, results))
    with patch.dict(os.environ, PYTHONPATH=str(ROOT)):  # for the server, which does not have pytest's sys.path
        process.start()
    return process


def kill(process, results: Path, aim: str, task_ends: set[int], draw: random.Random) -> Kill | None:
    """Wait for the moment that is aimed at, and kill; return None if the run ended before."""
    before, leftovers = newest_step(results), half_written(results)
    delay, checkpoints = draw.uniform(0, 0.05), draw.randint(1, 5)
    while process.is_alive():
        step = newest_step(results)
        if aim == "any moment" and step >= before + CHECKPOINT_STEPS * checkpoints:
            time.sleep(delay)
            break
        if aim == "inside a checkpoint" and step > before and half_written(results) - leftovers:
            break
        if aim == "at the end of a task" and step > before and step in task_ends:
            break
        time.sleep(2e-4)  # polling without a pause would slow the run down
    process.kill()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        return None
    if aim == "inside a checkpoint":
        return Kill(aim, bool(half_written(results) - leftovers))
    if aim == "at the end of a task":
        return Kill(aim, newest_step(results) > max(evaluated_steps(results), default=0))
    return Kill(aim, True)


def newest_step(results: Path) -> int:
    return max((int(p.stem.split("-")[1]) for p in results.glob("runs/*/checkpoint-*.pt")), default=0)


def half_written(results: Path) -> set[str]:
    """Return the names of checkpoints that are being written, or were when a run was killed."""
    return {path.name for path in results.glob("runs/*/.checkpoint-*.tmp")}


def evaluated_steps(results: Path) -> set[int]:
    """Return the steps after which there was an evaluation: the ends of tasks."""
    lines = [line for path in results.glob("runs/*/metrics.jsonl") for line in path.read_text().splitlines()]
    return {event["step"] for event in map(json.loads, lines) if event["event"] == "evaluation"}


def kill_and_resume(options: list[str], kills: int, seed: int, folder: Path) -> tuple[list[Kill], list[str]]:
    """Kill runs of one combination so many times; return the kills, and what differed when a run came to its end."""
    draw = random.Random(seed)
    straight, killed = folder / f"{seed}-straight", folder / f"{seed}-killed"
    start(options, straight).join()
    task_ends = evaluated_steps(straight)
    done: list[Kill] = []
    differing: list[str] = []
    finished = 0
    while finished < 10 and not differing:
        process = start(options, killed)
        if len(done) < kills:
            if result := kill(process, killed, AIMS[(seed + len(done) + finished) % 3], task_ends, draw):
                done.append(result)
                continue
            finished += 1  # before it could be killed: start over
        process.join()
        if process.exitcode != 0:
            return done, [f"exit code {process.exitcode}"]
        expected, actual = outcome(straight), outcome(killed)
        differing = [name for name in expected if expected[name] != actual[name]]
        shutil.rmtree(killed)
        if len(done) >= kills:
            break
    shutil.rmtree(straight)
    return done, differing
