"""One run: arguments, build, train, record. Or several, one for each of `--seeds`.

python main.py --model derpp --norm adab2n --dataset seq-cifar100
python main.py --list            what there is
python main.py --check_data --dataset seq-cifar100
python main.py --help            every flag
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from utils import process

if __name__ == "__main__":
    process.begin()  # before torch, which takes seconds to import, comes with what follows

from utils.config import config_file
from utils.config.arguments import Config, resolve
from utils.config.parser import build_parser, parse, to_save
from utils.config.plugins import given_plugins, load_plugins
from utils.errors import DataMissing, RunFailed, UsageError
from utils.files import HeldElsewhere
from utils.run.signals import Interrupted, Signals

EXIT_CODES = {UsageError: 2, RunFailed: 1, HeldElsewhere: 3}  # of what a command says in one line
WORST_LAST = (0, 3, 1, 2)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 finished, 1 failed, 2 bad usage, 3 running elsewhere, 130 and 143 stopped by a signal.

    As a program it outlives its streams: a closed one is /dev/null, and a pipe whose reader has left changes nothing.
    What standard output cannot take for another reason, such as a full disk, makes 0 a 1; the record is kept.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if "--help" in words or "-h" in words:
            load_plugins(given_plugins(words))
            print(build_parser().format_help(), end="")
            return 0
        explicit = parse(words)
        if "list" not in explicit:
            return run(explicit)
        from utils.config.listing import listing

        print(listing(explicit["list"]))
    except tuple(EXIT_CODES) as error:
        return complain(error)
    except Interrupted as error:
        process.say_stopped(error)
        return error.exit_code
    return 0


def complain(error: Exception, about: str = "") -> int:
    process.complain(f"{about}{error}")
    return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


def run(explicit: dict) -> int:
    seeds, saved = explicit.pop("seeds", None), explicit.pop("save_config", None)
    if "check_data" in explicit:
        from utils.run.data_check import check_data

        return check_data(explicit)
    if "eval_only" in explicit:
        from utils.run.saved_model import evaluate_saved

        if seeds or saved:
            raise UsageError("--eval_only evaluates one network as it is: leave --seeds and --save_config out")
        return evaluate_saved(explicit)
    configs = [resolve(explicit | {"seed": seed}) for seed in seeds] if seeds else [resolve(explicit)]
    if saved:
        config_file.write(saved, to_save(configs[0], explicit, seeds))
    if seeds:
        return run_seeds(configs)
    code, _, path = run_one(configs[0])
    print_path(path)
    return code


def run_one(config: Config) -> tuple[int, dict | None, Path | None]:
    """(exit code, record, where that lies)."""
    from utils.run.folder import RunFolder
    from utils.tables import run_report

    data = data_of(config)
    folder = RunFolder(config, data.spec)
    if config.dry_run:
        from utils.run.estimate import dry_run_report

        print(dry_run_report(config, data.spec, folder))
        return 0, None, None
    record = folder.answer() or train(config, data, folder)
    if record["status"] == "failed":
        print(f"{record.get('traceback', '')}error: {record['reason']}", file=sys.stderr)
        if folder.is_again:
            print("note: the record of the attempt before stays, and answers", file=sys.stderr)
    else:
        print(run_report(record))
    return 0 if record["status"] == "finished" else 1, record, folder.path_of_record(record["status"])


def run_seeds(configs: Sequence[Config]) -> int:
    """One after the other; the exit code is that of the worst. What is bad usage for one seed ends it all."""
    from utils.tables import report_over_seeds

    codes, records, paths = [], [], []
    for config in configs:
        try:
            code, record, path = run_one(config)
            records.append(record)
            paths.append(path)
            print()
        except tuple(EXIT_CODES) as error:
            code = complain(error, f"seed {config.seed}: ")
        codes.append(code)
        if code == EXIT_CODES[UsageError]:
            break
    finished = [record for record in records if record and record["status"] == "finished"]
    if finished:
        print(report_over_seeds(finished, len(configs)))
    for path in paths:
        print_path(path)
    return max(codes, key=WORST_LAST.index)


def print_path(path: Path | None) -> None:
    if path is not None and path.exists():
        print(f"record: {path}")


def data_of(config: Config):
    """A dry run can tell the cost without the data."""
    from utils.run.build import ABSENT, Data

    try:
        return Data(config)
    except DataMissing:
        if not config.dry_run:
            raise
        return Data(config, ABSENT)


def train(config: Config, data, folder) -> dict:
    """The run itself, under the folder's lock, until it is finished, fails or is told to stop."""
    from utils.device import set_up_device
    from utils.run.build import build_method, build_network
    from utils.run.execution import execute
    from utils.run.training import Training

    with Signals() as signals:
        device = set_up_device(config)
        net = build_network(config, data.spec, device)
        stream = data.stream(device)
        method = build_method(config, stream.spec, net, device)
        # Only now is anything written: whatever is wrong with the command has shown by here.
        with folder.held():
            if record := folder.answer():  # another process finished it in the meantime
                return record
            return execute(Training(config, stream, method, signals=signals), folder)


if __name__ == "__main__":
    sys.exit(process.end(main()))
