"""The options of the run itself and of its training loop, with their defaults per scenario and their checks."""

import re
from dataclasses import dataclass
from typing import Any

from utils.config import options
from utils.config.options import FreeOption, Option, Rule, SameAs, added_option, choice, flag, integer, number, share
from utils.config.plugins import PLUGINS_VARIABLE
from utils.config.registry import MODELS, NORMS, OBSERVERS, RESERVED_OPTIONS
from utils.errors import UsageError

# Options that no longer exist. In an old configuration file or record they are ignored with a note.
DROPPED_OPTIONS = ("restart_changed_code", "channels_last", "probe_every", "verify_data", "start_from", "stem")
LARGEST_SEED = 2**31 - 1

# --- value types ------------------------------------------------------------------------------------------------------


def folder(text: str) -> str:
    """Return the path of a folder that need not exist."""
    if not text:
        raise options.invalid("a folder, . for this one", text)
    return text


def milestones(text: str) -> tuple[int, ...]:
    """Parse epochs separated by commas, or `none`."""
    epochs = [] if text == "none" else [integer(1)(word) for word in text.split(",")]
    if epochs != sorted(set(epochs)):
        raise options.invalid("rising epochs such as 35,45, or none", text)
    return tuple(epochs)


@dataclass(frozen=True)
class Interval:
    """Time between two checkpoints, as a number of steps or of seconds."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.steps else f"{self.seconds:.15g}s"


def interval(text: str) -> Interval:
    """Parse `300s`, `5m`, or a number of steps; also what `str` makes of an Interval."""
    match = re.fullmatch(r"0*([1-9][0-9]{0,8})(?: steps)?|([0-9]*\.?[0-9]+)([smh])", text[:20])
    if match and match[1]:
        return Interval(steps=int(match[1]))
    if match and float(match[2]):
        return Interval(seconds=float(match[2]) * {"s": 1, "m": 60, "h": 3600}[match[3]])
    raise options.invalid("a time such as 300s or 5m, or a number of steps", text)


def seeds(text: str) -> tuple[int, ...]:
    """Parse `0-4`, `0,1,2`, or both."""
    spans = [re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", word) for word in text.split(",")]
    ranges = [range(int(span[1]), int(span[2] or span[1]) + 1) for span in spans if span]
    if len(ranges) == len(spans) and all(ranges) and sum(map(len, ranges)) <= 10_000:
        values = tuple(seed for span in ranges for seed in span)
        if len(set(values)) == len(values) and max(values) <= LARGEST_SEED:
            return values
    raise options.invalid(f"different integers up to {LARGEST_SEED} such as 0-4 or 0,1,2", text)


def observers(text: str) -> tuple[str, ...]:
    """Parse names of observers separated by commas, or `none`."""
    return options.subset(*OBSERVERS.names())(text)


# --- checks between options -------------------------------------------------------------------------------------------


def default_replay_forward(model: str, norm: str) -> str:
    """Return what `--replay_forward auto` means for a model and a norm."""
    joint = MODELS.get(model).build.always_joint_forward or NORMS.get(norm).traits.get("joint_replay", False)
    return "joint" if joint else "separate"


def check_training(config: dict[str, Any], explicit: dict[str, Any]) -> None:
    """Raise UsageError where options of training contradict each other; set those that follow from others."""
    model, optimizer = MODELS.get(config["model"]), config.get("optimizer", "sgd")
    if config.get("n_iters") is not None:
        if "n_epochs" in explicit:
            raise UsageError("--n_iters and --n_epochs contradict each other; give one")
        if config.get("lr_milestones"):
            raise UsageError("--n_iters counts steps and --lr_milestones epochs; set --lr_milestones none")
        config["n_epochs"] = None
    if config.get("current_share") is not None:
        if "minibatch_size" in explicit:
            raise UsageError("--minibatch_size and --current_share contradict each other; give one")
        config["minibatch_size"] = None
    if config.get("replay_forward") == "auto":
        config["replay_forward"] = default_replay_forward(config["model"], config["norm"])
    if "stop_after" in config and config["stop_after"] == config.get("n_tasks"):
        config["stop_after"] = None  # the same run as without it
    if optimizer != "sgd" and config.get("optim_mom"):
        raise UsageError(f"--optim_mom has no effect with --optimizer {optimizer}; set --optim_mom 0")
    if config.get("nesterov") and not config.get("optim_mom"):
        raise UsageError("--nesterov needs --optimizer sgd with a momentum; set --optim_mom")
    if config.get("eval_statistics") == "buffer" and not model.build.uses_buffer:
        raise UsageError(f"--eval_statistics buffer needs a memory buffer; --model {model.name} has none")
    if config.get("amp", "none") != "none" and config["dtype"] != "float32":
        raise UsageError(f"--amp {config['amp']} needs --dtype float32 (got {config['dtype']}); remove one of the two")
    if config["tf32"] and config["deterministic"]:
        raise UsageError("--tf32 and --deterministic contradict each other; remove one of the two")
    if config["wandb_entity"] and not config["wandb_project"]:
        raise UsageError("--wandb_entity needs --wandb_project")
    if not config.get("compile"):
        return
    if not model.build.compiles:
        raise UsageError(f"--compile has no effect with --model {model.name}; remove it")
    if config["batch_size"] == 1:
        raise UsageError("--compile needs batches of at least 2 images; remove it or set --batch_size")
    if hooked := [name for name in config["probe"] if OBSERVERS.get(name).build.needs_hooks]:
        raise UsageError(f"--probe {hooked[0]} observes single layers, which --compile merges; give one of the two")


def check_boundary(config: dict[str, Any], explicit: dict[str, Any]) -> None:
    """Raise UsageError for options and parts that need known task boundaries where there are none."""
    boundary = f"--boundary {config['boundary']}"
    if config["boundary_strength"] is not None and config["boundary"] not in options.GRADUAL:
        raise UsageError(f"--boundary_strength has no effect with {boundary}; choose {' or '.join(options.GRADUAL)}")
    if config["boundary"] == "sharp":
        return
    needs = f"needs known task boundaries, which {boundary} does not have"
    if MODELS.get(config["model"]).build.requires_boundaries():
        raise UsageError(f"--model {config['model']} {needs}; choose another model")
    if NORMS.get(config["norm"]).traits.get("needs_boundaries"):
        raise UsageError(f"--norm {config['norm']} {needs}; choose another norm")
    if config["n_epochs"] != 1:
        raise UsageError(
            f"{boundary} is one pass over the data; use --scenario online without --n_epochs and --n_iters"
        )
    if config.get("ring_quota") == "task" and "ring_quota" not in explicit:
        config["ring_quota"] = "class"
    task_options = {"stop_after": explicit.get("stop_after", 0), "balance_replay": True, "ring_quota": "task"}
    for name, value in (task_options | {"current_share": options.ONE_OF_TASKS_SEEN, "classifier": "seen"}).items():
        if config.get(name) == value:
            raise UsageError(f"--{name}{'' if value is True else f' {value}'} {needs}; remove it")


# --- the options ------------------------------------------------------------------------------------------------------

RUN = (
    Option("scenario", choice("online", "offline"), "One pass over the data, or 50 epochs per task.", default="online"),
    Option("seed", integer(0, LARGEST_SEED), "Seed of everything random, class order included.", default=0),
    # The switches that --fidelity sets identify the run.
    FreeOption("fidelity", choice("official", "paper"), "Follow the released code or the paper.", default="official"),
    FreeOption("device", str, "Device: auto, cpu, cuda or cuda:N.", default="auto"),
    FreeOption("num_threads", integer(1, 1024), "Number of CPU threads (default: torch's choice)."),
    FreeOption("deterministic", flag, "Bit-identical results on CUDA; slower. CPU runs always are."),
    Option("dtype", choice("float32", "float64"), "Floating-point type.", default="float32"),
    FreeOption("rerun", flag, "Train from the beginning. The previous record is kept as record.old.json."),
    FreeOption("accept_changed_code", flag, "Use a record or checkpoint although the code has changed since."),
    FreeOption("dry_run", flag, "Print the configuration as TOML, with folder, steps, memory and time, and stop."),
    FreeOption("check_data", flag, "Check the data set, write a contact sheet, and stop. Needs no --model."),
    Option("debug_mode", flag, "Train on three batches per epoch, to try things out."),
    FreeOption("plugins", str, f"Folders or modules of your own; ${PLUGINS_VARIABLE} adds more.", ()),
    FreeOption("eval_only", str, "Evaluate the network in this run folder, saved with --save_model; no training."),
)

TRAINING = (
    FreeOption("tf32", flag, "Let a GPU round the factors of convolutions and matrix products to TF32. Faster."),
    FreeOption("compile", flag, "Compile steps with full batches into one graph. Equal up to rounding."),
    added_option("amp", choice("none", "bfloat16"), "Lower precision of convolutions and matrix products.", "none"),
    Option("n_epochs", integer(1, 10**6), "Epochs per task."),
    added_option("n_iters", integer(1), "Steps per task; replaces --n_epochs."),
    Option("batch_size", integer(1, 10**6), "Images of the stream per step."),
    added_option("drop_last", flag, "Drop an epoch's last batch if it is not full."),
    added_option("stop_after", integer(1), "Number of tasks to train on (default: all)."),
    added_option(
        "boundary",
        choice("sharp", *options.WITHOUT_BOUNDARIES),
        "Boundaries between tasks. All but sharp are one pass over the data in which no task begins or ends: shuffled "
        "(none), with some classes in their own task and others throughout (blurry), or with gradual changes "
        "(gaussian).",
        "sharp",
    ),
    added_option("boundary_strength", number(0, 1), "From a shuffled stream (0) to the order of sharp boundaries (1)."),
    added_option("eval_every", integer(1), "Steps between evaluations within a task (default: none)."),
    added_option("eval_statistics", choice("running", "buffer", "batch"), "Statistics at test time.", "running"),
    added_option("embedding_eval", flag, "At the end, evaluate NCM and a linear probe.", old_name="final_probes"),
    added_option(
        "classifier",
        choice("all", "seen"),
        "Classes that compete in training and predictions: all, or those of the tasks begun so far.",
        "all",
    ),
    added_option("optimizer", choice("sgd", "adam", "adamw"), "Default learning rates are for SGD.", "sgd"),
    Option("lr", number(0), "Learning rate.", default=0.03),
    Option("optim_wd", number(0), "Weight decay.", default=0.0),
    Option("optim_mom", number(0, 1), "Momentum of SGD.", default=0.0),
    added_option("nesterov", flag, "Use Nesterov momentum."),
    Option("lr_milestones", milestones, "Epochs of a task after which the learning rate is reduced.", default=()),
    Option("lr_factor", number(0), "Factor of the learning rate at a milestone.", default=0.1),
    Option("lr_restart", choice("task", "never"), "When the schedule restarts.", default="task"),
)

BUFFER = (
    Option("buffer_size", integer(1, 10**8), "Number of images in the memory buffer."),
    Option("minibatch_size", integer(1, 10**6), "Number of images of a replay batch.", default=SameAs("batch_size")),
    added_option("current_share", share, "Current batch's share of a step: 1/5, 0.2 or 1/T for T tasks; 1: no replay."),
    added_option("balance_replay", flag, "Replay batches hold equally many samples of each task."),
    added_option("replay_iters", integer(1, 1000), "Optimizer steps per batch of the stream.", 1),
    Option(
        "replay_forward",
        choice("auto", "joint", "separate"),
        "Current and replayed samples in one forward pass or in separate ones. auto: joint for adab2n, tbbn and er.",
        default=options.ByFidelity(official="auto", paper="joint"),
    ),
)

OUTPUT = (
    FreeOption("results_path", folder, "Folder of runs.", default="results"),
    FreeOption("checkpoint_every", interval, "Time (5m) or steps between checkpoints.", default=Interval(seconds=300)),
    FreeOption("save_model", flag, "Write the final network and the buffer as model.safetensors."),
    FreeOption("log_every", integer(1, 10**6), "Steps between two lines of the log.", default=50),
    FreeOption("probe", observers, "Observers of every step, separated by commas; --list observers names them.", ()),
    FreeOption("final_statistics", flag, "At the end, also evaluate with statistics of buffer, data and last task."),
    FreeOption("late_evaluations", integer(0, 1000), "Report the mean of this many evaluations near the end.", 0),
    FreeOption("non_verbose", flag, "Show no progress on standard error."),
    FreeOption("notes", str, "A remark to keep in the record."),
    FreeOption("tensorboard", flag, "Write TensorBoard curves beside the record (pip install tensorboard)."),
    FreeOption("wandb_project", str, "Log to this Weights & Biases project."),
    FreeOption("wandb_entity", str, "User or team of the Weights & Biases project."),
)

RULES = (
    Rule({"eval_every": 250}, when={"boundary": options.WITHOUT_BOUNDARIES}),
    Rule({"boundary_strength": 0.5}, when={"boundary": options.GRADUAL}),
    Rule({"n_epochs": 1, "batch_size": 10}, when={"scenario": "online"}),
    Rule({"n_epochs": 50, "batch_size": 32, "minibatch_size": 32}, when={"scenario": "offline"}),
)

GROUPS = {"the run": RUN, "training": TRAINING, "output": OUTPUT, "memory buffer and replay": BUFFER}
for _options in GROUPS.values():
    RESERVED_OPTIONS.update({option.name: "loop" for option in _options})
