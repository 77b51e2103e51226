"""The paper's tables, read from its LaTeX source, against `results/paper/`.

    python -m scripts.paper_tables paper.tex            compare every cell; exit code 1 if one differs
    python -m scripts.paper_tables paper.tex --write    write results/paper/ anew

`tables.csv` lists all tables with label and caption; `tableN.csv` holds a table's cells as published, one a line.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "results" / "paper"


@dataclass
class Table:
    number: int
    label: str
    caption: str
    cells: list[tuple[str, str, str, str]] = field(default_factory=list)  # row, column, value, std

    @property
    def id(self) -> str:
        return f"table{self.number}"


@dataclass(frozen=True)
class Shape:
    """How a table is to be read."""

    header_rows: int
    row_names: dict[str, str] = field(default_factory=dict)  # where the source's own name does not do


SHAPES = {
    "table:onlineTIL": Shape(2),
    "table:onlineCIL": Shape(2),
    "table:forgetting_til": Shape(2),
    "table:offline_til_cil": Shape(2),
    "table:running_time": Shape(1),
    "table:r_impact": Shape(1),
    "table:ft_and_jt": Shape(2),
    "table:scalability": Shape(2),
    "table:significance": Shape(2, {"Is AdaB2N statistically significantly better?": "better"}),
}
VALUE = re.compile(r"^(?P<value>\d+(?:\.\d+)?(?:e-?\d+)?M?|yes)(?: ± (?P<std>\d+(?:\.\d+)?))?x?$")


def read_tables(source: str) -> list[Table]:
    """All tables in their order, those without numbers too."""
    source = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("%"))
    tables = []
    for match in re.finditer(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", source, re.DOTALL):
        body = match.group(1)
        label = re.search(r"\\label\{(table:[^}]*)\}", body)
        if label is None:
            raise ValueError(f"table {len(tables) + 1} has no label")
        label = label.group(1)
        table = Table(len(tables) + 1, label, plain(braced(body, "\\caption")))
        if label in SHAPES:
            table.cells = read_cells(body, SHAPES[label])
        tables.append(table)
    return tables


def braced(text: str, command: str) -> str:
    """The argument of a command, whatever braces it holds itself."""
    start = text.index(command + "{") + len(command) + 1
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    raise ValueError(f"{command} is never closed")


def read_cells(body: str, shape: Shape) -> list[tuple[str, str, str, str]]:
    tabular = body[body.index("\\begin{tabular}") : body.rindex("\\end{tabular}")]
    tabular = re.sub(r"^\\begin\{tabular\}\{[^}]*\}", "", tabular)
    nested = r"\\begin\{tabular\}\[c\]\{@\{\}c@\{\}\}(.*?)\\end\{tabular\}"
    tabular = re.sub(nested, lambda match: match[1].replace("\\\\", " "), tabular, flags=re.DOTALL)
    tabular = re.sub(r"\\(hline|toprule|midrule|bottomrule|cmidrule(\([lr]+\))?\{[^}]*\})", "", tabular)
    rows = [expanded(row) for row in tabular.split("\\\\") if row.strip()]
    header, rows = rows[: shape.header_rows], rows[shape.header_rows :]
    columns = [" ".join(dict.fromkeys(word for word in words if word)) for words in zip(*header, strict=True)]
    cells, name = [], ""
    for row in rows:
        name = shape.row_names.get(row[0], row[0]) or f"{name}, ratio"
        for column, text in zip(columns[1:], row[1:], strict=True):
            if text == "-":
                continue
            value = VALUE.match(text)
            if value is None:
                raise ValueError(f"row {name!r}, column {column!r}: {text!r} is no value")
            cells.append((name, column, value["value"], value["std"] or ""))
    return cells


def expanded(row: str) -> list[str]:
    """The cells of a row as plain text; one that spans several columns is repeated."""
    cells = []
    for cell in row.split("&"):
        span = re.match(r"\s*\\multicolumn\{(\d+)\}\{[^}]*\}", cell)
        text = plain(cell[span.end() :] if span else cell)
        cells += [text] * (int(span[1]) if span else 1)
    return cells


def plain(text: str) -> str:
    """LaTeX to plain text, as far as the tables need it."""
    text = re.sub(r"\{\\footnotesize \\textpm ([\d.]+)\}", r" ± \1", text)
    for old, new in {
        "\\ding{51}": "yes", "$\\times$": "x", "\\uparrow": "higher is better", "\\downarrow": "lower is better",
        "\\pm": "±", "$^2$": "2", "|\\mathcal{M}|": "M", "|M|": "M", "|B|": "B",
    }.items():  # fmt: skip
        text = text.replace(old, new)
    text = re.sub(r"\\multirow\{?\d\}?\*?(\{\*\})?", "", text)
    text = re.sub(r"\\tabincell\{c\}|\\(textbf|textit|underline|small)|\\,", "", text)
    return " ".join(re.sub(r"[{}$]", "", text).split())


def as_csv(header: list[str], rows: list) -> str:
    file = StringIO()
    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return file.getvalue()


def files_of(tables: list[Table]) -> dict[str, str]:
    files = {
        "tables.csv": as_csv(
            ["id", "label", "numbers", "caption"],
            [(table.id, table.label, len(table.cells), table.caption) for table in tables],
        )
    }
    for table in tables:
        if table.cells:
            files[f"{table.id}.csv"] = as_csv(["row", "column", "value", "std"], table.cells)
    return files


def differences(files: dict[str, str], folder: Path) -> list[str]:
    found = []
    for name, text in files.items():
        path = folder / name
        held = list(csv.reader(StringIO(path.read_text(encoding="utf-8")))) if path.exists() else []
        expected = list(csv.reader(StringIO(text)))
        found += [f"{name}: {row} is in the paper only" for row in surplus(expected, held)]
        found += [f"{name}: {row} is not in the paper" for row in surplus(held, expected)]
    found += [f"{path.name} is no table with numbers" for path in folder.glob("*.csv") if path.name not in files]
    return found


def surplus(rows: list[list[str]], others: list[list[str]]) -> list[list[str]]:
    """The rows that there are more often than in the others."""
    left = Counter(map(tuple, others))
    left.subtract(map(tuple, rows))
    return [list(row) for row, count in left.items() for _ in range(-count)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the paper's LaTeX source")
    parser.add_argument("--write", action="store_true", help="write the files instead of comparing")
    arguments = parser.parse_args()
    try:
        tables = read_tables(arguments.source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"error: cannot read {arguments.source}: {error}", file=sys.stderr)
        return 2
    files = files_of(tables)
    if arguments.write:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
    found = differences(files, FOLDER)
    print("\n".join(found) or f"{sum(len(table.cells) for table in tables)} cells of {len(tables)} tables agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
