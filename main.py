"""One run: arguments, build, train, record. Or several, one for each of `--seeds`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils import console
from utils.config.parser import as_toml, help_text, listing, parse
from utils.config.resolve import Config, resolve
from utils.errors import UsageError

WORST_LAST = (0, 3, 1, 2)
USAGE = """\
usage: python main.py --model NAME --dataset NAME [--norm NAME] [more flags]
  python main.py --model derpp --norm adab2n --dataset seq-digits    a first run, of a minute or two
  python main.py --list                                              all models, norms and data sets
  python main.py --help --model derpp --norm adab2n                  what that run uses; --help alone: all flags
README.md says more."""


@console.reporting_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 finished, 1 failed, 2 bad usage, 3 running elsewhere, 128 + n stopped by signal n."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        if "--help" in words or "-h" in words:
            print(help_text(words), end="")
            return 0
        return run(parse(words))
    except KeyboardInterrupt as error:
        name = str(error) or "SIGINT"  # without a name where there is nothing to save yet
        print(f"stopped by {name}; the same command goes on from the last checkpoint", file=sys.stderr)
        return getattr(error, "exit_code", 130)


def run(explicit: dict[str, Any]) -> int:
    """Do what the flags ask for; return the exit code."""
    seeds = explicit.pop("seeds", None)
    if "list" in explicit:
        print(listing(explicit["list"]))
        return 0
    if "check_data" in explicit:
        from utils.run.data_check import check_data

        return check_data(explicit)
    if "eval_only" in explicit:
        from utils.run.saved_model import evaluate_saved

        if seeds:
            raise UsageError("--seeds has no effect with --eval_only; remove it")
        return evaluate_saved(explicit)
    configs = [resolve(explicit | {"seed": seed}) for seed in seeds] if seeds else [resolve(explicit)]
    if "dry_run" in explicit:
        from utils.run.execution import dry_run_report

        print("\n".join([*map(dry_run_report, configs), as_toml(configs[0], explicit, seeds)]))
        return 0
    if seeds:
        return run_seeds(configs)
    code, _, path = run_one(configs[0])
    print(f"record: {path}")
    return code


def run_one(config: Config) -> tuple[int, dict[str, Any], Path]:
    """Return the exit code, the record and its path."""
    from utils.run.execution import run_or_reuse
    from utils.tables import run_report

    record, folder = run_or_reuse(config)
    if record["status"] == "failed":
        print(f"{record.get('traceback', '')}error: {record['reason']}", file=sys.stderr)
        return 1, record, folder.record_path
    print(run_report(record))
    return 0, record, folder.record_path


def run_seeds(configs: Sequence[Config]) -> int:
    """Run one seed after the other and return the worst exit code. Bad usage ends it."""
    from utils.run.records import mixed_conditions
    from utils.tables import report_over_seeds

    codes, paths, finished = [], [], []
    for config in configs:
        try:
            code, record, path = run_one(config)
            paths.append(path)
            finished += [record] if code == 0 else []
            print()
        except console.ERRORS as error:
            code = console.complain(error, f"seed {config.seed}: ")
        codes.append(code)
        if code == console.EXIT_CODES[UsageError]:
            break
    if finished:
        print(report_over_seeds(finished, len(configs)))
    for text in mixed_conditions(finished):
        console.log.warning(text)
    for path in paths:
        print(f"record: {path}")
    return max(codes, key=WORST_LAST.index)


if __name__ == "__main__":
    console.run_command(main)
