"""The published numbers as data: counts and samples typed from the paper, and the reader of its source."""

import csv

import pytest

from scripts.paper_tables import FOLDER, differences, files_of, read_tables

NUMBERS = {2: 72, 3: 72, 4: 18, 6: 22, 7: 16, 8: 12, 9: 12, 10: 12, 11: 72}
SAMPLES = [
    ("table2", "ER-ACE w/ BN", "Split CIFAR-10 M=500", "86.34", "2.35"),
    ("table2", "DER++ w/ Ours", "Split Mini-ImageNet M=5000", "69.12", "2.51"),
    ("table3", "ER-ACE w/ Ours", "Split CIFAR-10 M=2000", "59.93", "4.49"),
    ("table3", "DER++ w/ IN", "Split Mini-ImageNet M=2000", "1.88", "0.33"),
    ("table4", "CN", "Class-IL LiDER", "9.97", "0.36"),
    ("table4", "Ours", "Task-IL DER++", "36.98", "1.52"),
    ("table6", "FLOPs/step", "CN", "86.09M", ""),
    ("table6", "Time (Plain), ratio", "Ours", "1.14", ""),
    ("table7", "Class-IL ACC", "1/10", "25.50", ""),
    ("table8", "BN", "Joint tuning Task-IL ACC", "76.80", "1.48"),
    ("table9", "CN", "DomainNet Domain-IL", "10.80", ""),
    ("table10", "p-value", "Offline BN", "1.6e-02", ""),
    ("table11", "DER++ w/ BN", "Split CIFAR-10 M=2000", "0.22", "0.03"),
    ("table11", "ER-ACE w/ LN", "Split CIFAR-100 M=5000", "1.46", "0.44"),
]


def lines_of(table: str) -> list[dict]:
    with open(FOLDER / f"{table}.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_all_tables_are_listed_with_label_and_caption():
    listed = lines_of("tables")
    assert [line["id"] for line in listed] == [f"table{number}" for number in range(1, 12)]
    assert {int(line["id"][5:]): int(line["numbers"]) for line in listed if line["numbers"] != "0"} == NUMBERS
    assert all(line["label"].startswith("table:") and line["caption"].endswith(".") for line in listed)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_a_table(number):
    lines = lines_of(f"table{number}")
    assert len(lines) == NUMBERS[number]
    assert len({(line["row"], line["column"]) for line in lines}) == NUMBERS[number]


@pytest.mark.parametrize(("table", "row", "column", "value", "std"), SAMPLES)
def test_sample_of_cells(table, row, column, value, std):
    [line] = [line for line in lines_of(table) if (line["row"], line["column"]) == (row, column)]
    assert (line["value"], line["std"]) == (value, std)


SOURCE = r"""
\begin{table}
    \caption{Joint \textbf{and} not ($\uparrow$).}
    \begin{tabular}{lcc}
        \toprule
        & \multicolumn{2}{c}{Fine-tuning} \\ \cmidrule(l){2-3}
        & Task-IL & Class-IL \\ \midrule
        BN & 1.50{\footnotesize \textpm 0.25} & - \\
        % CN & 9.99 & 9.99 \\
        Ours & \textbf{2.00{\footnotesize \textpm 1.00}} & \textit{3.25} \\ \bottomrule
    \end{tabular}
    \label{table:ft_and_jt}
\end{table}
"""
CELLS = [
    ("BN", "Fine-tuning Task-IL", "1.50", "0.25"),
    ("Ours", "Fine-tuning Task-IL", "2.00", "1.00"),
    ("Ours", "Fine-tuning Class-IL", "3.25", ""),
]


def test_source_is_read_as_printed():
    [table] = read_tables(SOURCE)
    assert table.caption == "Joint and not (higher is better)."
    assert table.cells == CELLS


def test_differing_cell_is_named(tmp_path):
    files = files_of(read_tables(SOURCE))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert differences(files, tmp_path) == []
    (tmp_path / "table1.csv").write_text(files["table1.csv"].replace("2.00", "2.01"))
    assert differences(files, tmp_path) == [
        "table1.csv: ['Ours', 'Fine-tuning Task-IL', '2.00', '1.00'] is in the paper only",
        "table1.csv: ['Ours', 'Fine-tuning Task-IL', '2.01', '1.00'] is not in the paper",
    ]


def test_text_where_a_number_should_be_is_refused():
    with pytest.raises(ValueError, match="row 'BN', column 'Fine-tuning Task-IL': 'about 2' is no value"):
        read_tables(SOURCE.replace(r"1.50{\footnotesize \textpm 0.25}", "about 2"))
