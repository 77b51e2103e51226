"""Kill runs with SIGKILL at random moments and resume them: the end must be the same to the bit. `make soak`.

For every replay method, norm and buffer, and for sgd and joint, an uninterrupted run of `seq-digits` is compared with
one that is killed again and again: at any moment, while a checkpoint is being written, and during evaluation. Record,
log and final network must be equal but for times. Runs are forked from this process, which has everything imported, so
that a start costs little.
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
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import utils.execution  # noqa: F401
from main import main

NORMS = ("bn", "cn", "adab2n")
REPLAY = ("er", "er_ace", "derpp", "er_ace_lider", "derpp_lider")
AIMS = ("any moment", "inside a checkpoint", "during evaluation")
TIMES = ("seconds", "wall_seconds", "steps_per_second", "environment")


def combinations() -> list[list[str]]:
    replay = itertools.product(REPLAY, NORMS, ("reservoir", "ring"))
    plain = itertools.product(("sgd", "joint"), NORMS)
    return [["--model", m, "--norm", n, "--buffer_mode", b, "--buffer_size", "50"] for m, n, b in replay] + [
        ["--model", m, "--norm", n] for m, n in plain
    ]


def command(options: list[str], results: Path) -> list[str]:
    small = ["--num_filters", "4", *(["--groups", "4"] if "cn" in options else [])]
    fixed = ["--dataset", "seq-digits", "--num_threads", "1", "--non_verbose", "--save_model", "--log_every", "10"]
    return [*options, *small, *fixed, "--checkpoint_every", "4", "--results_path", str(results)]


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


def kill(process, results: Path, aim: str, dice: random.Random) -> Kill | None:
    """Wait for the moment that is aimed at, and kill; None if the run was over before."""
    before = newest_step(results)
    tempo = dice.uniform(0, 0.05)
    progress = dice.randint(1, 5)
    while process.is_alive():
        step = newest_step(results)
        if aim == "any moment" and step >= before + 4 * progress:
            time.sleep(tempo)
            break
        if aim == "inside a checkpoint" and step > before and half_written(results):
            break
        if aim == "during evaluation" and step > before and step % 29 == 0:
            break
    if not process.is_alive():
        return None
    process.kill()
    process.join()
    if process.exitcode != -9:
        return None
    hit = {
        "any moment": True,
        "inside a checkpoint": half_written(results),
        "during evaluation": newest_step(results) > last_evaluated(results),
    }[aim]
    for leftover in results.glob("runs/*/.checkpoint-*.tmp"):
        leftover.unlink()
    return Kill(aim, hit)


def newest_step(results: Path) -> int:
    return max((int(p.stem.split("-")[1]) for p in results.glob("runs/*/checkpoint-*.pt")), default=0)


def half_written(results: Path) -> bool:
    return any(results.glob("runs/*/.checkpoint-*.tmp"))


def last_evaluated(results: Path) -> int:
    lines = [
        json.loads(line) for path in results.glob("runs/*/metrics.jsonl") for line in path.read_text().splitlines()
    ]
    return max((line["step"] for line in lines if line["event"] == "evaluation"), default=0)


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


def soak(options: list[str], kills: int, seed: int, folder: Path) -> tuple[list[Kill], list[str]]:
    """The kills of one combination, and what differed in the end."""
    dice = random.Random(seed)
    straight, killed = folder / f"{seed}-straight", folder / f"{seed}-killed"
    start(options, straight).join()
    done: list[Kill] = []
    for number in range(10 * kills):
        if len(done) >= kills:
            break
        process = start(options, killed)
        if (result := kill(process, killed, AIMS[(seed + number) % 3], dice)) is None:
            shutil.rmtree(killed)  # it got to its end first: begin again
            continue
        done.append(result)
    start(options, killed).join()
    a, b = outcome(straight), outcome(killed)
    differences = [name for name in a if a[name] != b[name]]
    shutil.rmtree(straight)
    shutil.rmtree(killed)
    return done, differences


def run_all() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, help="kills in all (default: three for every combination)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="seed of the moments (default: the time)")
    arguments = parser.parse_args()
    todo = combinations()
    random.Random(arguments.seed).shuffle(todo)
    wanted = arguments.kills or 3 * len(todo)
    print(f"seed {arguments.seed}", file=sys.stderr)
    done, differing, combos = [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for options in todo:
            if len(done) >= wanted:
                break
            kills, differences = soak(options, 3, arguments.seed % 1000 + combos, Path(folder))
            combos += 1
            done += kills
            differing += bool(differences)
            note = f"DIFFERENT: {', '.join(differences)}" if differences else "identical"
            print(f"{' '.join(options)}: {len(kills)} kills, {note}", file=sys.stderr)
    hits = {aim: sum(kill.hit for kill in done if kill.aim == aim) for aim in AIMS}
    print(", ".join(f"{count} {aim}" for aim, count in hits.items()))
    print(f"{len(done)} kills in {combos} runs, {differing} differences")
    return 1 if differing or len(done) < wanted else 0


if __name__ == "__main__":
    sys.exit(run_all())
