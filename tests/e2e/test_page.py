"""The page in a browser, with a small trained model behind it. Needs Playwright and a Chromium."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clone import ROOT
from tests.serving import encoded, picture, running, told
from tests.steps import tiny_params, tokenised

pytestmark = pytest.mark.slow
tools = pytest.importorskip("playwright.sync_api", reason="no Playwright (pip install 'procap[browser]')")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)
AXE = os.environ.get("PROCAP_AXE")
"""axe.min.js of the npm package axe-core, for the accessibility test."""
SHOTS = os.environ.get("PROCAP_SCREENSHOTS")
"""A folder for screenshots."""
PATIENCE = 60_000


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """A tiny ProCap, trained for a few updates."""
    from procap.steps import caption, pretrain

    data = tmp_path_factory.mktemp("trained")
    params = tiny_params()
    tokenised(data, params)
    pretrain.run(params, data)
    caption.run(params, data, captioner="procap")
    return data / "caption" / "procap" / "bundle"


@pytest.fixture(scope="module")
def address(request) -> Iterator[str]:
    """Where ``procap serve`` answers: with the tiny model, or with the bundle $PROCAP_BUNDLE."""
    from flows.process import end_family

    bundle = os.environ.get("PROCAP_BUNDLE") or request.getfixturevalue("bundle")
    command = [sys.executable, "-m", "flows.cli", "serve", "--model", str(bundle), "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process.stdout.readline().split()[0]
    finally:
        end_family(process)
    assert process.wait(30) == 0, "it ends well when it is told to"


@pytest.fixture(scope="module")
def browser():
    with tools.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


SIZES = {"screen": (1280, 900), "phone": (390, 844)}
both = pytest.mark.parametrize("page", SIZES, indirect=True)


@pytest.fixture
def page(request, browser, address) -> Iterator:
    """The page on a screen or a phone; fails for an error in it or a request to elsewhere."""
    width, height = SIZES[getattr(request, "param", "screen")]
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    own = address, "blob:", "data:"
    page.on("request", lambda asked: None if asked.url.startswith(own) else complaints.append(asked.url))
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    yield page
    context.close()
    assert not [text for text in complaints if "status of 422" not in text]


@pytest.fixture
def pictures(tmp_path) -> list[str]:
    """A red and a blue square on gray."""
    paths = []
    for name, colour in (("before.png", (200, 30, 30)), ("after.png", (30, 30, 200))):
        image = picture((128, 128, 128), (96, 72))
        image.paste(colour, (30, 20, 60, 50))
        (tmp_path / name).write_bytes(encoded(image))
        paths.append(str(tmp_path / name))
    return paths


def give(page, pictures) -> None:
    for end, path in zip(("before", "after"), pictures, strict=True):
        page.locator(f"#{end}").set_input_files(path)
    page.locator("#answer").wait_for()


def shoot(page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}-{page.viewport_size['width']}.png"), full_page=True)


def darkness(page, end: str) -> float:
    """How much of a picture the spotlight darkens, in [0, 1]."""
    return page.evaluate(
        """(end) => {
            const canvas = document.querySelector(`[data-end=${end}] canvas.look`);
            if (!canvas.width || getComputedStyle(canvas).opacity === "0") return 0;
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return data.reduce((sum, value, place) => sum + (place % 4 === 3 ? value : 0), 0) / 255 / (data.length / 4);
        }""",
        end,
    )


@both
def test_two_files_become_a_sentence_and_what_was_imagined(page, pictures):
    give(page, pictures)
    sentence = page.locator("#sentence").inner_text()
    assert len(sentence.split()) >= 1
    assert page.locator("#status").inner_text().startswith("Answer:")
    assert page.locator("#strip li").count() == 4
    assert page.locator("#facts").inner_text().count("ms") == 3
    assert page.locator("#model").inner_text().startswith("model: procap, ")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off at the side"
    shoot(page, "files")


def test_a_word_lights_up_where_the_model_looked(page, pictures):
    give(page, pictures)
    word = page.locator(".word").first
    assert darkness(page, "before") == darkness(page, "after") == 0
    word.hover()
    assert darkness(page, "before") > 0.05
    assert darkness(page, "after") > 0.05
    shares = page.eval_on_selector_all("#strip i", "bars => bars.map(bar => +bar.style.getPropertyValue('--share'))")
    assert abs(sum(shares) - 1) < 0.01
    page.mouse.move(0, 0)
    assert darkness(page, "before") == 0
    word.focus()
    assert darkness(page, "before") > 0.05
    page.keyboard.press("Enter")
    assert word.get_attribute("aria-pressed") == "true"
    page.keyboard.press("Escape")
    assert word.get_attribute("aria-pressed") == "false"


def test_the_slider_and_the_strip_turn_the_frames(page, pictures):
    give(page, pictures)
    slider, frame = page.locator("#time"), page.locator("#frame")
    shown = []
    slider.focus()
    page.keyboard.press("Home")
    for name in ("before", "imagined 1", "imagined 2", "after"):
        assert slider.get_attribute("aria-valuetext") == name
        assert page.locator("#frame-name").inner_text().lower() == name
        shown.append(frame.get_attribute("src"))
        page.keyboard.press("ArrowRight")
    assert len(set(shown)) >= 3
    page.locator("#strip button").nth(0).click()
    assert frame.get_attribute("src") == shown[0]
    assert slider.input_value() == "0"
    page.locator("#play").click()
    while slider.input_value() == "0":
        page.wait_for_timeout(50)
    page.locator("#play").click()
    assert page.locator("#play").get_attribute("aria-pressed") == "false"


def test_the_change_map_lies_over_the_pictures(page, pictures):
    give(page, pictures)

    def opacity() -> float:
        return float(page.eval_on_selector("[data-end=after] canvas.change", "map => getComputedStyle(map).opacity"))

    assert opacity() == 0
    page.locator("#show-change").check()
    assert opacity() == pytest.approx(0.7)
    page.locator("#strength").fill("25")
    assert opacity() == pytest.approx(0.25)


def test_a_text_file_is_refused_with_a_reason(page, pictures, tmp_path):
    (tmp_path / "notes.txt").write_text("no picture")
    page.locator("#before").set_input_files(str(tmp_path / "notes.txt"))
    page.get_by_role("alert").filter(has_text="notes.txt is no picture").wait_for()
    assert "do: choose another file" in page.get_by_role("alert").inner_text()
    give(page, pictures)
    assert page.get_by_role("alert").is_hidden()


def test_what_the_service_refuses_is_shown(page, pictures, tmp_path):
    page.locator("#before").set_input_files(pictures[0])
    (tmp_path / "cut.png").write_bytes(Path(pictures[1]).read_bytes()[:120])
    page.locator("#after").set_input_files(str(tmp_path / "cut.png"))
    page.get_by_role("alert").filter(has_text="damaged or cut short").wait_for()
    assert "where: pairs[0], after" in page.get_by_role("alert").inner_text()
    shoot(page, "refused")


@both
def test_an_example_is_described_by_keyboard_alone(page):
    first = page.locator("#examples button").first
    first.wait_for()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#examples') !== null"):
            break
    page.keyboard.press("Enter")
    page.locator("#answer").wait_for()
    assert first.get_attribute("aria-pressed") == "true"
    assert re.match(r"What was drawn: .+\.", page.locator("#truth").inner_text())
    page.locator("#show-change").check()
    shoot(page, "example")
    page.emulate_media(color_scheme="dark")
    page.locator(".word").last.hover()
    shoot(page, "dark")


def test_with_a_token_the_page_asks_for_it_and_shows_the_card(browser, pictures):
    with running(told(token="a-token-that-nobody-guesses", hosts=None)) as service:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(service.address)
        page.get_by_role("alert").filter(has_text="no token").wait_for()
        page.get_by_label("This service needs a token").fill("a-token-that-nobody-guesses")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="procap, version 1").click()
        page.get_by_role("dialog").get_by_text("# teller").wait_for()
        page.keyboard.press("Escape")
        give(page, pictures)
        assert page.locator("#sentence").inner_text().startswith("teller:")
        page.locator("#show-mask").check()
        assert page.eval_on_selector("[data-end=after] canvas.mask", "mask => mask.width") > 0
        page.close()


@both
@pytest.mark.skipif(AXE is None, reason="PROCAP_AXE names no axe.min.js (npm pack axe-core)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, pictures, scheme):
    page.emulate_media(color_scheme=scheme)
    source = Path(str(AXE)).read_text()
    page.evaluate(source)
    found = page.evaluate("axe.run()")["violations"]
    give(page, pictures)
    found += page.evaluate("axe.run()")["violations"]
    told = [(one["id"], one["impact"], [node["html"] for node in one["nodes"]]) for one in found]
    assert not [one for one in told if one[1] in ("serious", "critical")], told
