"""a whole run against a bare loop of the same network over the same tensors, evaluations included

The run is as `main.py` makes it, with log, checkpoints and buffer, on noise of CIFAR-10's form: five tasks, and two
test images for every step, as there. The bare loop has the batches of such a run at hand, as they went into the
network, and does nothing but forward, cross-entropy, backward, optimizer, and the forwards of the same evaluations.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from scripts.bench import workloads
from scripts.bench.step import cross_entropies
from scripts.bench.timing import now, ratio
from utils.config.arguments import resolve
from utils.config.loop_options import Interval
from utils.device import pick_device
from utils.run.build import build_method, build_network
from utils.run.checkpoints import Checkpoints
from utils.run.observers import JsonLines
from utils.run.statistics import EVALUATION_BATCH
from utils.run.training import Training
from utils.step import Place, forwards_of, total
from utils.tables import aligned

TASKS, TESTED_PER_STEP, BOUND = 5, 2, 1.03
EVALUATION = "evaluations, beyond their forwards"


def add_arguments(parser) -> None:
    parser.set_defaults(repetitions=5)
    parser.add_argument("--width", type=int, default=32, help="--num_filters (default 32)")
    parser.add_argument(
        "--steps",
        type=int,
        default=100,
        help="of each of the five tasks (default 100): checkpoints come with their ends",
    )
    parser.add_argument("--model", default="derpp", help="(default derpp)")
    parser.add_argument("--norms", nargs="+", default=["bn", "adab2n"], help="(default bn adab2n)")


def run(arguments) -> dict:
    results = {}
    for norm in arguments.norms:
        results[norm] = compared(arguments, norm)
        print(aligned(rows_of(arguments, norm, results[norm])), end="\n\n", flush=True)
    return results


def compared(arguments, norm: str) -> dict:
    """Whole and bare runs in turns, each from the beginning."""
    seen, parts = recorded(started(arguments, norm)), defaultdict(list)
    seconds = {"whole": [], "bare": []}
    for repetition in range(arguments.repetitions):
        for name in sorted(seconds, reverse=bool(repetition % 2)):
            training = started(arguments, norm)
            if name == "bare":
                seconds[name].append(timed(lambda training=training: bare(training, seen)))
                continue
            with tempfile.TemporaryDirectory(dir=".") as folder:
                spent = parts_of(training, Path(folder))
                seconds[name].append(timed(training.run))
            for part, value in spent.items():
                parts[part].append(value)
    whole, alone = (np.array(seconds[name]) for name in ("whole", "bare"))
    medians = {part: float(np.median(values)) for part, values in parts.items()}
    medians[EVALUATION] -= bare_evaluation(started(arguments, norm))
    return {
        "whole_s": float(np.median(whole)),
        "bare_s": float(np.median(alone)),
        "whole / bare": ratio(whole, alone),
        "share_of_bare": {part: value / float(np.median(alone)) for part, value in medians.items()},
    }


def started(arguments, norm: str) -> Training:
    config = resolve({"dataset": "seq-cifar10", "model": arguments.model, "norm": norm, "num_filters": arguments.width})
    device = pick_device(config.device)
    spec = workloads.cifar_like_spec(arguments.steps * config.batch_size // 2, arguments.steps * TESTED_PER_STEP)
    stream = workloads.synthetic_stream(spec, config).to(device)
    method = build_method(config, spec, build_network(config, spec, device), device)
    return Training(config, stream, method)


def timed(act: Callable[[], object]) -> float:
    start = now()
    act()
    return now() - start


def recorded(training: Training) -> list[tuple[int, dict]]:
    """The task and the batches of every step of a run, as they went into the network."""
    seen, batches = [], training.method.batches

    def noted(batch, place: Place):
        found = batches(batch, place)
        seen.append((place.task, found))
        return found

    training.method.batches = noted
    training.run()
    return seen


def bare(training: Training, seen: list[tuple[int, dict]]) -> None:
    method, tests = training.method, normalized(training)
    evaluate(method, tests, range(TASKS))
    for task in range(TASKS):
        method.grow()
        method.net.train()
        for _, batches in (one for one in seen if one[0] == task):
            learn(method, batches, task)
        evaluate(method, tests, range(min(task + 2, TASKS)))


def learn(method, batches: dict, task: int) -> None:
    replayed = len(batches) > 1
    weight = method.net.norms.penalty_weight(task, replayed)
    outputs = method.forward(batches, task, replayed=replayed, penalized=weight > 0)
    loss = cross_entropies(batches, outputs)
    if weight:
        loss = loss + weight * total(found.penalty for found in forwards_of(outputs))
    method.optimizer.zero_grad()
    loss.backward()
    method.optimizer.step()


def normalized(training: Training) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The test images of every task, as they go into the network."""
    normalize, stream = training.method.augment.normalize, training.stream
    return [[(normalize(b.images), b.labels) for b in stream.test(task, EVALUATION_BATCH)] for task in range(TASKS)]


@torch.no_grad()
def evaluate(method, tests, tasks) -> None:
    method.net.eval()
    right = [(method.net(inputs).argmax(1) == labels).sum() for task in tasks for inputs, labels in tests[task]]
    torch.stack(right).sum().item()


def bare_evaluation(training: Training) -> float:
    """Seconds of the forwards of all evaluations of a run: of all tasks before it, then of those seen and the next."""
    tests, counts = normalized(training), (TASKS, *(min(task + 2, TASKS) for task in range(TASKS)))
    return timed(lambda: [evaluate(training.method, tests, range(count)) for count in counts])


def parts_of(training: Training, folder: Path) -> dict[str, float]:
    """Seconds that a run will have spent in what the bare loop does not do, or does otherwise. On a GPU, the host's."""
    training.observers = [JsonLines(folder / "metrics.jsonl")]
    training.checkpoints = Checkpoints(folder, {}, {}, Interval(seconds=300))
    spent: dict[str, float] = defaultdict(float)
    method = training.method

    def watch(owner, name: str, title: str) -> None:
        act = getattr(owner, name)

        def run(*arguments, **keywords):
            start = now()
            found = act(*arguments, **keywords)
            spent[title] += now() - start
            return found

        setattr(owner, name, run)

    watch(method, "batches", "draws, augmentation")
    watch(method, "remember", "buffer")
    watch(training, "_log", "log")
    watch(training, "_save", "checkpoints")
    watch(training, "_evaluate", EVALUATION)
    return spent


def rows_of(arguments, norm: str, found: dict) -> list[list[str]]:
    title = f"{arguments.model}, {norm}, width {arguments.width}: whole against bare"
    share = found["share_of_bare"]
    rest = found["whole_s"] / found["bare_s"] - 1 - sum(share.values())
    return [
        [title, "{ratio:.3f} [{low:.3f}, {high:.3f}]".format(**found["whole / bare"])],
        ["  bound at width 32", f"{BOUND}"],
        *([f"  {part}, % of bare", f"{100 * value:.2f}"] for part, value in share.items()),
        ["  all else, % of bare", f"{100 * rest:.2f}"],
    ]
