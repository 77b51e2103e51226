"""The options of the run itself and of its training loop, with their defaults per scenario and their checks."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from utils.config.options import (
    ByFidelity,
    Option,
    Rule,
    SameAs,
    choice,
    flag,
    integer,
    invalid,
    number,
    share,
    subset,
    value_type,
)
from utils.config.plugins import PLUGINS_VARIABLE
from utils.config.registry import MODELS, NORMS
from utils.device import device_name
from utils.errors import UsageError

# Options that no longer exist. In an old configuration file or record they are ignored with a note.
DROPPED_OPTIONS = ("restart_changed_code", "channels_last", "probe_every", "verify_data", "start_from", "stem")

# --- value types ------------------------------------------------------------------------------------------------------


@value_type("EPOCHS")
def milestones(text: str) -> tuple[int, ...]:
    """Parse epochs separated by commas, or `none`."""
    if text == "none":
        return ()
    try:
        epochs = tuple(int(word) for word in text.split(","))
    except ValueError:
        epochs = (0,)
    if min(epochs) < 1 or list(epochs) != sorted(set(epochs)):
        raise invalid("rising epochs such as 35,45, or none", text)
    return epochs


@dataclass(frozen=True)
class Interval:
    """Time between two checkpoints, as a number of steps or of seconds."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.steps else f"{self.seconds:g}s"


@value_type("TIME")
def interval(text: str) -> Interval:
    """Parse `300s`, `5m`, or a number of steps; also what `str` makes of an Interval."""
    text = text.removesuffix(" steps")
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    try:
        result = Interval(seconds=float(text[:-1]) * unit) if unit else Interval(steps=int(text))
        valid = 0 < (result.seconds or result.steps or 0) < float("inf")
    except ValueError:
        valid = False
    if not valid:
        raise invalid("a time such as 300s or 5m, or a number of steps", text)
    return result


LARGEST_SEED = 2**31 - 1
MAX_SEEDS = 10_000


def seeds(text: str) -> tuple[int, ...]:
    """Parse `0-4`, `0,1,2`, or both."""
    spans = [re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", word) for word in text.split(",")]
    ranges = [range(int(span[1]), int(span[2] or span[1]) + 1) for span in spans if span]
    if len(ranges) == len(spans) and all(ranges) and sum(map(len, ranges)) <= MAX_SEEDS:
        values = tuple(seed for span in ranges for seed in span)
        if len(set(values)) == len(values) and max(values) <= LARGEST_SEED:
            return values
    raise invalid(f"different integers up to {LARGEST_SEED} such as 0-4 or 0,1,2", text)


# --- checks between options -------------------------------------------------------------------------------------------

Values = dict[str, Any]


def _check_compile(config: Values, explicit: Values) -> None:
    if not config["compile"]:
        return
    if not MODELS.get(config["model"]).build.compiles:
        names = ", ".join(name for name, entry in sorted(MODELS.entries().items()) if entry.build.compiles)
        raise UsageError(f"--compile has no effect with --model {config['model']}; remove it (possible: {names})")
    if config["batch_size"] == 1:
        raise UsageError("--compile needs batches of at least 2 images; remove it or set --batch_size")
    if config["probe"]:
        raise UsageError("--probe observes single layers, which --compile merges; give one of the two")
    if config.get("norm_impl", "auto") not in ("auto", "reference"):
        raise UsageError(f"--compile generates its own kernels; remove --norm_impl {config['norm_impl']}")
    if "norm_impl" in config:
        config["norm_impl"] = "reference"


def _check_amp(config: Values, explicit: Values) -> None:
    if config["amp"] != "none" and config["dtype"] != "float32":
        raise UsageError(f"--amp {config['amp']} needs --dtype float32 (got {config['dtype']}); remove one of the two")


def _check_n_iters(config: Values, explicit: Values) -> None:
    if config["n_iters"] is None:
        return
    if "n_epochs" in explicit:
        raise UsageError("--n_iters and --n_epochs contradict each other; give one")
    if config.get("lr_milestones"):
        raise UsageError("--n_iters counts steps and --lr_milestones epochs; set --lr_milestones none")
    config["n_epochs"] = None


def _check_stop_after(config: Values, explicit: Values) -> None:
    if config["stop_after"] == config.get("n_tasks"):
        config["stop_after"] = None  # the same run as without it


def _check_eval_statistics(config: Values, explicit: Values) -> None:
    if config["eval_statistics"] == "buffer" and not MODELS.get(config["model"]).build.uses_buffer:
        raise UsageError(f"--eval_statistics buffer needs a memory buffer; --model {config['model']} has none")


def _check_optimizer(config: Values, explicit: Values) -> None:
    if config["optimizer"] != "sgd" and config.get("optim_mom"):
        raise UsageError(f"--optim_mom has no effect with --optimizer {config['optimizer']}; set --optim_mom 0")
    if config.get("nesterov") and not (config["optimizer"] == "sgd" and config.get("optim_mom")):
        raise UsageError("--nesterov needs --optimizer sgd with a momentum; set --optim_mom")


def _check_current_share(config: Values, explicit: Values) -> None:
    if config["current_share"] is not None:
        if "minibatch_size" in explicit:
            raise UsageError("--minibatch_size and --current_share contradict each other; give one")
        config["minibatch_size"] = None


def _check_buffer_mode(config: Values, explicit: Values) -> None:
    if config["buffer_mode"] == "reservoir":
        if "ring_quota" in explicit:
            raise UsageError("--ring_quota needs --buffer_mode ring")
        config["ring_quota"] = None  # so that --fidelity, which sets it, does not rename runs with a reservoir


def default_replay_forward(model: str, norm: str) -> str:
    """Return what `--replay_forward auto` means for a model and a norm."""
    joint = MODELS.get(model).build.always_joint_forward or NORMS.get(norm).traits.get("joint_replay", False)
    return "joint" if joint else "separate"


def _resolve_replay_forward(config: Values, explicit: Values) -> None:
    if config["replay_forward"] == "auto":
        config["replay_forward"] = default_replay_forward(config["model"], config["norm"])


def _check_wandb_entity(config: Values, explicit: Values) -> None:
    if config["wandb_entity"] and not config["wandb_project"]:
        raise UsageError("--wandb_entity needs --wandb_project")


# --- the options ------------------------------------------------------------------------------------------------------

RUN = (
    Option("scenario", choice("online", "offline"), "One pass over the data, or 50 epochs per task.", default="online"),
    Option("seed", integer(0, LARGEST_SEED), "Seed of everything random, class order included.", default=0),
    Option(
        "fidelity",
        choice("official", "paper"),
        "Which to follow where the released code and the paper differ; see --list switches.",
        default="official",
        changes_numbers=False,  # the switches that it sets are hashed
    ),
    Option("device", device_name, "auto, cpu, cuda or cuda:N.", default="auto", changes_numbers=False),
    Option("num_threads", integer(1, 1024), "Number of CPU threads (default: torch's choice).", changes_numbers=False),
    Option("deterministic", flag, "Bit-identical results on CUDA; slower. CPU runs always are.", changes_numbers=False),
    Option("dtype", choice("float32", "float64"), "Floating-point type.", default="float32"),
    Option(
        "rerun",
        flag,
        "Train from the beginning. The record of a finished run is kept as record.old.json.",
        changes_numbers=False,
    ),
    Option(
        "accept_changed_code",
        flag,
        "Use the record or the checkpoint of a run although its code has changed since.",
        changes_numbers=False,
    ),
    Option(
        "dry_run",
        flag,
        "Print the configuration as TOML, for --config, with steps and memory as comments, and stop.",
        changes_numbers=False,
    ),
    Option(
        "check_data",
        flag,
        "Report what the data set contains or lacks, write a contact sheet below --results_path, and stop. Needs no "
        "--model.",
        changes_numbers=False,
    ),
    Option("debug_mode", flag, "Train on three batches per epoch, to try things out."),
    Option(
        "plugins",
        value_type("FOLDER")(lambda name: name),
        "Folders or modules with your own norms, methods, data sets or backbones. The environment variable "
        f"{PLUGINS_VARIABLE} adds more, separated by {os.pathsep!r}.",
        default=(),
        changes_numbers=False,
        several=True,
    ),
    Option("eval_only", str, "Evaluate a network saved with --save_model, without training.", changes_numbers=False),
)

TRAINING = (
    Option(
        "compile",
        flag,
        "Compile forward, loss and backward of a step into one graph, on CUDA with CUDA graphs. Equal up to rounding. "
        "For steps with full batches of er, er_ace, derpp, der, sgd and joint.",
        changes_numbers=False,
        check=_check_compile,
    ),
    Option(
        "amp",
        choice("none", "bfloat16"),
        "Use bfloat16 for convolutions and matrix products in training. Statistics, penalty, loss, weights and "
        "evaluation stay float32.",
        default="none",
        omit_from_hash_at="none",
        check=_check_amp,
    ),
    Option("n_epochs", integer(1, 10**6), "Epochs per task."),
    Option(
        "n_iters", integer(1), "Steps per task, instead of --n_epochs.", omit_from_hash_at=None, check=_check_n_iters
    ),
    Option("batch_size", integer(1, 10**6), "Images of the stream per step."),
    Option("drop_last", flag, "Drop an epoch's last batch if it is not full.", omit_from_hash_at=False),
    Option(
        "stop_after", integer(1), "Train on the first N tasks only.", omit_from_hash_at=None, check=_check_stop_after
    ),
    Option(
        "eval_every",
        integer(1),
        "Steps between evaluations within a task, for accuracy curves, AAA and worst-case accuracy. Task ends are "
        "always evaluated.",
        omit_from_hash_at=None,
    ),
    Option(
        "eval_statistics",
        choice("running", "buffer", "batch"),
        "Statistics that norm layers use at test time: running statistics, those of one pass over the buffer, or "
        "those of the test batch.",
        default="running",
        omit_from_hash_at="running",
        check=_check_eval_statistics,
    ),
    Option(
        "embedding_eval",
        flag,
        "At the end, evaluate the embedding: nearest class mean of the buffer (NCM), and a linear classifier fitted "
        "to all training data.",
        omit_from_hash_at=False,
        old_name="final_probes",
    ),
    Option(
        "optimizer",
        choice("sgd", "adam", "adamw"),
        "Optimizer. Default learning rates are for SGD.",
        default="sgd",
        omit_from_hash_at="sgd",
        check=_check_optimizer,
    ),
    Option("lr", number(0), "Learning rate.", default=0.03),
    Option("optim_wd", number(0), "Weight decay.", default=0.0),
    Option("optim_mom", number(0, 1), "Momentum of SGD.", default=0.0),
    Option("nesterov", flag, "Use Nesterov momentum.", omit_from_hash_at=False),
    Option("lr_milestones", milestones, "Epochs of a task after which the learning rate is reduced.", default=()),
    Option("lr_factor", number(0), "Factor of the learning rate at a milestone.", default=0.1),
    Option(
        "lr_restart",
        choice("task", "never"),
        "Whether the schedule restarts with every task, or its decay accumulates over tasks.",
        default="task",
    ),
)

BUFFER = (
    Option("buffer_size", integer(1, 10**8), "Number of images in the memory buffer."),
    Option("minibatch_size", integer(1, 10**6), "Number of images of a replay batch.", default=SameAs("batch_size")),
    Option(
        "current_share",
        share,
        "Share r of the current batch in a step, such as 1/5 or 0.2, or 1/T with T the number of tasks seen. Replay "
        "batches hold batch_size (1/r-1) images together, in place of --minibatch_size each. 1 means no replay.",
        omit_from_hash_at=None,
        check=_check_current_share,
    ),
    Option("balance_replay", flag, "Replay batches hold equally many samples of each task.", omit_from_hash_at=False),
    Option(
        "replay_iters",
        integer(1, 1000),
        "Optimizer steps per batch of the stream, each with new replay batches and augmentation. The buffer is updated "
        "after the last.",
        default=1,
        omit_from_hash_at=1,
    ),
    Option(
        "buffer_mode",
        choice("reservoir", "ring"),
        "How the buffer selects samples.",
        default="reservoir",
        check=_check_buffer_mode,
    ),
    Option(
        "ring_quota",
        choice("task", "class"),
        "What the ring buffer divides its slots among; always tasks where tasks share their classes.",
        default=ByFidelity(official="task", paper="class"),
    ),
    Option(
        "replay_forward",
        choice("auto", "joint", "separate"),
        "Current and replayed samples in one forward pass or in separate ones. auto: joint for adab2n and er, "
        "separate otherwise.",
        default=ByFidelity(official="auto", paper="joint"),
        check=_resolve_replay_forward,
    ),
)

OUTPUT = (
    Option("results_path", str, "Folder of runs.", default="results", changes_numbers=False),
    Option(
        "checkpoint_every",
        interval,
        "Time (300s, 5m) or number of steps between checkpoints, in addition to those at task ends.",
        default=Interval(seconds=300),
        changes_numbers=False,
    ),
    Option("save_model", flag, "Write the final network and the buffer as model.safetensors.", changes_numbers=False),
    Option("log_every", integer(1, 10**6), "Steps between two lines of the log.", default=50, changes_numbers=False),
    Option(
        "probe",
        subset("stability", "statistics", "weights"),
        "Record what the norm layers do in every step: gradients and their similarity to the representation, norms of "
        "the statistics, task weights. Training is unaffected.",
        default=(),
        changes_numbers=False,
    ),
    Option(
        "final_statistics",
        flag,
        "At the end, also evaluate with normalization statistics of the buffer, of the buffer balanced by task, of "
        "the training data and of the last task. Training is unaffected.",
        changes_numbers=False,
    ),
    Option(
        "late_evaluations",
        integer(0, 1000),
        "Report mean and standard deviation of FAA over this many evaluations, one every 50 steps up to the end of "
        "the last task. Training is unaffected.",
        default=0,
        changes_numbers=False,
    ),
    Option("non_verbose", flag, "Show no progress on standard error.", changes_numbers=False),
    Option("notes", str, "A remark to keep in the record.", changes_numbers=False),
    Option(
        "tensorboard",
        flag,
        "Write TensorBoard curves beside the record (pip install tensorboard).",
        changes_numbers=False,
    ),
    Option("wandb_project", str, "Log to this Weights & Biases project.", changes_numbers=False),
    Option(
        "wandb_entity",
        str,
        "User or team of the Weights & Biases project.",
        changes_numbers=False,
        check=_check_wandb_entity,
    ),
)

RULES = (
    Rule({"n_epochs": 1, "batch_size": 10}, when={"scenario": "online"}),
    Rule({"n_epochs": 50, "batch_size": 32, "minibatch_size": 32}, when={"scenario": "offline"}),
)
