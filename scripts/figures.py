"""Draw figures of finished runs, as PDF, SVG and PNG, light and dark.

python -m scripts.figures all                 what the runs allow
python -m scripts.figures fig1 confounds --preset smoke
python -m scripts.figures run RUN_FOLDER      everything about one run
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.reproduce import add_plan_arguments
from utils import console
from utils.cli import Parser
from utils.config.plugins import given_plugins
from utils.errors import UsageError


@console.reporting_errors
def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="scripts.figures", description=__doc__)
    text = "fig1 ... fig7, tasks, anytime, weights, confounds, published, theory, or all; or run RUN_FOLDER"
    add_plan_arguments(parser, text)
    parser.add_argument("--output", help="folder (default: RESULTS_PATH/figures/PRESET, RUN_FOLDER/figures)")
    arguments = parser.parse_args(words)
    arguments.plugins = given_plugins(words)
    from utils.config.registry import close_matches
    from utils.figures.catalogue import FIGURES, draw_run
    from utils.studies.request import selection_of

    if arguments.ids[0] == "run":
        if len(arguments.ids) != 2:
            raise UsageError("give one folder: python -m scripts.figures run results/runs/NAME")
        source = Path(arguments.ids[1])
        print(*draw_run(source, Path(arguments.output or source / "figures")), sep="\n")
        return 0
    if unknown := [id for id in arguments.ids if id not in {"all", *FIGURES}]:
        matches = close_matches(unknown[0], list(FIGURES))
        raise UsageError(f"unknown figure {unknown[0]!r}{matches} All: {', '.join(FIGURES)}")
    selection = selection_of(arguments)
    selection.runs.reject_damaged_records()
    output = Path(arguments.output or Path(arguments.results_path) / "figures" / arguments.preset)
    drawn = 0
    for id in FIGURES if "all" in arguments.ids else arguments.ids:
        paths = FIGURES[id].write(selection, output)
        drawn += bool(paths)
        print(f"{id}: {paths[0] if paths else f'no runs; python -m scripts.reproduce run {FIGURES[id].needs}'}")
    return 0 if drawn else 1


if __name__ == "__main__":
    console.run_command(main)
