"""The pages of a report in headless Chromium, opened as files: sort, filter, search, cell → seed → run → curve."""

from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from scripts.reproduce import main as reproduce
from tests.scripts.records import finish_table8, write_log

HEAD = ".dt-scroll-head thead tr"  # of the table of all runs


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    """The report of Table 8 in miniature, with logs, beside the kept records."""
    results = tmp_path_factory.mktemp("results")
    losses = [{"event": "log", "step": step, "loss": 2.0 / step} for step in range(1, 50)]
    for run in finish_table8(results):
        write_log(run, *losses, {"event": "evaluation", "step": 50, "mean": {"class_il": 50.0, "task_il": 60.0}})
    assert reproduce(["report", "table8", "table4", "--preset", "smoke", "--results_path", str(results)]) == 0
    return results / "reports" / "smoke"


def wait(browser, condition):
    return WebDriverWait(browser, 20).until(condition)


def rows(browser) -> list[list[str]]:
    """The texts of the table of all runs, as far as they are on the page."""
    script = "return [...document.querySelectorAll('#runs tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    return browser.execute_script(script)


def column(browser, title: str) -> int:
    titles = browser.find_elements(By.CSS_SELECTOR, f"{HEAD}:first-child .dt-column-title")
    return [element.get_attribute("textContent") for element in titles].index(title)


@pytest.fixture
def table(pages, browser):
    browser.get(f"file://{pages}/runs.html")
    wait(browser, lambda driver: len(rows(driver)) == 25)
    return browser


def test_search(table):
    table.find_element(By.CSS_SELECTOR, ".dt-search input").send_keys("joint seq-digits")
    wait(table, lambda driver: len(rows(driver)) == 3)
    assert {row[column(table, "method")] for row in rows(table)} == {"joint"}


def test_filter_by_number_and_by_text(table):
    wanted = {"data set": "seq-cifar100", "seed": "2"}
    fields = table.find_elements(By.CSS_SELECTOR, f"{HEAD}:nth-child(2) > *")
    for title, text in wanted.items():
        fields[column(table, title)].find_element(By.TAG_NAME, "input").send_keys(text)
    places = [column(table, title) for title in wanted]
    wait(table, lambda driver: {tuple(row[i] for i in places) for row in rows(driver)} == {tuple(wanted.values())})


def test_sort_by_keyboard(table):
    number = column(table, "Class-IL, FAA")
    button = table.find_elements(By.CSS_SELECTOR, f"{HEAD}:first-child th")[number]
    button = button.find_element(By.CSS_SELECTOR, "button")
    values = []
    for _ in range(2):
        button.send_keys(Keys.ENTER)
        previous = values
        wait(table, lambda driver, previous=previous: [row[number] for row in rows(driver)] != previous)
        values = [row[number] for row in rows(table)]
    numbers = [float(value) for value in values if value]
    assert len(numbers) > 10
    assert numbers == sorted(numbers, reverse=True)


def test_from_a_cell_to_the_curve_of_its_run(pages, browser):
    browser.get(f"file://{pages}/index.html")
    cell = browser.find_element(By.CSS_SELECTOR, "#table8 td details")
    link = cell.find_element(By.CSS_SELECTOR, ".seeds a")
    assert not link.is_displayed()
    cell.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    value = wait(browser, lambda driver: link.is_displayed() and link.text)
    link.send_keys(Keys.ENTER)
    wait(browser, lambda driver: "/runs/" in driver.current_url)
    assert value in browser.find_element(By.ID, "results").text
    lines = "#curves .scatterlayer path.js-line"
    assert len(wait(browser, lambda driver: driver.find_elements(By.CSS_SELECTOR, lines))) == 3  # two settings, loss
    assert len(browser.find_elements(By.CSS_SELECTOR, "#matrix .heatmaplayer image")) == 2
    titles = [button.get_attribute("data-title") for button in browser.find_elements(By.CSS_SELECTOR, ".modebar-btn")]
    assert titles
    assert not any("Share" in title for title in titles)  # which would upload the chart
    drawn = "return document.querySelectorAll('#curves .chart')[1].data[0].x.length"
    assert browser.execute_script(drawn) == 49


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screens_in_both_schemes(pages, browser, scheme):
    """No page is wider than the screen, text differs from its ground, and no script reports an error."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    run = next(pages.glob("runs/joint-*.html")).name
    for page in ("index.html", "runs.html", f"runs/{run}"):
        browser.get(f"file://{pages}/{page}")
        wait(browser, lambda driver: driver.execute_script("return document.readyState") == "complete")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390, page
        ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
