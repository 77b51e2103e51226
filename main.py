"""One run: arguments, build, train, record.

python main.py --model derpp --norm adab2n --dataset seq-cifar100
python main.py --list            what there is
python main.py --help            every flag
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from utils.arguments import Config, build_parser, parse, resolve
from utils.errors import RunFailed, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 finished, 1 failed, 2 bad usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if "--help" in words or "-h" in words:
            print(build_parser().format_help(), end="")
        elif "--list" in words:
            from utils.listing import listing

            print(listing(words[words.index("--list") + 1 :]))
        else:
            return run(parse(words))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(explicit: dict) -> int:
    if "eval_only" in explicit:
        from utils.saved_model import evaluate_saved

        return evaluate_saved(explicit)
    config = resolve(explicit)

    from utils.build import build_spec
    from utils.records import RunFolder
    from utils.tables import run_report

    spec = build_spec(config)
    folder = RunFolder(config, spec)
    if config.dry_run:
        from utils.estimate import dry_run_report

        print(dry_run_report(config, spec, folder))
        return 0
    record = None if config.rerun else folder.finished_record()
    if record is not None and config.save_model and not folder.model_path.exists():
        raise UsageError("this run is finished, but its network was not kept: add --rerun to train and save it")
    if record is None:
        record = train(config, spec, folder)
    if record["status"] == "failed":
        print(f"error: {record['reason']}", file=sys.stderr)
    else:
        print(run_report(record))
    print(f"record: {folder.record_path}")
    return 0 if record["status"] == "finished" else 1


def train(config: Config, spec, folder) -> dict:
    import torch

    from utils.build import build_method, build_network, build_stream
    from utils.device import pick_device
    from utils.observers import build_observers
    from utils.records import make_record
    from utils.saved_model import save_model
    from utils.training import Training

    device = pick_device(config.device)
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    stream = build_stream(config, spec, device)
    net = build_network(config, spec, device)
    method = build_method(config, stream.spec, net, device)
    folder.create(config)
    observers = build_observers(config, stream.n_train_tasks, folder)
    status, outcome = "failed", {"reason": "interrupted"}
    try:
        outcome = Training(config, stream, net, method, observers).run()
        status = "finished"
    except RunFailed as error:
        outcome = {"reason": str(error)}
    if config.save_model and status == "finished":
        save_model(folder.model_path, net, config)
    record = make_record(folder, config, stream.spec, status, outcome)
    for observer in observers:
        observer.on_end(record)
    return record


if __name__ == "__main__":
    sys.exit(main())
