"""Check norms, methods, data sets, backbones, buffers and observers of your own, with short runs on the digits.

python -m scripts.check_plugin mine                 every part of a folder or module
python -m scripts.check_plugin mine --model lwf     one of them
python -m scripts.check_plugin --model er derpp     parts of the project
python -m scripts.check_plugin --model gdumb --flags --fitting_epochs 4

A run is made in one process and again in another one, killed three times and resumed, saved and evaluated, and, if the
method says that it `compiles`, compiled. All must have the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
from argparse import REMAINDER
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from utils import console
from utils.cli import Parser
from utils.config.plugins import given_plugins, load_plugins
from utils.config.registry import FAILED_FILES, OBSERVERS
from utils.config.resolve import SELECTORS
from utils.errors import UsageError

PARTS = SELECTORS | {"probe": OBSERVERS}
RUN = {"model": "er", "norm": "bn", "dataset": "seq-digits"}
FLAGS = ("--batch_size", "40", "--checkpoint_every", "2", "--num_threads", "1", "--device", "cpu", "--non_verbose")
ON_DIGITS = ("--num_filters", "4")
KILLS = (("step", 0), ("evaluation", 1), ("step", -1))  # what is notified, in which task
OF_THE_PROJECT = ("net", "config", "spec", "augment", "buffer", "new_network", "assembler", "runner", "compiled")
ROOT = Path(__file__).resolve().parents[1]
SERVER = f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); from scripts.check_plugin import serve; serve()"
COMPILE_TOLERANCE = 1e-6  # of weights in float64


@dataclass(frozen=True)
class Job:
    """One command, in a process of its own."""

    words: list[str]
    folder: str  # of its results
    kill: tuple[str, int] | None = None  # when the process is killed
    evaluate: str | None = None  # the results of a run, in place of training


@dataclass
class Part:
    """A part of a run, and the folders of its runs."""

    selector: str
    name: str
    words: list[str]  # of its runs
    loading: list[str]  # the words that load it
    folder: Path
    compiles: bool = False
    problems: list[str] = field(default_factory=list)

    def job(self, name: str, *more: str, **settings: Any) -> Job:
        return Job([*self.words, *self.loading, *more], f"{self.folder}/{name}", **settings)


@console.reporting_errors
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m scripts.check_plugin", description=__doc__)
    parser.add_argument("plugins", nargs="*", help="folders or modules, as --plugins takes them")
    for selector in PARTS:
        parser.add_argument(f"--{selector}", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--flags", nargs=REMAINDER, default=[], help="all that follows are further flags of every run")
    arguments = parser.parse_args(argv)
    plugins = given_plugins(["--plugins", *arguments.plugins])
    before = {selector: set(registry.entries()) for selector, registry in PARTS.items()}
    load_plugins(plugins)
    names = {selector: getattr(arguments, selector) for selector in PARTS}
    if not any(names.values()):
        names = {name: sorted(set(registry.entries()) - before[name]) for name, registry in PARTS.items()}
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(selector, name) for selector, some in names.items() for name in some]
        parts = [build_part(*pair, plugins, arguments.flags, Path(folder)) for pair in pairs]
        check(parts)
    for part in parts:
        print(f"{'FAILED' if part.problems else 'ok':7}{part.selector} {part.name}", *part.problems, sep="\n       ")
    for reason in FAILED_FILES.values():
        print(f"FAILED {reason}")
    if not parts and not FAILED_FILES:
        raise UsageError("nothing to check; name a folder, --model or --norm")
    return int(bool(FAILED_FILES) or any(part.problems for part in parts))


def build_part(selector: str, name: str, plugins: list[str], flags: list[str], folder: Path) -> Part:
    entry = PARTS[selector].get(name)
    run = RUN | {selector: name}
    words = [word for flag, value in run.items() for word in (f"--{flag}", value)]
    words += FLAGS if selector != "dataset" else (*FLAGS, "--debug_mode")  # it may be large
    words += ON_DIGITS if selector not in ("dataset", "backbone") else ()
    compiles = selector == "model" and entry.build.compiles
    loading = ["--plugins", *plugins] if plugins else []
    return Part(selector, name, [*words, *flags], loading, folder / f"{selector}-{name}", compiles)


def check(parts: list[Part]) -> None:
    """Run everything and note the problems of every part.

    Two servers fork for every job, with other hashes of text and other states of numpy's and Python's generators.
    """
    first, second = [], []
    for part in parts:
        first += [part.job("straight", "--save_model")]
        first += [part.job("resumed", "--save_model", kill=kill) for kill in KILLS]
        second += [part.job("again", "--save_model"), part.job("resumed", "--save_model")]
        second += [Job(part.loading, f"{part.folder}/evaluated", evaluate=f"{part.folder}/straight")]
        if part.compiles:
            first += [part.job("uncompiled", "--save_model", "--dtype", "float64")]
            second += [part.job("compiled", "--save_model", "--dtype", "float64", "--compile")]
    for hash_seed, jobs in (("1", first), ("2", second)):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
        described = json.dumps([asdict(job) for job in jobs])
        subprocess.run([sys.executable, "-c", SERVER], input=described, env=environment, text=True, check=True)
    for part in parts:
        part.problems += problems_of(part)


# --- the processes ----------------------------------------------------------------------------------------------------


def serve() -> None:
    """Do the jobs of standard input one after the other, each in a fork. Plug-ins are imported only there."""
    import safetensors.torch  # noqa: F401
    import torch._dynamo  # noqa: F401 (the first optimizer imports it)

    import utils.run.execution  # noqa: F401

    for described in json.load(sys.stdin):
        process = multiprocessing.get_context("fork").Process(target=run_job, args=(Job(**described),))
        process.start()
        process.join()


def run_job(job: Job) -> None:
    """Run one command; what it prints goes to a file beside its results."""
    import main
    import utils.run.execution as execution

    os.makedirs(job.folder, exist_ok=True)
    output = os.open(f"{job.folder}/output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if "--compile" in job.words:
        from models import compiled_step

        compiled_step.BACKEND = "aot_eager"  # the same graph, without generating code for minutes
    if job.evaluate is not None:
        evaluate(job)
        return
    original = execution.build_observers
    execution.build_observers = lambda config, method, n_tasks, folder: [
        *original(config, method, n_tasks, folder),
        build_watch(method, job, n_tasks),
    ]
    main.main([*job.words, "--results_path", job.folder])


def evaluate(job: Job) -> None:
    """Evaluate a saved run in this process; write its accuracies, and which attributes are not as they were."""
    from utils.config.parser import parse
    from utils.run.evaluation import accuracies
    from utils.run.saved_model import load_saved

    assert job.evaluate is not None
    (folder,) = Path(job.evaluate).glob("runs/*")
    _, method, stream = load_saved(folder, parse(["--eval_only", os.fspath(folder), *job.words]))
    write_unrestored(job, json.loads(Path(job.evaluate, "attributes.json").read_text()), method)
    results = accuracies(method, stream, range(stream.spec.n_tasks))
    Path(job.folder, "accuracies.json").write_text(json.dumps(results))


def write_unrestored(job: Job, before: dict[str, str], method: Any) -> None:
    now = attributes(method)
    unrestored = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    with open(f"{job.folder}/unrestored.txt", "a") as file:
        file.writelines(f"{name}\n" for name in unrestored)


def build_watch(method: Any, job: Job, n_tasks: int) -> Any:
    """Return an observer that compares attributes before and after a resume, and that kills the process."""
    from utils.run.observers import Observer

    class Watch(Observer):
        steps = 0  # in the task to be killed in

        def state_dict(self) -> dict[str, Any]:
            return attributes(method)

        def load_state_dict(self, state: dict[str, Any]) -> None:
            write_unrestored(job, state, method)

        def on_step(self, step: Any) -> None:
            self.steps += is_due("step", step.index.task)
            if self.steps == 3:  # after a checkpoint of that task, or of the end of the one before
                os.kill(os.getpid(), signal.SIGKILL)

        def on_evaluation(self, event: dict[str, Any]) -> None:
            if is_due("evaluation", event["task"]):
                os.kill(os.getpid(), signal.SIGKILL)

        def on_end(self, record: dict[str, Any]) -> None:
            Path(job.folder, "attributes.json").write_text(json.dumps(attributes(method)))

    def is_due(event: str, task: int) -> bool:
        return job.kill is not None and tuple(job.kill) in ((event, task), (event, task - n_tasks))

    return Watch()


# --- what a method and its network hold -------------------------------------------------------------------------------


def attributes(method: Any) -> dict[str, str]:
    """Return a digest of every attribute of the method and of the network's layers, parameters excepted."""
    values = {name: value for name, value in vars(method).items() if name not in (*OF_THE_PROJECT, "optimizer")}
    for path, module in method.net.named_modules():
        for name, value in layer_values(module).items():
            values[f"{type(module).__name__}.{name}/{path}"] = value
    return {name: hashlib.sha256(repr(plain(value)).encode()).hexdigest()[:16] for name, value in values.items()}


def layer_values(module: Any) -> dict[str, Any]:
    from torch import nn

    own = {name: value for name, value in vars(module).items() if name not in vars(nn.Module())}
    return own | dict(module.named_buffers(recurse=False))


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value whose text is the same for equal content."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), hashlib.sha256(content).hexdigest()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return value
    if depth > 6:
        return type(value).__name__
    if isinstance(value, torch.Generator):
        return plain(value.get_state())
    if isinstance(value, np.random.Generator):
        return plain(value.bit_generator.state, depth + 1)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.nn.Module):
        layers = {path: layer_values(module) for path, module in value.named_modules()}
        return plain(dict(value.state_dict()), depth + 1), plain(layers, depth + 1)
    if isinstance(value, dict):
        return sorted((repr(plain(key, depth + 1)), plain(item, depth + 1)) for key, item in value.items())
    if isinstance(value, list | tuple | deque):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(plain(item, depth + 1)) for item in value)
    return type(value).__name__, plain(vars(value), depth + 1) if hasattr(value, "__dict__") else None


# --- comparisons ------------------------------------------------------------------------------------------------------


def problems_of(part: Part) -> list[str]:
    """Return a line for everything that an author forgot."""
    straight = read_run(part.folder / "straight")
    if straight is None:
        return [f"does not run: {last_line(part.folder / 'straight')}"]
    again, resumed = read_run(part.folder / "again"), read_run(part.folder / "resumed")
    if again is None or difference(straight, again):
        return [
            f"another process has other numbers ({difference(straight, again)}): something is random that is not "
            "seeded, such as np.random.default_rng(), a time or the order of a set; draw from "
            "utils.data.random.generator, or from the global generators of torch, numpy or Python"
        ]
    problems = []
    if resumed is None or difference(straight, resumed):
        what = difference(straight, resumed) if resumed else last_line(part.folder / "resumed")
        text = unrestored_text(part, "resumed") or "; is there state outside of the method and its layers?"
        problems.append(f"a killed and resumed run has other numbers ({what}){text}")
    if evaluation := evaluation_difference(part, straight["record"]):
        problems.append(f"a saved network has other accuracies with --eval_only ({evaluation}): predict needs what is "
                        f"not saved{unrestored_text(part, 'evaluated')}")  # fmt: skip
    if part.compiles:
        compiled, uncompiled = (read_run(part.folder / name) for name in ("compiled", "uncompiled"))
        if uncompiled is None:
            problems.append(f"compiles = True, but --dtype float64 fails: {last_line(part.folder / 'uncompiled')}")
        elif compiled is None:
            problems.append(f"compiles = True, but --compile fails: {last_line(part.folder / 'compiled')}")
        elif (most := largest_difference(compiled, uncompiled)) > COMPILE_TOLERANCE:
            problems.append(f"compiles = True, but --compile has other weights, by up to {most:.1g} in float64; `loss` "
                            "may use tensors, and of the index only first_task")  # fmt: skip
    return problems


def read_run(results: Path) -> dict[str, Any] | None:
    """Return the record and the network of a finished run, or None."""
    from safetensors.torch import load_file

    for path in results.glob("runs/*/record.json"):
        record = json.loads(path.read_text())
        if record["status"] == "finished":
            return {"record": record, "network": load_file(path.with_name("model.safetensors"))}
    return None


def difference(straight: dict[str, Any], other: dict[str, Any] | None) -> str:
    """Return the first accuracy that changed, or what else did; empty if nothing did."""
    import torch

    if other is None:
        return "it does not end"
    if straight["record"]["identity"] != other["record"]["identity"]:
        return "other data"
    for setting, result in straight["record"]["results"].items():
        matrices = result["matrix"], other["record"]["results"][setting]["matrix"]
        for after, rows in enumerate(zip(*matrices, strict=True), 1):
            for task, (accuracy, now) in enumerate(zip(*rows, strict=True), 1):
                if accuracy != now:
                    return f"{accuracy:.1f} became {now:.1f} on task {task} after task {after}"
    same = all(torch.equal(tensor, other["network"][name]) for name, tensor in straight["network"].items())
    return "" if same else "other weights, the same accuracies"


def evaluation_difference(part: Part, record: dict[str, Any]) -> str:
    path = part.folder / "evaluated" / "accuracies.json"
    if not path.exists():
        return last_line(part.folder / "evaluated")
    for setting, row in json.loads(path.read_text()).items():
        if row != (expected := record["results"][setting]["matrix"][-1]):
            return f"{sum(expected) / len(expected):.1f} became {sum(row) / len(row):.1f}"
    return ""


def largest_difference(compiled: dict[str, Any], uncompiled: dict[str, Any]) -> float:
    pairs = [(tensor, uncompiled["network"][name]) for name, tensor in compiled["network"].items()]
    return max((ours - theirs).abs().max().item() for ours, theirs in pairs if ours.is_floating_point())


def unrestored_text(part: Part, name: str) -> str:
    path = part.folder / name / "unrestored.txt"
    names = dict.fromkeys(line.split("/")[0] for line in path.read_text().splitlines()) if path.exists() else {}
    advice = "state_dict must return it, or it must be a buffer of its layer"
    return f"; not restored: {', '.join([*names][:4])}; {advice}" if names else ""


def last_line(folder: Path) -> str:
    path = folder / "output.txt"
    lines = [line for line in path.read_text(errors="replace").splitlines() if line] if path.exists() else []
    return ([line for line in lines if line.startswith("error: ")] or lines or ["it printed nothing"])[-1][:300]


if __name__ == "__main__":
    console.run_command(main)
