"""steps alone and beside one busy process per core, as threads wait for each other here and as libgomp has them wait

Steps of DER++ with AdaB2N. A process for each way of waiting is asked for some in turn.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from scripts.bench.timing import interleaved, ratio, shown
from utils.tables import aligned

STEPS = """
import sys
from scripts.bench import workloads
import torch

threads, width, steps = map(int, sys.argv[1:])
torch.set_num_threads(threads)
step = workloads.training_step(workloads.training_in_second_task(model="derpp", norm="adab2n", num_filters=width))
for _ in sys.stdin:
    for _ in range(steps):
        step()
    print("done", flush=True)
"""
BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:  # and not for ever, should the benchmark be killed
    pass
"""
WAYS = {"here": {}, "libgomp": {"GOMP_SPINCOUNT": "300000"}}  # which it takes if nobody says anything else


def add_arguments(parser) -> None:
    parser.set_defaults(repetitions=7)
    parser.add_argument("--width", type=int, default=32, help="--num_filters (default 32)")
    parser.add_argument("--steps", type=int, default=3, help="steps of one repetition (default 3)")


def run(arguments) -> dict:
    words = [STEPS, *map(str, (arguments.threads, arguments.width, arguments.steps))]
    with ExitStack() as stack:
        busy = [started(stack, [BUSY]) for _ in range(os.cpu_count())]
        tell(busy, signal.SIGSTOP)
        candidates = {}
        for name, environment in WAYS.items():
            steps = steps_of(started(stack, words, environment))
            candidates |= {f"alone, {name}": steps, f"busy, {name}": beside(busy, steps)}
        seconds = interleaved(candidates, arguments.repetitions, warmup=1)
    compared = {
        "busy against alone, here": ("busy, here", "alone, here"),
        "busy against alone, libgomp": ("busy, libgomp", "alone, libgomp"),
        "alone, here against libgomp": ("alone, here", "alone, libgomp"),
    }
    ratios = {title: ratio(seconds[one], seconds[other]) for title, (one, other) in compared.items()}
    ms = {name: float(np.median(times)) * 1e3 / arguments.steps for name, times in seconds.items()}
    print(aligned([["a step", "ms"], *([name, f"{value:.1f}"] for name, value in ms.items())]), end="\n\n")
    print(aligned([["", "ratio"], *([title, shown(found)] for title, found in ratios.items())]), end="\n\n")
    return {"ms": ms, "ratios": ratios}


def started(stack: ExitStack, words: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    )
    stack.enter_context(process)  # which waits for its end
    stack.callback(process.kill)
    return process


def steps_of(process: subprocess.Popen) -> Callable[[], None]:
    def run() -> None:
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "done\n", "the process that takes the steps has died"

    return run


def beside(busy: Sequence[subprocess.Popen], run: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        tell(busy, signal.SIGCONT)
        run()
        tell(busy, signal.SIGSTOP)

    return both


def tell(processes: Sequence[subprocess.Popen], number: signal.Signals) -> None:
    for process in processes:
        process.send_signal(number)
