"""Show finished runs as a table: filter, sort, write CSV or Parquet.

python -m scripts.results
python -m scripts.results --where "norm == 'adab2n' and seed < 3" --sort -class_il_faa
python -m scripts.results --columns model,norm,lr,class_il_bwt --csv runs.csv
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from utils import console
from utils.cli import Parser
from utils.config.plugins import given_plugins, load_plugins
from utils.config.registry import close_matches
from utils.errors import UsageError
from utils.tables import TITLES, aligned, count_of

if TYPE_CHECKING:
    import pandas as pd


@console.reporting_errors
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m scripts.results", description=__doc__)
    parser.add_argument("--where", metavar="QUERY", help="a pandas query, such as \"norm == 'adab2n' and seed < 3\"")
    parser.add_argument("--sort", metavar="COLUMN", help="sort by a column; --sort=-COLUMN: largest first")
    parser.add_argument("--columns", metavar="A,B,C", help="options and metrics (default: accuracies, seed and date)")
    parser.add_argument("--csv", metavar="FILE", help="write the runs, with the chosen or all columns")
    parser.add_argument("--parquet", metavar="FILE", help="the same as Parquet; needs pyarrow")
    parser.add_argument("--failed", action="store_true", help="include failed runs")
    parser.add_argument("--plugins", nargs="+", default=[], help="folders or modules with metrics of your own")
    parser.add_argument("--results_path", default="results", help="folder of runs (default: %(default)s)")
    arguments = parser.parse_args(argv)
    load_plugins(given_plugins(["--plugins", *arguments.plugins]))
    from utils.results import identities, load
    from utils.run.identity import hash_meanings

    runs = load(arguments.results_path, failed=arguments.failed)
    columns = list(dict.fromkeys(arguments.columns.split(","))) if arguments.columns else []
    sort = (arguments.sort or "run").removeprefix("-")
    known = [str(name) for name in runs]
    if unknown := [name for name in (*columns, sort) if name not in known]:
        matches = close_matches(unknown[0], known)
        raise UsageError(f"unknown column {unknown[0]!r}{matches} Known: {', '.join(known)}")
    chosen = select(runs, arguments.where) if arguments.where else runs
    if arguments.sort:
        chosen = chosen.sort_values(sort, ascending=not arguments.sort.startswith("-"), kind="stable")
    if arguments.csv:
        chosen[columns or list(chosen)].to_csv(arguments.csv, index=False)
    if arguments.parquet:
        chosen[columns or list(chosen)].to_parquet(arguments.parquet, index=False)
    accuracies = [f"{setting}_faa" for setting in TITLES if f"{setting}_faa" in runs]
    overview = ["run", *accuracies, "seed", "date", *(["status"] if arguments.failed else [])]
    shown = chosen[columns or overview]
    if meanings := hash_meanings(identities(chosen)):  # of runs whose names differ only in the hash
        shown = shown.assign(**{"differs in": chosen["run"].map(meanings)})
    print(table(shown))
    print(f"{len(chosen)} of {count_of(len(runs), 'run')}")
    return 0


def select(runs: pd.DataFrame, query: str) -> pd.DataFrame:
    try:
        return runs.loc[runs.assign(date=runs["date"].dt.tz_localize(None)).query(query).index]
    except Exception as error:  # pandas evaluates the text and raises whatever goes wrong in it
        raise UsageError(f"--where {query}: {error}; see pandas.DataFrame.query") from error


def table(runs: pd.DataFrame) -> str:
    forms = {name: "{:.2f}".format for name in runs if str(name).endswith("_faa")} | {"date": "{:%Y-%m-%d}".format}
    cells = [runs[name].astype("object").map(forms.get(name, str), na_action="ignore").fillna("-") for name in runs]
    return aligned([[str(name) for name in runs], *(list(row) for row in zip(*cells, strict=True))])


if __name__ == "__main__":
    console.run_command(main)
