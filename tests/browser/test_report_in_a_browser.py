"""Reports in a real browser without a network: nothing is fetched, and everything works."""

import contextlib
import dataclasses
import json
import os
import shutil
import time

import pandas as pd
import pytest
from fake_study import study_of

from bnrecon.reproduction.commands import run_study
from bnrecon.reproduction.experiment import Claim, Experiment
from bnrecon.reproduction.parts import Task
from bnrecon.reproduction.report.contents import gather
from bnrecon.reproduction.report.html import render
from bnrecon.reproduction.request import read
from bnrecon.studies import registry

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.process,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]
pytest.importorskip("itables")
pytest.importorskip("markdown_it")
webdriver = pytest.importorskip("selenium.webdriver")
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

HOSTILE = "</td><script>document.title='broken'</script><img src=x onerror=\"document.title='x'\">"
TABLE = "giannou2023-theorem1-0"
LIMIT = 120  # seconds, for a busy machine


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
        "--host-resolver-rules=MAP * ~NOTFOUND",  # no name resolves
    ):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory, shipped_outputs):
    """The shipped results of a paper, as a file."""
    study = registry.find("giannou2023")
    made = gather([(study, read("giannou2023", [f"outputs={shipped_outputs}"]))])
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_bytes(render(made))
    return path


@pytest.fixture
def page(browser, report):
    """The report in the browser, in its initial state."""
    return opened(browser, report)


def opened(browser, path):
    with contextlib.suppress(Exception):
        browser.execute_script("localStorage.clear()")
    resized(browser, 1280)
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.as_uri())
    until(lambda: browser.execute_script("return document.documentElement.dataset.tables"))
    return browser


def until(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def resized(browser, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(browser, scheme):
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def column(page, table, number):
    cells = page.find_elements(By.CSS_SELECTOR, f"#{table} tbody td:nth-child({number})")
    return [cell.get_attribute("textContent") for cell in cells]


def click(page, element):
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def background(page):
    colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(map(int, colour[4:-1].split(",")))


def test_nothing_is_fetched_and_the_console_stays_empty(page):
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert {url.partition(":")[0] for url in asked} <= {"file", "blob"}
    assert sum(url.startswith("file:") for url in asked) == 1
    entries = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    assert all(name.startswith("blob:") for name in page.execute_script(entries))


def test_page_refuses_requests_to_other_hosts(page):
    page.execute_script("window.refused = 0; fetch('https://example.org').catch(() => refused++)")
    until(lambda: page.execute_script("return refused"))
    assert "Content Security Policy" in "".join(e["message"] for e in page.get_log("browser"))


def test_numbers_are_sorted_as_numbers(page):
    heading = page.find_element(By.CSS_SELECTOR, f"#{TABLE} th:nth-child(6)")
    assert "error of the function" in heading.text
    before = [float(cell.split()[0]) for cell in column(page, TABLE, 6)]
    for direction in ("ascending", "descending"):
        click(page, heading)
        until(lambda wanted=direction: heading.get_attribute("aria-sort") == wanted)
        shown = [float(cell.split()[0]) for cell in column(page, TABLE, 6)]
        assert shown == sorted(before, reverse=direction == "descending")
    as_text = sorted(map(str, before))
    assert as_text != [str(number) for number in sorted(before)]  # the orders differ


def test_words_among_numbers_come_last_in_either_order(browser, tmp_path):
    words = pd.DataFrame({"loss": ["10.5", "not run", "9.1", "1e-3"]})
    page = opened(browser, made_report(tmp_path, words))
    heading = page.find_element(By.CSS_SELECTOR, "#paper-part-0 th")
    for wanted in (["1e-3", "9.1", "10.5", "not run"], ["10.5", "9.1", "1e-3", "not run"]):
        click(page, heading)
        until(lambda order=wanted: column(page, "paper-part-0", 1) == order)


def test_table_is_searched(page):
    field = page.find_element(By.CSS_SELECTOR, f"input[aria-controls='{TABLE}']")
    rows = len(column(page, TABLE, 1))
    click(page, field)
    field.send_keys("4096")
    until(lambda: len(column(page, TABLE, 1)) < rows)
    assert set(column(page, TABLE, 3)) == {"4096"}
    info = page.find_element(By.ID, f"{TABLE}_info").text
    assert info == f"{len(column(page, TABLE, 1))} of {rows} rows"


def test_claims_are_filtered_by_verdict(page):
    verdicts = column(page, "claims", 3)
    box = page.find_element(By.CSS_SELECTOR, ".filters input[value='confirmed']")
    click(page, box)
    assert [v.strip() for v in column(page, "claims", 3)] == [
        v.strip() for v in verdicts if v.strip() != "confirmed"
    ]
    click(page, box)
    assert len(column(page, "claims", 3)) == len(verdicts)


def test_claims_are_filtered_by_paper(browser, tmp_path):
    first = study_of(part=part(pd.DataFrame({"n": [1]})))
    second = dataclasses.replace(first, name="other", paper="Another paper")
    page = opened(browser, written(tmp_path, [first, second]))
    assert len(column(page, "claims", 1)) == 2
    choice = page.find_element(By.CSS_SELECTOR, "select[name=paper]")
    choice.send_keys("Another paper (1)")
    until(lambda: len(column(page, "claims", 1)) == 1)
    assert "Another paper" in column(page, "claims", 1)[0]


def test_command_is_copied(page):
    grant = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.execute_cdp_cmd("Browser.grantPermissions", grant)
    button = page.find_element(By.CSS_SELECTOR, ".part button.copy")
    expected = button.find_element(By.XPATH, "../code").text
    click(page, button)
    until(lambda: button.text == "Copied")
    read = "navigator.clipboard.readText().then(arguments[0], (e) => arguments[0](String(e)))"
    assert page.execute_async_script(read) == expected
    assert page.find_element(By.CSS_SELECTOR, ".said").text == "Copied"


def test_command_is_selected_if_the_clipboard_is_refused(page):
    page.execute_script("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))")
    button = page.find_element(By.CSS_SELECTOR, ".part button.copy")
    click(page, button)
    until(lambda: button.text in ("Copied", "Press Ctrl+C"))
    selected = page.execute_script("return getSelection().toString()")
    assert selected.startswith("bnrecon study giannou2023 ")


def test_keyboard_reaches_the_content_and_sorts(page):
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    focused = page.switch_to.active_element
    assert focused.text == "Skip to the content"
    assert focused.is_displayed()
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.execute_script(outline) == "solid"
    focused.send_keys(Keys.ENTER)
    assert page.switch_to.active_element.get_attribute("id") == "content"
    sorter = page.find_element(By.CSS_SELECTOR, f"#{TABLE} th:nth-child(6) [tabindex='0']")
    sorter.send_keys(Keys.ENTER)
    heading = page.find_element(By.CSS_SELECTOR, f"#{TABLE} th:nth-child(6)")
    until(lambda: heading.get_attribute("aria-sort") == "ascending")


def test_dark_mode_follows_the_system_and_the_button(page):
    prefer(page, "light")
    light = background(page)
    prefer(page, "dark")
    dark = background(page)
    assert dark < 150 < 600 < light
    button = page.find_element(By.ID, "theme")
    assert button.get_attribute("aria-label") == "Use light colours"
    button.click()
    assert background(page) == light
    prefer(page, "light")


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_page_never_scrolls_sideways(page, width):
    resized(page, width)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    contents = page.find_element(By.ID, "toc")
    until(lambda: (contents.get_attribute("open") is None) == (width < 500))


def test_report_is_complete_without_scripts(browser, report):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(report.as_uri())
        rows = browser.find_elements(By.CSS_SELECTOR, f"#{TABLE} tbody tr")
        assert len(rows) == 20
        assert rows[0].is_displayed()
        assert not browser.find_element(By.CSS_SELECTOR, "button.copy").is_displayed()
        assert not browser.find_element(By.CSS_SELECTOR, ".filters").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_hostile_name_runs_nothing(browser, tmp_path):
    page = opened(browser, made_report(tmp_path, pd.DataFrame({"class": [HOSTILE, "plain"]})))
    assert page.get_log("browser") == []
    assert page.title == "A paper: reproduction with bnrecon"
    assert column(page, "paper-part-0", 1) == [HOSTILE, "plain"]


def part(rows):
    return Experiment(
        "Figure 0",
        "Made up",
        lambda scale, options: [Task("only", lambda: rows, {})],
        lambda results: results,
        "A caption.",
        claims=lambda results: [Claim("Figure 0", "It holds.", "confirmed", "by construction")],
    )


def made_report(tmp_path, rows):
    return written(tmp_path, [study_of(part=part(rows))])


def written(tmp_path, studies):
    asked = [(study, read(study.name, ["scale=smoke", f"outputs={tmp_path}"])) for study in studies]
    for study, request in asked:
        run_study(study, request)
    path = tmp_path / "report.html"
    path.write_bytes(render(gather(asked)))
    return path
