"""Takes the screenshots of the server's page and of a search for the documentation.

    python -m keras_tnattn_serving saved_models --port 8501 &
    python docs/photograph_page.py http://127.0.0.1:8501 docstrings pt-en rule-110 digits

The arguments are the server's address and the names of a text classifier, a translator, a cellular
automaton and a classifier of digits. Without names the address is that of `make demo-search`:

    python -m http.server 8000 --directory runs/demo-search/page &
    python docs/photograph_page.py http://127.0.0.1:8000
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).parent / "pictures"


def classifier(page: Page) -> None:
    """Classifies a text and shows the attention."""
    page.fill("#text", "Fits the classifier to the training samples and returns the estimator.")
    page.click("button.main")
    page.click("[aria-expanded=false]")
    page.wait_for_selector("table.heat")


def translator(page: Page) -> None:
    """Translates an example by a beam."""
    page.fill("#text", "terça-feira, 17 de dezembro de 1963")
    page.check("input[value=n_best]")
    page.click("button.main")
    page.wait_for_selector("table.heat")


def rule(page: Page) -> None:
    """Continues a random row."""
    page.click("text=Random row")
    page.click("button.main")
    page.wait_for_selector("figure")


def digits(page: Page) -> None:
    """Draws a seven."""
    box = page.locator("canvas.paper").bounding_box()
    points = [(0.25, 0.15), (0.72, 0.15), (0.55, 0.5), (0.42, 0.88)]
    for i, (x, y) in enumerate(points):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=8)
        if i == 0:
            page.mouse.down()
    page.mouse.up()
    page.wait_for_selector(".bars")


def search(page: Page, url: str) -> None:
    """Searches in a narrow page, which the gallery shows without making it smaller."""
    page.set_viewport_size({"width": 480, "height": 560})
    page.goto(url)
    page.fill("textarea", "how many elements are there")
    page.wait_for_selector("meter")
    page.screenshot(path=PICTURES / "page_search.png")


def main() -> None:
    """Takes the pictures."""
    url, *names = sys.argv[1:]
    scenes = (classifier, translator, rule, digits)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        if not names:
            search(browser.new_page(), url)
        for name, scene in zip(names, scenes, strict=False):
            scheme = "dark" if scene is translator else "light"
            page = browser.new_page(viewport={"width": 900, "height": 700}, color_scheme=scheme)
            page.goto(f"{url}/#{name}")
            page.wait_for_selector("#try button.main")
            scene(page)
            page.wait_for_timeout(500)
            page.locator("#try").screenshot(path=PICTURES / f"page_{scene.__name__}.png")
        browser.close()


if __name__ == "__main__":
    main()
