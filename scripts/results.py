"""The runs one has, as a table: filter, sort, keep as CSV or Parquet.

python -m scripts.results
python -m scripts.results --where norm=adab2n --sort -class_il_faa
python -m scripts.results --columns model,norm,lr,class_il_bwt --csv runs.csv
"""

from __future__ import annotations

import argparse
import operator
import re
import shutil
import sys
from collections.abc import Callable
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.command_line import Parser
from utils import process
from utils.config.options import folder, path
from utils.config.registry import close_matches
from utils.errors import UsageError
from utils.files import write_atomically
from utils.tables import TITLES, aligned, percent

if TYPE_CHECKING:
    import pandas as pd

SAME = {"=": operator.eq, "==": operator.eq, "!=": operator.ne}
ORDER = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
CONDITION = re.compile(r"\s*(\w+)\s*(==|!=|<=|>=|=|<|>)(.*)", re.DOTALL)
HASH_DIGITS = 4
NARROWEST_NAME = 20


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(joined(sys.argv[1:] if argv is None else argv))
    try:
        show(arguments)
    except (UsageError, OSError) as error:
        process.complain(error)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def show(arguments: argparse.Namespace) -> None:
    from utils.results import load

    runs = load(arguments.results_path, failed=arguments.failed)
    names = [known(name, runs) for name in dict.fromkeys(arguments.columns.split(","))] if arguments.columns else []
    found = ordered(selected(runs, arguments.where), arguments.sort)
    for kind, file in (("csv", arguments.csv), ("parquet", arguments.parquet)):
        if file:
            write(found[names or list(found)], kind, Path(file))
    print(aligned(cells(found[names])) if names else overview(found, arguments.failed))
    total = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    print(f"{len(found)} of {total}" if arguments.where else total)


def parser() -> argparse.ArgumentParser:
    whole = Parser(prog="python -m scripts.results", description=__doc__)
    whole.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help='only runs such as norm=adab2n or seed!=0; "lr<=0.1" and "date>2026-01-31" in quotes, for the shell; '
        "kappa= means that there is none; again for further ones, which all must hold",
    )
    whole.add_argument("--sort", metavar="COLUMN", help="by this column; -COLUMN: the largest first (default: by name)")
    whole.add_argument("--columns", metavar="A,B,C", help="show these; any option or metric (default: an overview)")
    whole.add_argument("--csv", type=path, metavar="FILE", help="also write them, with --columns or all columns")
    whole.add_argument("--parquet", type=path, metavar="FILE", help="the same as Parquet; needs pyarrow")
    whole.add_argument("--failed", action="store_true", help="failed runs too")
    whole.add_argument(
        "--results_path",
        type=folder,
        default="results",
        help="where runs were written, or a folder of run folders (default results)",
    )
    return whole


def joined(words: list[str]) -> list[str]:
    """`--sort -column` as one word: argparse takes the second for a flag."""
    for place, (word, value) in enumerate(pairwise(words)):
        if word == "--sort" and value.startswith("-") and not value.startswith("--"):
            return [*words[:place], f"--sort={value}", *words[place + 2 :]]
    return words


# --- which runs -------------------------------------------------------------------------------------------------------


def known(name: str, frame: pd.DataFrame) -> str:
    if name not in frame:
        names = list(frame)
        raise UsageError(f"unknown column {name!r}{close_matches(name, names)} Known: {', '.join(names)}")
    return name


def selected(frame: pd.DataFrame, conditions: list[str]) -> pd.DataFrame:
    for rows in [holds(condition, frame) for condition in conditions]:
        frame = frame[rows.loc[frame.index]]
    return frame


def ordered(frame: pd.DataFrame, by: str | None) -> pd.DataFrame:
    if by is None:
        return frame
    name = known(by.removeprefix("-"), frame)
    return frame.sort_values(name, ascending=name == by, kind="stable")


def holds(condition: str, frame: pd.DataFrame) -> pd.Series:
    """For which rows. A missing value is unequal to every value, and neither smaller nor larger."""
    match = CONDITION.fullmatch(condition)
    if not match:
        raise UsageError(
            f"--where {condition}: give NAME=VALUE, or one of != < > <= >= for =; those with < and > in quotes, "
            "which the shell would take for itself"
        )
    name, sign, text = (group.strip() for group in match.groups())
    column, compare = frame[known(name, frame)], (SAME | ORDER)[sign]
    if not text and sign in SAME:
        return compare(column.isna() | (column.astype("str") == ""), True)
    if column.isna().all():  # of no kind
        return column.isna() & (sign == "!=")
    values, value = comparable(column, sign, text, f"--where {condition}: {name}")
    return compare(values, value).fillna(sign == "!=").astype("bool")


def comparable(column: pd.Series, sign: str, text: str, where: str) -> tuple[pd.Series, Any]:
    """The column and the text as values that can be compared; dates by the day."""
    from pandas.api import types

    if types.is_bool_dtype(column):
        if sign in ORDER or text.lower() not in ("true", "false"):
            raise UsageError(f"{where} is true or false")
        return column, text.lower() == "true"
    if types.is_datetime64_any_dtype(column):
        return column.dt.date, converted(date.fromisoformat, text, f"{where} is a day such as 2026-01-31")
    if types.is_numeric_dtype(column):
        return column, converted(float, text, f"{where} is a number")
    if sign in ORDER:
        raise UsageError(f"{where} is text, which is compared with = or !=")
    return column, text


def converted(convert: Callable[[str], Any], text: str, otherwise: str) -> Any:
    try:
        return convert(text)
    except ValueError:
        raise UsageError(otherwise) from None


# --- how they are shown -----------------------------------------------------------------------------------------------


def overview(frame: pd.DataFrame, failed: bool) -> str:
    """Accuracies, seed and date, in the width of the terminal: what is left of it is for the name."""
    settings = [setting for setting in TITLES if f"{setting}_faa" in frame]
    names = [*(f"{setting}_faa" for setting in settings), "seed", "date", *(["status"] if failed else [])]
    rows = cells(frame[names])
    rows[0][: len(settings)] = [TITLES[setting] for setting in settings]
    others = sum(2 + max(map(len, column)) for column in zip(*rows, strict=True))
    room = max(shutil.get_terminal_size().columns - others, NARROWEST_NAME)
    shown = ["run; FAA in %", *(short_name(run, room) for run in frame["run"])]
    return aligned([[name, *row] for name, row in zip(shown, rows, strict=True)])


def cells(frame: pd.DataFrame) -> list[list[str]]:
    """As text, with the names above."""
    columns = [[name, *(cell(name, value) for value in frame[name].astype("object"))] for name in frame]
    return [list(row) for row in zip(*columns, strict=True)]


def cell(name: str, value: Any) -> str:
    from pandas import isna

    if isna(value):
        return "-"
    if isinstance(value, float):
        return percent(value) if name.startswith(tuple(TITLES)) else f"{value:g}"
    if name == "date":
        return f"{value:%Y-%m-%d}"
    return " ".join(str(value).split())


def short_name(run: str, room: int) -> str:
    """Without what every name has or another column says, and with as much of the hash as finds the folder; what is
    still too long loses its middle."""
    words, _, hash_ = run.rpartition("-")
    readable = re.sub(r"-s\d+(?=$|-val$|-debug$|-val-debug$)", "", words).replace("-seq-", "-")
    room -= 1 + HASH_DIGITS
    if len(readable) > room:
        kept = room - 2
        readable = f"{readable[: kept - kept // 2]}..{readable[-(kept // 2) :]}"
    return f"{readable}-{hash_[:HASH_DIGITS]}"


def write(frame: pd.DataFrame, kind: str, file: Path) -> None:
    try:
        data = frame.to_csv(index=False).encode() if kind == "csv" else frame.to_parquet(index=False)
    except ImportError:
        raise UsageError("--parquet needs pyarrow: pip install pyarrow, or take --csv") from None
    try:
        write_atomically(file, lambda opened: opened.write(data))
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; give --{kind} another place") from None


if __name__ == "__main__":
    process.begin()
    sys.exit(process.end(main()))
