"""The options of the run itself and of its training loop, with their defaults per scenario."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass

from utils.config.options import (
    ByFidelity,
    Option,
    Rule,
    SameAs,
    choice,
    choices,
    flag,
    folder,
    integer,
    number,
    path,
    share,
    text,
)
from utils.config.plugins import PLUGINS_VARIABLE
from utils.device import device_name


def milestones(words: str) -> tuple[int, ...]:
    """Option type: epochs separated by commas, or `none`."""
    if words == "none":
        return ()
    try:
        epochs = tuple(int(word) for word in words.split(","))
    except ValueError:
        epochs = (0,)
    if min(epochs) < 1 or list(epochs) != sorted(set(epochs)):
        raise argparse.ArgumentTypeError(f"must be rising epochs such as 35,45, or none; got {words!r}")
    return epochs


def plugin(value: str) -> str:
    """Option type: a folder's or a module's name; what it is shows when it is loaded."""
    return text(value)


@dataclass(frozen=True)
class Interval:
    """Between two checkpoints: a number of steps, or of seconds."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.steps else f"{self.seconds:g}s"


def interval(text: str) -> Interval:
    """Option type: `300s`, `5m`, or a number of steps, as `str` of one gives it too."""
    text = text.removesuffix(" steps")
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    try:
        value = float(text[:-1]) * unit if unit else int(text)
        if not 0 < value < float("inf"):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a time such as 300s or 5m, or a number of steps; got {text!r}"
        ) from None
    return Interval(seconds=value) if unit else Interval(steps=value)


milestones.metavar, interval.metavar, plugin.metavar, device_name.metavar = "EPOCHS", "TIME", "FOLDER", "NAME"

LARGEST_SEED = 2**31 - 1
MANY = 10_000  # seeds; more is a slip


def seeds(words: str) -> tuple[int, ...]:
    """Option type: `0-4`, `0,1,2`, or both."""
    spans = [re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", word) for word in words.split(",")]
    ranges = [range(int(span[1]), int(span[2] or span[1]) + 1) for span in spans if span]
    few = len(ranges) == len(spans) and all(ranges) and sum(map(len, ranges)) <= MANY
    found = tuple(seed for one in ranges for seed in one) if few else (0, 0)
    if len(set(found)) < len(found) or max(found) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(
            f"must be different whole numbers such as 0-4 or 0,1,2, up to {LARGEST_SEED}; got {words[:80]!r}"
        )
    return found


RUN = (
    Option("scenario", choice("online", "offline"), "one pass, or 50 epochs per task", default="online"),
    Option("seed", integer(0, LARGEST_SEED), "seed of everything random; of the class order too", default=0),
    Option(
        "fidelity",
        choice("official", "paper"),
        "where the released code and the paper differ, follow which (see --list switches)",
        default="official",
        changes_numbers=False,  # the switches it sets are what counts
    ),
    Option("device", device_name, "auto, cpu, cuda or cuda:N", default="auto", changes_numbers=False),
    Option("num_threads", integer(1, 1024), "CPU threads (default: torch's choice)", changes_numbers=False),
    Option(
        "deterministic",
        flag,
        "same bits on CUDA too, at some cost in speed; a CPU always gives them",
        default=False,
        changes_numbers=False,
    ),
    Option("dtype", choice("float32", "float64"), "floating-point type", default="float32"),
    Option(
        "rerun",
        flag,
        "train even if the run is finished; its record answers until the new one is there",
        default=False,
        changes_numbers=False,
    ),
    Option(
        "accept_changed_code",
        flag,
        "take the number, or go on from the checkpoint, of code that has changed since",
        default=False,
        changes_numbers=False,
    ),
    Option(
        "restart_changed_code",
        flag,
        "take the number of code that has changed since, but start over rather than go on from its checkpoint; "
        "what sweeps do",
        default=False,
        changes_numbers=False,
    ),
    Option("dry_run", flag, "print the configuration and the cost, and stop", default=False, changes_numbers=False),
    Option(
        "check_data",
        flag,
        "say what the data set finds, with a contact sheet below --results_path, or what is missing, and stop; "
        "needs no --model",
        default=False,
        changes_numbers=False,
    ),
    Option("debug_mode", flag, "only three batches per epoch, to try things out", default=False),
    Option(
        "plugins",
        plugin,
        "folders or modules with norms, methods, data sets or backbones of your own; more of them in the environment "
        f"variable {PLUGINS_VARIABLE}, separated by {os.pathsep!r}",
        default=(),
        changes_numbers=False,
        several=True,
    ),
    Option("eval_only", path, "evaluate a network saved with --save_model; no training", changes_numbers=False),
)

TRAINING = (
    Option(
        "channels_last",
        choice("auto", "yes", "no"),
        "channels-last activations, equal up to rounding; auto: no, whatever the device and the norm",
        default="auto",
        changes_numbers=False,
    ),
    Option(
        "compile",
        flag,
        "forward, loss and backward of a step as one graph, on CUDA replayed as CUDA graphs, equal up to rounding; for "
        "steps with full batches of er, er_ace, derpp, der, sgd and joint",
        default=False,
        changes_numbers=False,
    ),
    Option(
        "amp",
        choice("none", "bfloat16"),
        "bfloat16 for convolutions and products in training; statistics, penalty, loss, weights and evaluation stay "
        "float32",
        default="none",
        neutral="none",
    ),
    Option("n_epochs", integer(1, 10**6), "epochs per task"),
    Option("n_iters", integer(1), "steps per task, instead of --n_epochs", neutral=None),
    Option("batch_size", integer(1, 10**6), "images of the stream in a step"),
    Option("drop_last", flag, "leave an epoch's last batch out if it is not full", default=False, neutral=False),
    Option(
        "start_from",
        integer(0),
        "leave out the tasks before this one, counted from 0, and their classes",
        default=0,
        neutral=0,
    ),
    Option("stop_after", integer(1), "leave out the tasks after the first so many", neutral=None),
    Option(
        "eval_every",
        integer(1),
        "steps between evaluations while a task is trained, beside those at task ends: for accuracy curves, AAA and "
        "worst-case accuracy",
        neutral=None,
    ),
    Option(
        "eval_statistics",
        choice("running", "buffer", "batch"),
        "what norm layers normalize with at test time: their running statistics, those of one pass over the buffer, or "
        "those of the test batch",
        default="running",
        neutral="running",
    ),
    Option(
        "final_probes",
        flag,
        "at the end, how good the embedding is: accuracy of the buffer's nearest class mean (NCM), and of a linear "
        "classifier fitted to all training data",
        default=False,
        neutral=False,
    ),
    Option(
        "optimizer",
        choice("sgd", "adam", "adamw"),
        "what makes steps of gradients; default learning rates are SGD's",
        default="sgd",
        neutral="sgd",
    ),
    Option("lr", number(0), "learning rate", default=0.03),
    Option("optim_wd", number(0), "weight decay", default=0.0),
    Option("optim_mom", number(0, 1), "momentum of SGD", default=0.0),
    Option("nesterov", flag, "Nesterov's way of momentum", default=False, neutral=False),
    Option("lr_milestones", milestones, "epochs of a task after which the learning rate is multiplied", default=()),
    Option("lr_factor", number(0), "what it is multiplied by at a milestone", default=0.1),
    Option(
        "lr_restart",
        choice("task", "never"),
        "the schedule starts again with every task, or its decay adds up over tasks",
        default="task",
    ),
)

BUFFER = (
    Option("buffer_size", integer(1, 10**8), "images in the memory buffer"),
    Option("minibatch_size", integer(1, 10**6), "images of one replay draw", default=SameAs("batch_size")),
    Option(
        "current_share",
        share,
        "share r of the stream's batch in all that a step learns from, such as 1/5 or 0.2, or 1/T with T the tasks "
        "seen: the draws have batch_size (1/r-1) images together, in place of --minibatch_size each; 1: no replay",
        neutral=None,
    ),
    Option("balance_replay", flag, "draw as many samples of every task in the buffer", default=False, neutral=False),
    Option(
        "replay_iters",
        integer(1, 1000),
        "optimizer steps for every batch of the stream, each with draws and augmentation of its own; the buffer gets "
        "the batch after the last",
        default=1,
        neutral=1,
    ),
    Option("buffer_mode", choice("reservoir", "ring"), "how the buffer picks what it keeps", default="reservoir"),
    Option(
        "ring_quota",
        choice("task", "class"),
        "what the ring buffer shares its slots among; always tasks where tasks share their classes",
        default=ByFidelity(official="task", paper="class"),
    ),
    Option(
        "replay_forward",
        choice("auto", "joint", "separate"),
        "current and replayed samples in one forward or one each; auto: joint for adab2n and er, else separate",
        default=ByFidelity(official="auto", paper="joint"),
    ),
)

OUTPUT = (
    Option("results_path", folder, "folder that runs are written to", default="results", changes_numbers=False),
    Option(
        "checkpoint_every",
        interval,
        "time (300s, 5m) or number of steps between checkpoints, beside those at task ends",
        default=Interval(seconds=300),
        changes_numbers=False,
    ),
    Option("save_model", flag, "write the final network as model.safetensors", default=False, changes_numbers=False),
    Option("log_every", integer(1, 10**6), "steps between two lines of the log", default=50, changes_numbers=False),
    Option(
        "probe",
        choices("stability", "statistics", "weights"),
        "record what the norm layers do in every step: gradients and their similarity to the representation, norms of "
        "the statistics, weights of the tasks in them; changes no number",
        default=(),
        changes_numbers=False,
    ),
    Option("probe_every", integer(1, 10**6), "steps between two recorded ones", default=1, changes_numbers=False),
    Option(
        "non_verbose",
        flag,
        "no progress on standard error: neither a bar nor, where that is no terminal, a line per task and minute",
        default=False,
        changes_numbers=False,
    ),
    Option("notes", text, "a remark to keep in the record", changes_numbers=False),
    Option(
        "tensorboard",
        flag,
        "write curves for TensorBoard beside the record (pip install tensorboard)",
        default=False,
        changes_numbers=False,
    ),
    Option("wandb_project", text, "log to this Weights & Biases project", changes_numbers=False),
    Option("wandb_entity", text, "its user or team", changes_numbers=False),
)

RULES = (
    Rule({"n_epochs": 1, "batch_size": 10}, when={"scenario": "online"}),
    Rule({"n_epochs": 50, "batch_size": 32, "minibatch_size": 32}, when={"scenario": "offline"}),
)
