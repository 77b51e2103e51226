"""Follow the README as a new user does: every command in it, in its order, in a copy of the checkout.

python -m scripts.follow_readme           a line for each command: exit code and seconds
python -m scripts.follow_readme --list    say what would be run

A command that needs data, GPUs or hours gets further flags; those that set up an environment are left to `make`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from scripts.command_line import Parser

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("make", "python", "python3", "pip", "adab2n")
# Minutes of tests, and an environment that is there.
LEFT_OUT = r"make test$|python3 -m venv|pip install"
ADDED = {  # to commands that begin so, where they need data or GPUs, or take long
    "python main.py --model derpp --norm adab2n --dataset seq-cifar100": "--dry_run",
    "python main.py --model er_ace --norm adab2n --dataset seq-digits --seeds": "--debug_mode --num_filters 4",
    "python -m scripts.reproduce run table2": "--dry_run",
    "python -m scripts.bench step": "--repetitions 2 --widths 8",
    "python -m scripts.bench layout": "--repetitions 2 --widths 16",
    "python -m scripts.bench compile": "--repetitions 2 --widths 8 --layouts NCHW --amp none",
    "python -m scripts.bench kernels": "--models er_ace --norms bn --width 8",
    "python -m scripts.bench whole": "--repetitions 2 --width 4 --steps 3",
    "python -m scripts.bench stream": "--repetitions 2 --images 32",
    "python -m scripts.bench busy": "--repetitions 2 --width 8",
    "python -m scripts.bench probes": "--repetitions 2",
    "python -m scripts.bench compare": "",
    "python -m scripts.bench": "--repetitions 2",
}


@dataclass(frozen=True)
class Command:
    line: str
    added: str = ""
    left_out: bool = False

    @property
    def whole(self) -> str:
        return f"{self.line} {self.added}".strip()


def commands(text: str) -> list[Command]:
    """Of a README's indented lines, outside Python code."""
    text = re.sub(r"```python\n.*?```", "", text, flags=re.DOTALL)
    lines = [line.partition("  #")[0].strip() for line in re.findall(r"^    (\S.*)$", text, flags=re.MULTILINE)]
    return [prepared(line) for line in lines if line.split()[0] in PROGRAMS]


def prepared(line: str) -> Command:
    added = next((words for start, words in ADDED.items() if line.startswith(start)), "")
    return Command(line, added, left_out=re.match(LEFT_OUT, line) is not None)


def examples(text: str) -> dict[str, str]:
    """The README's files of one's own, by path."""
    return dict(re.findall(r"```python\n# (mine/\S+\.py)\n(.*?)```", text, flags=re.DOTALL))


def copied(folder: Path) -> Path:
    """The tracked files as they are now, with this environment."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, os.fsdecode(names).split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.prefix).resolve())
    for name, text in examples((folder / "README.md").read_text()).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def follow(folder: Path) -> int:
    failed = 0
    environment = os.environ | {"PATH": f"{folder / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"}
    for command in commands((folder / "README.md").read_text()):
        if command.left_out:
            print(f"  left out    {command.line}", flush=True)
            continue
        runs = sorted(path.parent.name for path in folder.glob("results/runs/*/record.json"))
        line = command.whole.replace("NAME", runs[0]) if runs else command.whole
        started = time.monotonic()
        done = subprocess.run(shlex.split(line), cwd=folder, env=environment, capture_output=True, text=True)
        print(f"{done.returncode:3} {time.monotonic() - started:6.0f} s  {line}", flush=True)
        if done.returncode:
            failed += 1
            print("\n".join(f"      {text}" for text in done.stderr.splitlines()[-8:]), flush=True)
    return failed


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m scripts.follow_readme", description=__doc__)
    parser.add_argument("--list", action="store_true", help="run nothing")
    if parser.parse_args(argv).list:
        for command in commands((ROOT / "README.md").read_text()):
            print(f"{'left out' if command.left_out else 'run':10}{command.whole}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        failed = follow(copied(Path(folder)))
    print(f"{failed} commands failed" if failed else "every command ended with exit code 0")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
