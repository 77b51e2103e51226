"""Kill runs with SIGKILL at random moments and resume them: the end must be the same to the bit. `make soak`.

For every method with three norms, and with both kinds of buffer where it has the choice, an uninterrupted run of
`seq-digits` is compared with one that is killed again and again: at any moment, while a checkpoint is written, and
after a task's last step, at its end and during its evaluation. Record, log and final network must be equal but for
times, and so must the list of files: what a killed writer left is not tidied up here. A resumed run that ends with an
error counts as a difference. Runs are forked from this process, which has everything imported, so that a start costs
little.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# Imported once here, not in every fork.
import safetensors.torch  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch._dynamo  # noqa: F401 (torch.optim wants it)
import torchvision  # noqa: F401

import utils.run.execution  # noqa: F401
from main import main
from scripts.matrix import SHORT
from utils.run.records import commit

NORMS = ("bn", "cn", "adab2n")
REPLAY = ("er", "er_ace", "derpp", "er_ace_lider", "derpp_lider", "der", "agem")
OWN_BUFFER = ("gdumb", "icarl")
WITHOUT_BUFFER = ("sgd", "joint", "ewc_on")
AIMS = ("any moment", "inside a checkpoint", "at the end of a task")
EVERY = 2  # steps between checkpoints
TIMES = ("date", "seconds", "wall_seconds", "steps_per_second", "environment", "seal")


def combinations() -> list[list[str]]:
    replay = itertools.product(REPLAY, NORMS, (["--buffer_mode", "reservoir"], ["--buffer_mode", "ring"]))
    own = itertools.product(OWN_BUFFER, NORMS, ([],))
    with_buffer = [["--model", m, "--norm", n, *mode, "--buffer_size", "50"] for m, n, mode in (*replay, *own)]
    return with_buffer + [["--model", m, "--norm", n] for m, n in itertools.product(WITHOUT_BUFFER, NORMS)]


def command(options: list[str], results: Path) -> list[str]:
    small = ["--num_filters", "2", *(["--groups", "2"] if "cn" in options else [])]
    short = ["--dataset", "seq-digits", "--batch_size", "40", "--log_every", "3", "--checkpoint_every", str(EVERY)]
    quiet = ["--num_threads", "1", "--non_verbose", "--save_model", "--results_path", str(results)]
    return [*options, *SHORT.get(options[1], ()), *small, *short, *quiet]


def start(options: list[str], results: Path) -> multiprocessing.Process:
    def child() -> None:
        with open(results.with_suffix(".output"), "a") as output:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                code = main(command(options, results))
            os._exit(code)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    return process


@dataclass
class Kill:
    aim: str
    hit: bool  # a file half written, or an evaluation cut short; any living process for "any moment"


def kill(process, results: Path, aim: str, task_ends: set[int], dice: random.Random) -> Kill | None:
    """Wait for the moment that is aimed at, and kill; None if the run was over before."""
    before, leftovers = newest_step(results), half_written(results)
    tempo = dice.uniform(0, 0.05)
    progress = dice.randint(1, 5)
    while process.is_alive():
        step = newest_step(results)
        if aim == "any moment" and step >= before + EVERY * progress:
            time.sleep(tempo)
            break
        if aim == "inside a checkpoint" and step > before and half_written(results) - leftovers:
            break
        if aim == "at the end of a task" and step > before and step in task_ends:
            break
        time.sleep(2e-4)  # a whole core for looking would slow the run down
    process.kill()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        return None
    hit = {
        "any moment": True,
        "inside a checkpoint": bool(half_written(results) - leftovers),
        "at the end of a task": newest_step(results) > last_evaluated(results),
    }[aim]
    return Kill(aim, hit)


def newest_step(results: Path) -> int:
    return max((int(p.stem.split("-")[1]) for p in results.glob("runs/*/checkpoint-*.pt")), default=0)


def half_written(results: Path) -> set[str]:
    """Names of checkpoints that are being written, or were when a run was killed."""
    return {path.name for path in results.glob("runs/*/.checkpoint-*.tmp")}


def evaluated(results: Path) -> set[int]:
    """The steps after which there was an evaluation: the ends of tasks."""
    lines = [
        json.loads(line) for path in results.glob("runs/*/metrics.jsonl") for line in path.read_text().splitlines()
    ]
    return {line["step"] for line in lines if line["event"] == "evaluation"}


def last_evaluated(results: Path) -> int:
    return max(evaluated(results), default=0)


def outcome(results: Path) -> dict:
    """All that a run leaves, without its times."""
    (folder,) = results.glob("runs/*")
    record = json.loads((folder / "record.json").read_text())
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "files": sorted(path.name for path in folder.iterdir()),
        "record": {k: v for k, v in record.items() if k not in TIMES}
        | {"config": {**record["config"], "results_path": ""}},
        "log": [{k: v for k, v in line.items() if k != "seconds"} for line in log],
        "network": (folder / "model.safetensors").read_bytes(),
    }


def differences(straight: Path, killed: Path) -> list[str]:
    try:
        a, b = outcome(straight), outcome(killed)
    except (OSError, ValueError) as error:
        return [f"no outcome ({error})"]
    return [name for name in a if a[name] != b[name]]


def soak(options: list[str], kills: int, seed: int, folder: Path) -> tuple[list[Kill], list[str]]:
    """The kills of one combination, and what differed whenever a run came to its end."""
    dice = random.Random(seed)
    straight, killed = folder / f"{seed}-straight", folder / f"{seed}-killed"
    start(options, straight).join()
    task_ends = evaluated(straight)
    done: list[Kill] = []
    differing: list[str] = []
    too_early = 0
    while too_early < 10 and not differing:
        process = start(options, killed)
        if len(done) < kills:
            aim = AIMS[(seed + len(done) + too_early) % 3]
            if result := kill(process, killed, aim, task_ends, dice):
                done.append(result)
                continue
            too_early += 1  # it got to its end: begin again
        process.join()
        differing += [f"exit code {process.exitcode}"] * (process.exitcode != 0)
        differing += differences(straight, killed)
        shutil.rmtree(killed)
        if len(done) >= kills:
            break
    shutil.rmtree(straight)
    return done, differing


def run_all() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, help="kills in this sitting (default: three for every combination)")
    parser.add_argument("--per_run", type=int, default=3, help="kills of one run (default 3)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="seed of the moments (default: the time)")
    parser.add_argument("--log", type=Path, help="a line of JSON for every run; sittings add up there")
    arguments = parser.parse_args()
    todo = combinations()
    random.Random(arguments.seed).shuffle(todo)
    wanted = arguments.kills or 3 * len(todo)
    print(f"seed {arguments.seed}", file=sys.stderr)
    lines: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, options in enumerate(itertools.cycle(todo)):
            if sum(line["kills"] for line in lines) >= wanted:
                break
            kills, found = soak(options, arguments.per_run, arguments.seed % 1000 + number, Path(folder))
            hits = {aim: sum(kill.hit for kill in kills if kill.aim == aim) for aim in AIMS}
            line = {"run": " ".join(options), "kills": len(kills), "hits": hits, "differing": found, "commit": commit()}
            lines.append(line)
            note(line, arguments.log)
    if arguments.log:
        print(f"this sitting: {summary(lines)}")
        lines = [json.loads(line) for line in arguments.log.read_text().splitlines()]
    print(summary(lines))
    return 1 if any(line["differing"] for line in lines) else 0


def note(line: dict, log: Path | None) -> None:
    end = f"DIFFERENT: {', '.join(line['differing'])}" if line["differing"] else "identical"
    print(f"{line['run']}: {line['kills']} kills, {end}", file=sys.stderr)
    if log:
        with open(log, "a") as file:
            file.write(json.dumps(line) + "\n")


def summary(lines: list[dict]) -> str:
    hits = ", ".join(f"{sum(line['hits'][aim] for line in lines)} {aim}" for aim in AIMS)
    differing = sum(bool(line["differing"]) for line in lines)
    return f"{sum(line['kills'] for line in lines)} kills in {len(lines)} runs ({hits}), {differing} differences"


if __name__ == "__main__":
    sys.exit(run_all())
