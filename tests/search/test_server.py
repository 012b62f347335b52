"""The page's requests, what they reject, and the page in a browser."""

import os
import re
import shutil
import subprocess
import sys
import time

import pytest
from starlette.testclient import TestClient

from revela.common.errors import RevelaError
from revela.search import server
from tests.conftest import TEXTS


@pytest.fixture
def client(index):
    return TestClient(server.make_app(index, ["localhost"]), "http://localhost")


def test_lists_side_by_side(client, index):
    response = client.get("/search", params={"query": "rivers", "depth": 3})
    lists = response.json()
    hybrid = f"BM25 + {index.labels[0]}, weight 0.5"
    assert [one["name"] for one in lists] == ["BM25", *index.labels, hybrid]
    assert [len(one["hits"]) for one in lists] == [1, 3, 3, 3]
    assert lists[0]["hits"][0]["text"] == TEXTS[2]
    assert lists[1]["hits"] == lists[2]["hits"]
    for weight in (0.0, 1.0):
        lists = client.get("/search", params={"query": "rivers", "weight": weight}).json()
        assert lists[-1]["hits"][0]["chunk"] == lists[int(weight)]["hits"][0]["chunk"]
    for parameters in ({}, {"model": 1}):
        near = client.get("/near", params={"chunk": 0, **parameters}).json()
        assert near == [index.row(hit) for hit in index.near(0, 10, **parameters)]


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/search?query=" + "x" * 1001, 422, "query: String should have at most 1000 characters"),
        ("/search?query=x&depth=51", 422, "depth: Input should be less than or equal to 50"),
        ("/near?chunk=6", 422, "chunk: Input should be less than 6"),
        ("/near?chunk=0&model=2", 422, "model: Input should be less than 2"),
        ("/%2e%2e/%2e%2e/etc/passwd", 404, "Not Found"),
    ],
)
def test_requests_that_are_refused(client, path, status, text):
    response = client.get(path)
    assert (response.status_code, response.text) == (status, text)


def test_only_what_calls_it_by_its_name_may_search(client):
    assert TestClient(client.app, "http://evil.example").get("/").status_code == 400
    assert client.post("/search", content="x").status_code == 405


def test_a_token_opens_the_page_and_its_requests(index):
    client = TestClient(server.make_app(index, ["*"], "secret"), "http://localhost")
    for path in ("/", "/search?query=x", "/?token=other"):
        assert client.get(path).status_code == 401
    page = client.get("/?token=secret")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    for path in re.findall(r'(?:src|href)="(page/.*?)"', page.text):
        assert client.get(path).status_code == 200
    assert client.get("/search?query=rivers").status_code == 200  # by its cookie


def test_anyone_may_search_with_a_token_only(index):
    with pytest.raises(RevelaError, match=r"--host 0\.0\.0\.0: .* set REVELA_TOKEN"):
        server.run(index, "0.0.0.0", 0, None)


@pytest.fixture
def address(index):
    """The address of `revela serve`."""
    command = [sys.executable, "-m", "revela", "serve", str(index.folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = (re.search(r"running on (http://\S+)", line) for line in process.stderr)
            yield next(line[1] for line in lines if line) + "/"
        finally:
            process.terminate()


@pytest.fixture
def browser():
    """A browser with one window; with `REVELA_BROWSER=required` a missing one is an error."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        if os.environ.get("REVELA_BROWSER") == "required":
            pytest.fail("chromium and chromedriver are missing")
        pytest.skip("needs chromium and chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for one in ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server"):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options, service)
    driver.set_window_size(1300, 900)
    yield driver
    driver.quit()


def test_the_page_in_a_browser(address, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def until(what):
        for _ in range(200):
            if found := what():
                return found
            time.sleep(0.05)
        raise AssertionError(browser.page_source)

    def all_of(selector):
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)"
        return browser.execute_script(script, selector)

    def ask(query):
        browser.find_element(By.ID, "query").clear()
        browser.find_element(By.ID, "query").send_keys(query + Keys.ENTER)

    browser.get(address)
    field = browser.switch_to.active_element  # no click is needed before typing
    assert field.get_attribute("id") == "query"
    field.send_keys("socket processes" + Keys.ENTER)
    titles = until(lambda: all_of("h2"))
    assert titles[0] == "BM25"
    assert titles[-1] == f"BM25 + {titles[1]}, weight 0.5"
    assert len(titles) == 4
    assert all_of("section:first-child mark") == ["socket", "processes"]

    # By keyboard: all counts in the hybrid, then the first hit, whose Enter shows similar chunks.
    field.send_keys(Keys.TAB, Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.END)
    until(lambda: all_of("h2")[-1] == f"BM25 + {titles[1]}, weight 1")
    assert all_of("section:last-child .text") == all_of("section:nth-child(2) .text")
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    until(lambda: all_of("h2") == ["This chunk", "Similar chunks, by BM25"])
    browser.back()

    ask("hostile")
    until(lambda: "hostile" in all_of("section:first-child mark"))
    assert "<script>document.title" in all_of("section:first-child .text")[0]
    assert browser.title == "Revela: search"
    assert not browser.find_elements(By.CSS_SELECTOR, "main script, main img")

    ask("   ")
    until(lambda: not all_of("section"))
    assert all_of("#state") == [""]

    browser.set_window_size(500, 800)  # the minimum width of the browser
    browser.get(address + "#rivers")
    until(lambda: len(all_of("h2")) == 4)
    browser.refresh()  # the query is in the address
    until(lambda: len(all_of("h2")) == 4)
    fits = "return document.documentElement.scrollWidth <= window.innerWidth"
    assert browser.execute_script(fits)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
