"""`make test-docs`: the built documentation in headless Chromium, from a server on this machine."""

import functools
import http.server
import threading
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

PAGES = Path(__file__).resolve().parents[2] / "docs" / "_build" / "html"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def site():
    handler = functools.partial(QuietHandler, directory=PAGES)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def wait(browser, condition):
    return WebDriverWait(browser, 20).until(condition)


def background(browser):
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_search_finds_kappa(site, browser):
    browser.get(f"{site}/index.html")
    browser.find_element(By.CSS_SELECTOR, "input.sidebar-search").send_keys("kappa", Keys.ENTER)
    results = wait(browser, lambda driver: driver.find_elements(By.CSS_SELECTOR, "ul.search li a"))
    targets = [result.get_attribute("href") for result in results]
    assert any("/reference/" in target for target in targets)
    results[0].click()
    wait(browser, lambda driver: "search.html" not in driver.current_url)
    assert "kappa" in browser.find_element(By.TAG_NAME, "article").text.lower()


def test_every_page_is_reached_from_the_sidebar_and_loads_nothing_from_elsewhere(site, browser):
    browser.get(f"{site}/index.html")
    links = browser.find_elements(By.CSS_SELECTOR, ".sidebar-tree a.reference.internal")
    targets = [link.get_attribute("href") for link in links]
    assert len(targets) == len({*targets}) > 20
    links[0].click()
    wait(browser, lambda driver: driver.current_url == targets[0])
    browser.get_log("browser")
    for target in targets:
        browser.get(target)
        assert browser.find_element(By.CSS_SELECTOR, "article h1").text
        resources = browser.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
        assert [name for name in resources if not name.startswith(site)] == []
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_button_changes_between_light_and_dark(site, browser):
    browser.get(f"{site}/confounds.html")
    seen = {}
    for _ in range(3):
        theme = browser.execute_script("return document.body.dataset.theme")
        visible = [image for image in browser.find_elements(By.CSS_SELECTOR, "article img") if image.is_displayed()]
        seen[theme] = background(browser), [image.get_attribute("src").rsplit("/")[-1] for image in visible]
        browser.find_element(By.CSS_SELECTOR, ".content-icon-container .theme-toggle").click()
    assert seen["dark"][0] != seen["light"][0]
    assert seen["dark"][1] == ["confounds-dark.png"]
    assert seen["light"][1] == ["confounds.png"]


@pytest.mark.parametrize("page", ["index", "evidence", "reference/generated/flags", "reference/adab2n", "theory"])
def test_screens_of_phones_and_laptops_need_no_scrolling_to_the_side(site, browser, page):
    try:
        for width in (1920, 1536, 1366, 1100, 390):
            screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            browser.get(f"{site}/{page}.html")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        browser.find_element(By.CSS_SELECTOR, ".mobile-header label.nav-overlay-icon").click()
        wait(browser, lambda driver: driver.find_element(By.CSS_SELECTOR, "input.sidebar-search").is_displayed())
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
