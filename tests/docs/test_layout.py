"""The built pages in Chromium: nothing runs off a phone, and no picture or formula is cut."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from web_pages import CHROMIUM, OPTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
WIDTHS = (360, 768, 1280)
HEIGHT = 800
# Returns what is wrong with a page, a line for each element. What scrolls by itself may be wide.
# One pixel is rounding.
FAULTS = """() => {
    const width = document.documentElement.clientWidth;
    const faults = [];
    const tell = (fault, e) => {
        const name = [e.tagName.toLowerCase(), ...e.classList].join(".");
        faults.push(`${fault}: ${name} ${e.textContent.trim().slice(0, 40)}`);
    };
    const scroll = (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
    const hides = (e) => ["hidden", "clip"].includes(getComputedStyle(e).overflowX);
    const seen = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    if (document.documentElement.scrollWidth > width + 1) tell("the page is wide", document.body);
    for (const e of document.querySelectorAll("body *")) {
        const box = e.getBoundingClientRect();
        if (!seen(e) || !box.width || !box.height || box.right <= 0) continue;
        const around = [];
        for (let p = e.parentElement; p; p = p.parentElement) around.push(p);
        const holder = around.find((p) => scroll(p) || hides(p));
        if (box.right > width + 1 && !(holder && scroll(holder))) tell("off the page", e);
    }
    for (const e of document.querySelectorAll(".formula, pre")) {
        if (seen(e) && e.scrollHeight > e.clientHeight + 1) tell("cut below", e);
    }
    for (const e of document.querySelectorAll("pre")) {
        if (getComputedStyle(e).whiteSpace !== "pre") tell("lines are wrapped", e);
    }
    for (const e of document.querySelectorAll("h1, h2, h3")) {
        if (seen(e) && e.scrollWidth > e.clientWidth + 1) tell("a title is cut", e);
    }
    for (const e of document.querySelectorAll("article code span.pre, article code.shape")) {
        // The lines of its texts: each begins below the middle of the one before.
        const lines = [];
        const texts = document.createTreeWalker(e, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            const range = document.createRange();
            range.selectNodeContents(texts.currentNode);
            lines.push(...range.getClientRects());
        }
        const broken = lines.some((line) => line.top > (lines[0].top + lines[0].bottom) / 2);
        const inside = (p) => getComputedStyle(p).display.startsWith("inline");
        let block = e.parentElement;
        while (inside(block)) block = block.parentElement;
        const needed = lines.reduce((sum, line) => sum + line.width, 0);
        // The frame of the code takes some room, too.
        if (seen(e) && broken && needed + 12 < block.clientWidth) tell("a name is broken", e);
    }
    for (const e of document.querySelectorAll(".formula")) {
        if (seen(e) && e.scrollWidth > e.clientWidth + 1) tell("a formula scrolls", e);
    }
    for (const e of document.querySelectorAll("article img")) {
        const box = e.getBoundingClientRect();
        const clip = (p) => scroll(p) || hides(p);
        if (!e.naturalWidth) tell("not loaded", e);
        if (getComputedStyle(e).objectFit === "cover") tell("cut at its sides", e);
        for (let p = e.parentElement; p; p = p.parentElement) {
            const around = p.getBoundingClientRect();
            if (clip(p) && box.right > around.right + 1) tell("cut at the right", e);
        }
    }
    return faults;
}"""


@pytest.fixture(scope="module")
def page():
    if not (CHROMIUM and importlib.util.find_spec("playwright")):
        pytest.skip("needs chromium, and playwright of the extra dev")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser.new_page()
        browser.close()


def faults(page, width):
    page.set_viewport_size({"width": width, "height": HEIGHT})
    return page.evaluate(FAULTS)


CODE = f'<code><span class="pre">{"-name" * 6}</span></code>'
WIDE = '<div style="width: 900px">wide</div>'
PICTURE = (
    '<img width="900" height="9" src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=">'
)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("<pre style='white-space: pre-wrap'>a</pre>", "lines are wrapped"),
        (f"<h1>{'keras_tnattn' * 5}</h1>", "a title is cut"),
        (f"<article><p>{'a ' * 20}{CODE}</p></article>", "a name is broken"),
        (f"<article><p>{CODE}</p></article>", None),
        (WIDE, "off the page"),
        (f'<div style="overflow-x: hidden">{WIDE}</div>', "off the page"),
        (f'<article style="overflow-x: auto">{PICTURE}</article>', "cut at the right"),
        ('<article><img src="data:,none"></article>', "not loaded"),
        ('<pre style="height: 9px; overflow: auto">a<br>b</pre>', "cut below"),
        (f'<div style="overflow-x: auto">{WIDE}</div>', None),
        (f'<div class="formula" style="overflow-x: auto">{WIDE}</div>', "a formula scrolls"),
        ("<p>A short page.</p>", None),
    ],
)
def test_faults_are_found(page, body, found):
    page.set_content(f"<!DOCTYPE html><html><body>{body}</body></html>")
    lines = faults(page, 360)
    assert bool(lines) == bool(found)
    assert found is None or any(line.startswith(found) for line in lines)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("html")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html"]
    subprocess.run([*command, str(DOCS), str(folder)], check=True)
    return folder


@pytest.mark.slow
def test_every_page_fits_a_phone_a_tablet_and_a_desk(page, built):
    # The pages of source code are Sphinx's own, and have no layout of ours.
    paths = [path for path in sorted(built.rglob("*.html")) if "_modules" not in path.parts]
    assert len(paths) > 100
    found = []
    for path in paths:
        page.goto(path.as_uri())
        for width in WIDTHS:
            name = path.relative_to(built)
            found += [f"{name} at {width} pixels: {line}" for line in faults(page, width)]
    assert not found, "\n".join(found)
