"""The pages of a report: they exist, their links lead somewhere, their numbers are the records', text stays text."""

import json
import re
import shlex
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from scripts.reproduce import main as reproduce
from tests.scripts.records import finish, finish_table8, run_of, selection_of, write_log
from utils.config.parser import parse
from utils.config.resolve import identity_options, resolve
from utils.studies import report_command
from utils.studies.explorer import configuration, write_pages
from utils.studies.render import Report
from utils.studies.runs import MEASURED
from utils.studies.study import read_study

ODD = "<i>&\"'</i></script>"


class Links(HTMLParser):
    """What a page loads and links to, and its ids."""

    def __init__(self, page: Path):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        links = [values[name] for name in ("href", "src", "srcset") if name in values]
        self.links += [link for link in links if tag != "a" or not link.startswith("https://itables.org/")]  # its help
        self.ids.add(values.get("id"))


def charts(page: Path) -> list[dict]:
    return [
        json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page.read_text())
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The report of Table 8 in miniature and of all kept records; one run has a log."""
    results = tmp_path_factory.mktemp("results")
    write_log(
        finish_table8(results)[-1], {"event": "log", "step": 1, "loss": 2.5}, {"event": "log", "step": 2, "loss": None},
        {"event": "evaluation", "step": 3, "mean": {"class_il": 40.0, "task_il": 50.0}},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_command, "draw_figures", lambda *arguments: {})
        words = ["--preset", "smoke", "--results_path", str(results)]
        assert reproduce(["report", "table8", "table4", *words]) == 0
    return results / "reports" / "smoke"


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(folder):
    pages = {path: Links(path) for path in [*folder.glob("*.html"), *folder.glob("runs/*.html")]}
    assert len(pages) == 2 + 6 + len(list(MEASURED.glob("*/record.json")))
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            assert not parts.scheme
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), link
            assert not parts.fragment or parts.fragment in pages[target].ids, link


def test_every_seed_leads_to_its_run(folder):
    cells = re.findall(r'seed 0: <a href="(runs/[^"]+)\.html">([\d.]+)</a>', (folder / "index.html").read_text())
    assert len(cells) == 12
    for link, value in cells:
        record = json.loads((folder.parents[1] / f"{unquote(link)}/record.json").read_text())
        assert float(value) in {result["metrics"]["faa"] for result in record["results"].values()}


def test_sections_without_runs_are_folded(folder):
    page = (folder / "index.html").read_text()
    assert '<section id="table8">' in page
    assert '<details id="table4"><summary>' in page
    assert "paper 1" not in page  # no published number beside the digits


def test_a_run_shows_the_numbers_of_its_record(folder):
    for path in [*MEASURED.glob("*/record.json"), *folder.parents[1].glob("runs/*/record.json")]:
        record, page = json.loads(path.read_text()), folder / "runs" / f"{path.parent.name}.html"
        matrices = [chart["data"][0]["z"] for chart in charts(page) if chart["data"][0]["type"] == "heatmap"]
        assert matrices == [result["matrix"] for result in record["results"].values()]
        text = page.read_text()
        shown = re.search(r"final average accuracy \(FAA\)</th>(.*?)</tr>", text)[1]
        expected = [f"{result['metrics']['faa']:.2f}" for result in record["results"].values()]
        assert re.findall(r"<td>([\d.]+)</td>", shown) == expected
        embedded = re.search(r'<pre tabindex="0">(\{.*?)</pre>', text, re.DOTALL)[1]
        assert json.loads(unescape(embedded)) == record


def test_curves_are_those_of_the_log(folder):
    [log] = folder.parents[1].glob("runs/*/metrics.jsonl")
    curves = [chart["data"] for chart in charts(folder / "runs" / f"{log.parent.name}.html")][2:]
    assert [[(line["x"], line["y"]) for line in lines] for lines in curves] == [
        [([3], [40.0]), ([3], [50.0])],
        [([1], [2.5])],
    ]
    kept = folder / "runs" / f"{next(MEASURED.iterdir()).name}.html"
    assert "metrics.jsonl" in kept.read_text()  # says that there is none


def test_commands_repeat_the_kept_runs():
    for path in MEASURED.glob("*/record.json"):
        record = json.loads(path.read_text())
        differences, command = configuration(record["config"], path)
        config = resolve(parse(shlex.split(command)[2:]))
        identity = json.loads(json.dumps(identity_options(config)))
        assert identity == {name: record["identity"][name] for name in identity}
        assert record["config"]["num_threads"] == config.num_threads
        assert len(differences) < len(record["config"]) / 2


def test_a_run_of_a_plugin_that_is_not_loaded_has_a_page(tmp_path):
    run = run_of(tmp_path)
    finish(run, 50.0)
    record = json.loads((run.folder / "record.json").read_text())
    record["config"] |= {"norm": ODD, "plugins": ["mine"]}
    (run.folder / "record.json").write_text(json.dumps(record))
    write_pages(Report(ODD), {run.name: run.folder}, tmp_path)
    text = (tmp_path / "runs" / f"{run.name}.html").read_text()
    assert "--plugins mine" in text
    for page in (tmp_path / "index.html", tmp_path / "runs.html", tmp_path / "runs" / f"{run.name}.html"):
        assert ODD not in page.read_text()
        assert "<i>" not in page.read_text()


STUDY = f"""
title = '''{ODD}'''
seeds = [0, 1, 2]
metrics = ["class_il_faa"]
compare = {{ lr = 0.1 }}
[common]
model = "er"
dataset = "seq-digits"
[vary]
lr = [0.1, 0.2, 0.3]
"""


def test_a_study_has_its_own_title_intervals_and_runs_only(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(STUDY)
    study = read_study(path)
    chosen = selection_of(tmp_path, study.preset())
    for cell in study.plans()["mine"].cells(study.preset()):
        for seed, run in enumerate(chosen.final(cell.experiment)):
            finish(run, 50.0 - 10 * dict(cell.experiment.flags)["lr"] + seed * dict(cell.experiment.flags)["lr"])
    finish(run_of(tmp_path, seed=7), 50.0)  # no run of the study
    assert reproduce(["report", str(path), "--results_path", str(tmp_path)]) == 0
    folder = tmp_path / "reports" / "mine"
    page = (folder / "index.html").read_text()
    assert f"<h1>{ODD}</h1>" in unescape(page)
    assert ODD not in page
    texts = [page, *((folder / name).read_text() for name in ("report.md", "report.csv", "mine.tex"))]
    assert not re.search("paper|published|AdaB|κ", "".join(texts))
    assert len(list((folder / "runs").glob("*.html"))) == 9
    gains = page[page.index('<section id="mine-gains">') :]
    assert gains.count("95 % [") == 2
    assert 'class="best"' not in gains  # both are losses
    assert "**" not in (folder / "mine-gains.md").read_text()
