"""What a finished run leaves behind, for comparisons of runs that must end alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from utils.run.records import seal_of

TIMES = ("date", "seconds", "wall_seconds", "steps_per_second", "environment", "seal")


def outcome(results: Path) -> dict[str, Any]:
    """Return files, record, log and network of the only run below `results`, without times and paths."""
    (folder,) = results.glob("runs/*")
    record = json.loads((folder / "record.json").read_text())
    return {
        "files": sorted(path.name for path in folder.iterdir()),
        "record": {k: v for k, v in record.items() if k not in TIMES}
        | {"config": {**record["config"], "results_path": ""}},
        "log": logged(folder),
        "network": (folder / "model.safetensors").read_bytes(),
    }


def logged(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a run's log without their times."""
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in event.items() if name != "seconds"} for event in events]


def change_record(folder: Path, **entries: Any) -> None:
    """Change entries of a record and seal it again."""
    record = json.loads((folder / "record.json").read_text()) | entries
    (folder / "record.json").write_text(json.dumps(record | {"seal": seal_of(record)}))
