"""Reference pages that are written from the code: flags by owner, fields of a record, keys of a study."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from utils.config.loop_options import GROUPS
from utils.config.options import ByFidelity, Option, Rule, SameAs, flag
from utils.config.registry import OBSERVERS, Entry
from utils.config.resolve import SELECTORS
from utils.studies.study import KEYS, KINDS, known_metrics
from utils.tables import metric_titles

MEASURED = Path(__file__).resolve().parent.parent / "results" / "measured"

RECORD_FIELDS = {
    "run": "Name of the run, and of its folder.",
    "status": "`finished` or `failed`.",
    "reason": "Why a run failed.",
    "traceback": "Where a run failed, if the cause is not a mistake in the command.",
    "date": "When the record was written (UTC).",
    "identity": "Every option that changes numbers, and a digest of the data. The name has its hash.",
    "config": "All options.",
    "data": "Facts about the stream.",
    "data.n_tasks": "Number of tasks.",
    "data.n_classes": "Number of classes.",
    "data.image_shape": "Channels, height, width.",
    "data.train_sizes": "Training images of every task.",
    "data.test_sizes": "Test images of every task.",
    "data.mean": "Mean of every channel, which is subtracted.",
    "data.std": "Standard deviation of every channel, by which is divided.",
    "data.reported_on": "Which images were evaluated: `test` or, with `--validation`, held-out training images.",
    "results": "By setting: `class_il` and `task_il`, or `domain_il`.",
    "results.*.matrix": "Accuracy in percent: entry [i][j] is that on task j after task i. Null: not evaluated.",
    "results.*.untrained": "Accuracy on every task before training.",
    "results.*.metrics": "The numbers that the run prints.",
    **{f"results.*.metrics.{name}": f"{title[0].upper()}{title[1:]}." for name, title in metric_titles().items()},
    "results.*.per_class": "Final accuracy of every class. Not in `task_il`.",
    "results.*.confusion": "Test images by class (rows) and predicted class (columns), at the end. Not in `task_il`.",
    "results.*.points": "With `--eval_every`: accuracies while a task is trained, with step and task.",
    "results.*.final_statistics": "With `--final_statistics`: accuracies with other normalization statistics.",
    "results.*.late_evaluations": "With `--late_evaluations`: FAA at several steps near the end.",
    "steps": "Steps of training.",
    "batches_left_out": "Batches of the stream that were skipped, since a norm cannot normalize a single value.",
    "seconds": "Time of training, without evaluation.",
    "wall_seconds": "Time of the whole run.",
    "steps_per_second": "`steps` divided by `seconds`.",
    "conditions": "Device, threads and version of torch; several entries if they changed when the run was resumed.",
    "attempt": "How often a sweep had started the run.",
    "code_changes": "Files that changed while the run was resumed with `--accept_changed_code`.",
    "environment": "The machine and the versions at the end of the run.",
    "environment.device": "Name of the processor or GPU.",
    "environment.device_type": "`cpu` or `cuda`.",
    "environment.num_threads": "CPU threads.",
    "environment.peak_memory_mb": "Largest memory of the process, in MB.",
    "environment.peak_cuda_memory_mb": "Largest memory on the GPU, in MB.",
    "environment.python": "Version of Python.",
    "environment.torch": "Version of torch.",
    "environment.torchvision": "Version of torchvision.",
    "environment.numpy": "Version of numpy.",
    "environment.version": "Version of this project.",
    "environment.commit": "Commit of the checkout, with `+changes` if files differ from it.",
    "sources": "A digest of every source file that can change the run's numbers.",
    "seal": "SHA-256 of all other fields. A record that does not match its seal is rejected.",
}  # fmt: skip

STUDY_KEYS = {
    "title": "Title of the report.",
    "seeds": "Seeds of every cell. Default: `[0]`.",
    "rows": "What the rows of the table are: names from `vary`, or `variant`. Default: all that varies.",
    "columns": "The rest of what varies.",
    "metrics": 'Metrics of the table. Default: `["class_il_faa", "task_il_faa"]`.',
    "compare": "One thing that varies and its baseline. A second table has the paired differences to it.",
    "plugins": "Plug-in folders, relative to the file, or modules.",
    "common": "Flags of every run.",
    "vary": "Flags with lists of values. Every combination is run.",
    "variant": "Named combinations of flags: `name`, `flags` and, for a difference, `baseline`.",
    "with": "Further flags (`flags`) of the runs that have other ones (`when`).",
}


def write_pages(folder: Path) -> None:
    """Write all pages. A page that has not changed is left alone, so that a second build is fast."""
    folder.mkdir(exist_ok=True)
    for name, lines in {"flags": flags_page(), "record": record_page(), "study": study_page()}.items():
        path, text = folder / f"{name}.md", "\n".join(lines) + "\n"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


# --- flags by owner ---------------------------------------------------------------------------------------------------


def flags_page() -> Iterator[str]:
    yield "# Flags by owner"
    yield "\nA flag belongs to every run, or to the part of a run, such as its model or norm, that declares it."
    yield "A flag that the chosen parts do not use is refused."
    yield "[The flags that matter](../../flags.md) explains the most used ones.\n"
    yield "`python main.py --model NAME --norm NAME --dataset NAME --dry_run` prints the defaults of a run.\n"
    yield "## Flags of every run\n"
    for title, options in GROUPS.items():
        yield f"### {title[0].upper()}{title[1:]}\n"
        yield from option_table(options)
    for selector, registry in (SELECTORS | {"probe": OBSERVERS}).items():
        yield f"## Flags of {registry.kind}s: `--{selector}`\n"
        for _, entry in sorted(registry.entries().items()):
            yield f"### `{entry.name}`\n\n{with_code(sentence(entry.help))}\n"
            yield from option_table(entry.options)
            yield from rule_table(entry)


def option_table(options: Iterable[Option]) -> Iterator[str]:
    rows = [
        [f"`--{option.name}`", with_code(option.help), values_text(option), default_text(option.default)]
        for option in options
    ]
    yield from table(["flag", "meaning", "value", "default"], rows)


def rule_table(entry: Entry) -> Iterator[str]:
    rows = [
        [condition_text(rule), ", ".join(f"`--{name}` {default_text(value)}" for name, value in rule.values.items())]
        for rule in entry.rules
    ]
    if rows:
        yield "Defaults that it sets:\n"
    yield from table(["with", "defaults"], rows)


def values_text(option: Option) -> str:
    """Return the values that an option takes, in the words of its error message."""
    if option.type is flag:
        return "none"
    if isinstance(option.type, tuple):
        return ", ".join(f"`{name}`" for name in option.type)
    try:
        option.type("?")
    except argparse.ArgumentTypeError as error:
        return str(error).removeprefix("must be ").partition(" (")[0].replace(" to inf", " on")
    return "text"


def default_text(value: Any) -> str:
    if isinstance(value, ByFidelity):
        return f"official {default_text(value.official)}, paper {default_text(value.paper)}"
    if isinstance(value, SameAs):
        return f"that of `--{value.option}`"
    if value is None or value is False or value == ():
        return "–"
    return f"`{','.join(map(str, value)) if isinstance(value, tuple) else value}`"


def condition_text(rule: Rule) -> str:
    texts = []
    for name, condition in rule.when.items():
        values = condition if isinstance(condition, tuple) else (condition,)
        texts.append(f"some `--{name}`" if callable(condition) else f"`--{name}` {' or '.join(map(str, values))}")
    return " and ".join(texts) or "always"


# --- records and studies ----------------------------------------------------------------------------------------------


def record_page() -> Iterator[str]:
    yield "# Fields of a record"
    yield "\n`results/runs/<run>/record.json` is the record of a run. `results.*` stands for every setting."
    yield "The examples are from kept records; long ones are cut."
    yield "`utils.results.load` returns all records of a folder as a table.\n"
    examples: dict[str, Any] = {}
    for file in sorted(MEASURED.glob("*/record.json")):
        examples |= record_fields(json.loads(file.read_text()))
    undescribed = [name for name in examples if name not in RECORD_FIELDS]
    if undescribed:
        raise ValueError(f"docs/generated.py: describe the fields {', '.join(undescribed)} of a record")
    rows = [[f"`{name}`", text, example_text(examples.get(name))] for name, text in RECORD_FIELDS.items()]
    yield from table(["field", "meaning", "example"], rows)


def record_fields(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a record by path, with `*` for a setting, down to what `RECORD_FIELDS` describes."""
    fields: dict[str, Any] = {}
    for name, value in record.items():
        path = prefix + ("*" if prefix == "results." else name)
        has_parts = isinstance(value, dict) and any(known.startswith(f"{path}.") for known in RECORD_FIELDS)
        if path != "results.*":
            fields[path] = None if has_parts else value
        if has_parts:
            fields |= record_fields(value, f"{path}.")
    return fields


def example_text(value: Any) -> str:
    if value is None:
        return ""
    text = json.dumps(value)
    return f"`{text if len(text) <= 40 else text[:37] + '...'}`"


def study_page() -> Iterator[str]:
    yield "# Keys of a study"
    yield "\nA study is a TOML file: [Write a study](../../tutorials/own_study.md) is an example.\n"
    yield from table(
        ["key", "type", "meaning"], [[f"`{key}`", KINDS[kind], STUDY_KEYS[key]] for key, kind in KEYS.items()]
    )
    yield "Metrics: " + ", ".join(f"`{name}`" for name in known_metrics()) + "."


def table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    rows = list(rows)
    if rows:
        for row in (head, ["---"] * len(head), *rows):
            yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |"
        yield ""


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def with_code(text: str) -> str:
    """Return a text with its flags as code."""
    return re.sub(r"(?<!\S)--\w+", r"`\g<0>`", text)
