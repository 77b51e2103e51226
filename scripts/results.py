"""Show finished runs as a table: filter, sort, write CSV or Parquet.

python -m scripts.results
python -m scripts.results --where "norm == 'adab2n' and seed < 3" --sort -class_il_faa
python -m scripts.results --columns model,norm,lr,class_il_bwt --csv runs.csv
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from utils import console
from utils.cli import Parser
from utils.config.registry import close_matches
from utils.errors import UsageError
from utils.tables import TITLES, aligned

if TYPE_CHECKING:
    import pandas as pd


def parser() -> Parser:
    parser = Parser(prog="python -m scripts.results", description=__doc__)
    parser.add_argument("--where", metavar="QUERY", help="a pandas query, such as \"norm == 'adab2n' and seed < 3\"")
    parser.add_argument("--sort", metavar="COLUMN", help="sort by a column; --sort=-COLUMN: largest first")
    parser.add_argument("--columns", metavar="A,B,C", help="options and metrics (default: accuracies, seed and date)")
    parser.add_argument("--csv", metavar="FILE", help="write the runs, with the chosen or all columns")
    parser.add_argument("--parquet", metavar="FILE", help="the same as Parquet; needs pyarrow")
    parser.add_argument("--failed", action="store_true", help="include failed runs")
    parser.add_argument("--results_path", default="results", help="folder of runs (default: %(default)s)")
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        from utils.results import load

        runs = load(arguments.results_path, failed=arguments.failed)
        columns = arguments.columns.split(",") if arguments.columns else []
        check_columns(runs, [*columns, *([arguments.sort.removeprefix("-")] if arguments.sort else [])])
        chosen = select(runs, arguments.where) if arguments.where else runs
        if arguments.sort:
            largest_first = arguments.sort.startswith("-")
            chosen = chosen.sort_values(arguments.sort.removeprefix("-"), ascending=not largest_first, kind="stable")
        if arguments.csv:
            chosen[columns or list(chosen)].to_csv(arguments.csv, index=False)
        if arguments.parquet:
            chosen[columns or list(chosen)].to_parquet(arguments.parquet, index=False)
    except (UsageError, OSError, ImportError) as error:
        console.print_error(error)
        return 2
    overview = ["run", *(f"{setting}_faa" for setting in TITLES if f"{setting}_faa" in runs), "seed", "date"]
    print(table(chosen[columns or [*overview, *(["status"] if arguments.failed else [])]]))
    print(f"{len(chosen)} of {len(runs)} runs")
    return 0


def check_columns(runs: pd.DataFrame, names: list[str]) -> None:
    known = [str(name) for name in runs]
    for name in names:
        if name not in known:
            raise UsageError(f"unknown column {name!r}{close_matches(name, known)} Known: {', '.join(known)}")


def select(runs: pd.DataFrame, query: str) -> pd.DataFrame:
    try:
        return runs.loc[runs.assign(date=runs["date"].dt.tz_localize(None)).query(query).index]
    except Exception as error:  # pandas evaluates the text and raises whatever goes wrong in it
        raise UsageError(f"--where {query}: {error}; see pandas.DataFrame.query") from error


def table(runs: pd.DataFrame) -> str:
    cells = runs.astype("object").where(runs.notna(), "-").astype(str)
    for name in cells:
        if name == "date":
            cells[name] = cells[name].str[:10]
        elif str(name).endswith("_faa"):
            cells[name] = runs[name].map("{:.2f}".format, na_action="ignore").fillna("-")
    return aligned([[str(name) for name in cells], *cells.to_numpy().tolist()])


if __name__ == "__main__":
    console.begin()
    sys.exit(console.end(main()))
