"""The player in a real browser, without a network: it plays, scrubs and says no error."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from film_cases import BLACK, CHANGING, SEEN, WHITE, WRITTEN

from warpdrive.drawing import PALETTE, Drawing, circles, formatted, one_of, outline, texts
from warpdrive.player import Film, player_html

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no Chromium, or no chromedriver, here")

SWITCHES = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=900,700"
)
EVIL = "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>"
PIXELS = """
const stage = document.getElementById("stage");
const data = stage.getContext("2d").getImageData(0, 0, stage.width, stage.height).data;
let sum = 0;
for (let i = 0; i < data.length; i += 4) sum = (sum * 31 + data[i] + 7 * data[i + 1] + 13 * data[i + 3]) % 1000003;
return sum;
"""

COLOURS = """
const stage = document.getElementById("stage"), scale = stage.width / 10;
const [left, bottom, right, top] = Array.from(arguments).map((edge) => Math.round(edge * scale));
const box = [left, stage.height - top, Math.max(1, right - left), Math.max(1, top - bottom)];
const data = stage.getContext("2d").getImageData(...box).data, found = new Set();
for (let i = 0; i < data.length; i += 4) {
  const dot = Array.from(data.slice(i, i + 4), (one) => one.toString(16).padStart(2, "0")).join("");
  found.add(data[i + 3] ? "#" + dot.replace(/ff$/, "") : "#ffffff");
}
return Array.from(found);
"""
"""Of a rectangle of 10 by 10 units, white where there is nothing."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in [*SWITCHES.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def film(num_frames: int = 60) -> Film:
    """Three agents on their way to the right, the last of which leaves the game half-way."""
    x = np.linspace(0, 9, num_frames)[:, np.newaxis] + np.zeros(3)
    active = np.ones((num_frames, 3), bool)
    active[num_frames // 2 :, 2] = False
    agents = circles(x, np.array([[2.0, 5.0, 8.0]]) + 0 * x, 0.5, group=EVIL, tail=True, active=active)
    drawing = Drawing([outline(0, 0, 10, 10), agents], (0, 0, 10, 10))
    return Film(drawing, {EVIL: 3}, {EVIL: np.arange(num_frames) / 2}, num_frames, "truncated")


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Callable[..., Any]:
    def show(*films: Film, hash: str = "") -> Any:
        path = tmp_path / "episode.html"
        path.write_text(player_html(films, EVIL), encoding="utf-8")
        browser.get("about:blank")
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # what was said before
        browser.get(path.as_uri() + hash)
        wait(browser, lambda: text(browser, "step"))
        return browser

    return show


def wait(browser: Any, until: Callable[[], Any]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20, poll_frequency=0.05).until(lambda _: until())


def text(browser: Any, name: str) -> str:
    return browser.find_element("id", name).text


def frame(browser: Any) -> int:
    return int(browser.execute_script("return document.getElementById('scrub').value"))


def scrub_to(browser: Any, step: int) -> None:
    browser.execute_script(
        "const scrub = document.getElementById('scrub'); scrub.value = arguments[0]; "
        "scrub.dispatchEvent(new Event('input'));",
        step,
    )


def click(browser: Any, name: str) -> None:
    browser.find_element("id", name).click()


def test_it_plays_by_itself_asks_for_nothing_says_no_error_and_stops_when_told(show):
    browser = show(film())
    wait(browser, lambda: frame(browser) >= 3)
    assert text(browser, "play") == "Pause"
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    said = [line["message"] for line in browser.get_log("performance")]
    sent = [message for message in said if "Network.requestWillBeSent" in message]
    assert sent and all("episode.html" in message for message in sent)
    click(browser, "play")
    stands = frame(browser)
    assert text(browser, "play") == "Play"
    assert browser.execute_async_script("setTimeout(arguments[0], 400, true)") and frame(browser) == stands


def test_scrubbing_moves_the_figures_and_the_picture_in_which_agents_stand_where_the_env_put_them(show):
    """At step 40 the first is at (6.1, 2), full; the last at (6.1, 8), hollow."""
    browser = show(film(), hash="#0")
    found = {}
    for step in (0, 20, 40, 59):
        scrub_to(browser, step)
        found[step] = browser.execute_script(PIXELS)
        assert text(browser, "step").startswith(f"step {step} of 59")
        assert browser.find_elements("css selector", "#groups tbody td")[1].text == f"{step / 2:.2f}"
    assert len(set(found.values())) == 4
    assert text(browser, "step").endswith("truncated")
    scrub_to(browser, 20)
    assert browser.execute_script(PIXELS) == found[20]
    scrub_to(browser, 40)
    x = 9 * 40 / 59
    for place, colour in (((x, 2), "#0072b2"), ((x, 8), WHITE), ((x + 1, 2), WHITE)):
        assert browser.execute_script(COLOURS, *place, *place) == [colour]


def test_colours_words_and_cells_change_as_told(show):
    browser = show(CHANGING, hash="#0")
    for frame, x, y, colour in SEEN:
        scrub_to(browser, frame)
        assert browser.execute_script(COLOURS, x, y, x, y) == [colour], (frame, x, y)
    for frame, left, bottom, right, top, ink, is_written in WRITTEN:
        scrub_to(browser, frame)
        found = browser.execute_script(COLOURS, left, bottom, right, top)
        assert (ink in found) == is_written and (is_written or found == [WHITE]), (frame, left)
    legend = [cell.text for cell in browser.find_elements("css selector", "#things td:first-child")]
    assert legend == ["wall", "door"]  # floor is not to be seen


def test_the_legend_rims_what_is_white(show):
    plate, wall = (circles([5.0], [5.0], 0.5, colour=colour, label="it") for colour in (WHITE, BLACK))
    browser = show(Film(Drawing([plate, wall], (0, 0, 10, 10)), {}, {}, 1), hash="#0")
    rims = "return [...document.querySelectorAll('#things i')].map((one) => one.style.borderColor)"
    assert browser.execute_script(rims) == ["rgb(138, 138, 138)", "rgb(0, 0, 0)"]


def test_keys_step_jump_and_change_the_speed(show):
    from selenium.webdriver.common.keys import Keys

    browser = show(film(), hash="#10")
    stage = browser.find_element("id", "stage")
    right, left = Keys.ARROW_RIGHT, Keys.ARROW_LEFT
    for key, step in [(right, 11), (left, 10), (Keys.END, 59), (right, 59), (Keys.HOME, 0), (left, 0)]:
        stage.send_keys(key)
        assert frame(browser) == step
    stage.send_keys("+")
    assert browser.execute_script("return document.getElementById('speed').value") == "2"
    stage.send_keys(" ")
    wait(browser, lambda: frame(browser) > 2)


def test_it_loops_only_if_told_to_and_episodes_can_be_chosen(show):
    browser = show(film(6), film(9), hash="#5")
    click(browser, "loop")
    click(browser, "play")  # from the end it starts anew
    wait(browser, lambda: text(browser, "play") == "Play")
    assert text(browser, "step").startswith("step 5 of 5")
    browser.find_element("css selector", "#episode option:nth-child(2)").click()
    assert text(browser, "step") == "step 0 of 8"


@pytest.mark.parametrize("wanders", [False, True])
def test_it_reads_itself_without_decompression_stream(show, browser, wanders):
    """The fallback shows the very same pixels."""
    shown = film()
    if wanders:
        x, y = np.random.default_rng(0).normal(size=(2, 400, 40)).cumsum(1)
        balls = circles(x, y, 1.0, group=EVIL, tail=True, colour=one_of(x > 0, PALETTE))
        shown = Film(Drawing([balls, texts(x, y, formatted(y, "{:.0f}"))]), {EVIL: 40}, {}, 400)
    show(shown, hash="#30")
    expected = browser.execute_script(PIXELS)
    script = {"source": "delete window.DecompressionStream"}
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    try:
        show(shown, hash="#30")
        assert browser.execute_script("return 'DecompressionStream' in window") is False
        assert browser.execute_script(PIXELS) == expected
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_names_are_shown_as_text_and_policy_stops_what_would_load_or_run(show):
    browser = show(film(), hash="#0")
    assert browser.title == EVIL and browser.find_element("tag name", "h1").text == EVIL
    assert browser.find_element("css selector", "#groups tbody td").text == f"{EVIL} \u00d7 3"
    assert not browser.find_elements("tag name", "img")
    refused = browser.execute_async_script("""
    const refused = [], answer = arguments[0];
    document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
    document.body.append(Object.assign(new Image(), { src: "file:///x.png" }));
    document.body.append(Object.assign(document.createElement("script"), { textContent: "window.broken = 1" }));
    fetch("file:///x").catch(() => {});
    setTimeout(() => answer(refused), 300);
    """)
    assert sorted(set(refused)) == ["connect-src", "img-src", "script-src-elem"]
    assert browser.execute_script("return window.broken") is None
