"""The commands and examples of README and the pages beside it, as a new user finds them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/runs.md", "docs/fidelity.md", "docs/reproduce.md", "docs/gpu.md", "docs/extend.md")
GUIDE = "\n".join((ROOT / page).read_text() for page in PAGES)
STEPS = ("first_run", "own_norm", "own_study", "reproduce_table")
TUTORIALS = "\n".join((ROOT / f"docs/tutorials/{step}.md").read_text() for step in STEPS)
PROGRAMS = ("make", "python", "python3", "pip")
# Takes minutes, sets up an environment that is there, or needs data.
SKIPPED = r"make test$|python3 -m venv|pip install|.*--check_data"
ADDED = {  # flags for commands with this beginning that need data or GPUs, or take long
    "python main.py --model derpp --norm adab2n --dataset seq-cifar100": "--dry_run",
    "python main.py --model er_ace --norm adab2n --dataset seq-digits --seeds": "--debug_mode --num_filters 4",
    "python -m scripts.reproduce run table2": "--dry_run",
    "python -m scripts.bench run": "--repetitions 2 --widths 4 --steps 3",
    "python -m scripts.bench compile": "--repetitions 2 --widths 16 --amp none",
    "python -m scripts.bench compare": "",
    "python -m scripts.bench": "--repetitions 2",
}


def commands(text: str) -> list[str]:
    """Return the commands among the indented lines outside Python code, in their order, with added flags."""
    text = re.sub(r"```python\n.*?```", "", text, flags=re.DOTALL)
    lines = [line.partition("  #")[0].strip() for line in re.findall(r"^    (\S.*)$", text, flags=re.MULTILINE)]
    lines = [line for line in lines if line.split()[0] in PROGRAMS and not re.match(SKIPPED, line)]
    added = [next((flags for start, flags in ADDED.items() if line.startswith(start)), "") for line in lines]
    return [f"{line} {flags}".strip() for line, flags in zip(lines, added, strict=True)]


def examples(text: str) -> dict[str, str]:
    """Return the guide's plug-in files and studies by path."""
    return dict(re.findall(r"```(?:python|toml)\n# (\S+\.(?:py|toml))\n(.*?)```", text, flags=re.DOTALL))
