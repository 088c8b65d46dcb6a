"""The page in Chromium, with the keyboard alone: what a person sees, hears from a screen reader, and is told of faults.

Playwright comes from PyPI, Chromium from the system (`apt-get install chromium`): where one is missing this is skipped.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.main import main
from clients.recommender import Recommender
from deploy.launcher import RunningServer
from ensembles.served import served
from genrec.catalogue.items import Catalogue
from tests.cli.page import NOBODY, page_at

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.serving,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt-get install chromium"),
]
STEPS = {each.name: [step.model for step in each.steps] for each in served(3, draft=True, ranker=False)}
PATIENCE_MS = 60_000
EVIL = "<img src=x onerror=\"document.title='broken into'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # As root, in a container, Chromium's sandbox cannot start; the page is ours.
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(traced: RunningServer, shop: Path) -> Iterator[str]:
    with page_at(shop, str(traced.run_dir / "server.json")) as url:
        yield url


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    yield from opened(browser, address)


def opened(browser: Any, address: str) -> Iterator[Any]:
    """A tab on the page; it asked nobody else for anything, and its script broke nowhere."""
    tab = browser.new_page(viewport={"width": 1360, "height": 900})
    tab.set_default_timeout(PATIENCE_MS)
    asked, broken = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("pageerror", lambda error: broken.append(str(error)))
    tab.goto(address)
    tab.wait_for_function("() => document.getElementById('about').textContent !== ''")
    yield tab
    assert not broken
    assert asked and all(url.startswith((address, "data:")) for url in asked)
    tab.close()


def said(tab: Any, text: str) -> str:
    """What the page announces, once it has `text` in it."""
    tab.wait_for_function("text => document.getElementById('status').textContent.includes(text)", arg=text)
    return str(tab.text_content("#status"))


def focused(tab: Any) -> str:
    return str(tab.evaluate("document.activeElement.id"))


def test_a_person_with_a_keyboard_gets_recommendations(
    page: Any, traced: RunningServer, items: list[int]
) -> None:
    for _ in range(20):  # to the first field, from the top
        page.keyboard.press("Tab")
        if focused(page) == "user":
            break
    page.keyboard.type("20")
    page.keyboard.press("Enter")
    said(page, "User 20: 5 items")
    for field in ("load", "any", "title"):
        page.keyboard.press("Tab")
        assert focused(page) == field
    page.keyboard.type(f"item {items[0]}")
    said(page, "1 title found")
    assert page.get_attribute("#title", "aria-expanded") == "true"
    assert (
        page.text_content(f"#{page.get_attribute('#title', 'aria-activedescendant')}") == f"item {items[0]}"
    )
    page.keyboard.press("Enter")
    said(page, f"item {items[0]} added")
    assert page.get_attribute("#title", "aria-expanded") == "false"
    page.focus("#send")
    page.keyboard.press("Enter")
    said(page, "Beam search: 10 items in")

    history = [*items[4:9], items[0]]
    for decoder, ensemble in (("beam", "recommend"), ("draft", "recommend_draft")):
        with Recommender(traced.grpc_url, model=ensemble) as recommender:
            answer = recommender.recommend(history, 10, exclude_history=True)
        card = page.locator(f"[data-decoder={decoder}]")
        rows = card.locator("[data-item]")
        assert [int(row.get_attribute("data-item")) for row in rows.all()] == answer.item_ids.tolist()
        scores = [float(cell) for cell in card.locator("td.score").all_text_contents()]
        assert np.allclose(scores, answer.scores, atol=1e-3)
        card.locator("[data-span=validity_lookup]").wait_for()
        spans = [row.get_attribute("data-span") for row in card.locator("[data-span]").all()]
        assert [span for span in spans if span in STEPS[ensemble]] == STEPS[ensemble]
    page.wait_for_function("() => /^[0-9.]+$/.test(document.getElementById('rate').textContent)")
    assert re.fullmatch(r"[0-9.]+ ms", page.text_content("#p99"))


def test_every_control_has_a_name_and_the_focus_goes_down_the_page(page: Any) -> None:
    names = page.evaluate(
        "[...document.querySelectorAll('input, button, [tabindex]')].map(e => (e.labels && e.labels.length ?"
        " e.labels[0].textContent : e.getAttribute('aria-label') || e.textContent).trim())"
    )
    assert all(names)
    assert page.get_attribute("#status", "aria-live") == "polite"
    order = []
    for _ in range(9):
        page.keyboard.press("Tab")
        order.append(focused(page))
    assert order == page.evaluate(
        "[...document.querySelectorAll('input, button, [tabindex]')].map(e => e.id).slice(0, 9)"
    )


@pytest.mark.parametrize(
    ("field", "value", "words"),
    (
        ("top_k", "1000", "top_k: is 1000 (accepted: 1 to 32"),
        ("top_k", "many", "top_k: is 'many' (accepted: a whole number)"),
        ("deadline_ms", "0", "deadline_ms: is 0 (accepted: 1 to 600000"),
    ),
)
def test_bad_input_is_told_at_its_field(page: Any, field: str, value: str, words: str) -> None:
    page.fill(f"#{field}", value)
    page.press(f"#{field}", "Enter")
    said(page, words)
    assert focused(page) == field
    assert page.get_attribute(f"#{field}", "aria-invalid") == "true"
    page.fill(f"#{field}", "9" if field == "top_k" else "")
    page.press(f"#{field}", "Enter")
    said(page, "Beam search: ")
    assert page.get_attribute(f"#{field}", "aria-invalid") is None


def test_a_deadline_that_passes_is_told(page: Any) -> None:
    page.fill("#user", "40")
    page.press("#user", "Enter")
    said(page, "User 40")
    page.fill("#deadline_ms", "1")
    for _ in range(20):  # now and then 1 ms suffices
        page.click("#send")
        page.wait_for_selector("[data-decoder=beam]")
        if "The deadline passed: deadline_ms: " in page.text_content("[data-decoder=beam]"):
            break
    else:
        pytest.fail("20 requests were answered within 1 ms")


def test_a_user_and_a_title_that_are_not_there(page: Any) -> None:
    page.fill("#user", "5")
    page.press("#user", "Enter")
    said(page, "user: 5 is not in the data (accepted: one of 4 users")
    assert focused(page) == "user"
    page.fill("#title", "no such title")
    said(page, "No title has this")
    page.press("#title", "Enter")  # adds nothing, sends nothing
    assert page.locator("#history li").count() == 0
    page.press("#title", "Escape")
    assert page.get_attribute("#title", "aria-expanded") == "false"


def test_items_are_taken_away_with_the_keyboard(page: Any) -> None:
    page.fill("#user", "30")
    page.press("#user", "Enter")
    said(page, "User 30: 3 items")
    page.focus("#history li:nth-child(2) button")
    page.keyboard.press("Enter")
    assert page.locator("#history li").count() == 2
    assert page.evaluate("document.activeElement.tagName") == "BUTTON"
    page.focus("#clear")
    page.keyboard.press("Enter")
    assert page.locator("#history li").count() == 0
    page.click("#send")
    said(page, "Beam search: 10 items in")
    assert "answered by popularity" in page.text_content("[data-decoder=beam] .note >> nth=1")


def test_a_server_away_is_told(browser: Any, shop: Path) -> None:
    with page_at(shop, NOBODY) as address:
        for tab in opened(browser, address):
            tab.click("#send")
            said(tab, "No server answers")
            assert tab.locator(".error").count() == 2
            assert tab.get_attribute("#send", "disabled") is None


def test_a_page_whose_server_ended_says_so(browser: Any, shop: Path) -> None:
    tab = browser.new_page()
    tab.set_default_timeout(PATIENCE_MS)
    with page_at(shop, NOBODY) as address:
        tab.goto(address)
        tab.wait_for_function("() => document.getElementById('about').textContent !== ''")
    tab.click("#send")
    said(tab, "start `genrec web` again")
    tab.close()


def test_titles_are_text(browser: Any, shop: Path, tmp_path: Path) -> None:
    artifact = shutil.copytree(shop, tmp_path / "artifact")
    catalogue = Catalogue.load(artifact / "catalogue.parquet")
    titles = [EVIL, *[""] * (len(catalogue) - 1)]
    Catalogue(catalogue.item_ids, catalogue.codes, titles, catalogue.popularity).save(
        artifact / "catalogue.parquet"
    )
    with page_at(artifact, NOBODY) as address:
        for tab in opened(browser, address):
            tab.fill("#title", "<img")
            said(tab, "1 title found")
            tab.press("#title", "Enter")
            assert EVIL in tab.text_content("#history")
            tab.fill("#title", str(catalogue.item_ids[7]))  # no title: by its id
            said(tab, "1 title found")
            tab.press("#title", "Enter")
            assert f"item {catalogue.item_ids[7]}" in tab.text_content("#history")
            assert tab.locator("img").count() == 0 and tab.title() == "genrec: try it"


def test_groups_are_asked_for_where_there_are_any(
    browser: Any, traced: RunningServer, shop: Path, tmp_path: Path
) -> None:
    """The server is one of the artifact before it had groups: what it refuses is told at the field."""
    artifact, file = shutil.copytree(shop, tmp_path / "artifact"), tmp_path / "groups.csv"
    items = Catalogue.load(artifact / "catalogue.parquet").item_ids
    file.write_text(f"item,group\n{items[0]},sale\n{items[1]},new\n")
    with page_at(artifact, traced.http_url) as address:
        for tab in opened(browser, address):
            assert not tab.is_visible("#only_groups")
    assert main(["catalogue", "group", str(artifact), str(file)]) == 0
    assert main(["catalogue", "swap", str(artifact)]) == 0
    with page_at(artifact, traced.http_url) as address:
        for tab in opened(browser, address):
            assert tab.get_attribute("#only_groups", "placeholder") == "names, as new,sale"
            tab.fill("#only_groups", "sale, new")
            tab.press("#only_groups", "Enter")
            said(tab, "only_groups: names ")
            assert focused(tab) == "only_groups"
            tab.fill("#only_groups", "")
            tab.press("#only_groups", "Enter")
            said(tab, "Beam search: ")
