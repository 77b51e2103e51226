"""Made-up records of finished runs, for tests of what is built on them."""

import json

from scripts.reproduce.runs import Run
from utils.config.arguments import resolve
from utils.run.records import NUMERICS_VERSION, commit, plain


def finish(run: Run, class_il: float, task_il: float = 0.0, **changes) -> None:
    """The record of a run that reached these accuracies; `changes` replace its entries."""
    metrics = {name: {"metrics": {"faa": value, "forgetting_as_published": 1.0}}
               for name, value in {"class_il": class_il, "task_il": task_il}.items()}  # fmt: skip
    record = {
        "run": run.name, "status": "finished", "results": metrics, "config": plain(resolve(run.known_options)),
        "steps": run.steps,
        "seconds": 10.0, "wall_seconds": 12.0, "thread_counts": [1],
        "identity": {"numerics_version": NUMERICS_VERSION},
        "environment": {"commit": commit(), "device_type": "cpu"},
    }  # fmt: skip
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "record.json").write_text(json.dumps(record | changes))
