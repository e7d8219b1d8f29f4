"""The page in a real browser: headless Chromium, driven by Playwright."""

import os
import re
import shutil

import pytest
from serving_models import page_models
from serving_servers import get, in_thread, post, wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@pytest.fixture(scope="module")
def url(tmp_path_factory, tales):
    folder = page_models(tmp_path_factory.mktemp("page"))
    shutil.copytree(tales, folder / "tales")
    with in_thread(folder) as (url, _):
        yield url


@pytest.fixture(scope="module")
def browser():
    if "BROWSER_REQUIRED" not in os.environ:
        pytest.importorskip("playwright", reason="needs playwright, of the extra dev")
        if not CHROMIUM:
            pytest.skip("needs chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, url):
    """A page that notes what went wrong and which hosts it asked."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(180_000)
    problems, hosts = [], set()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda request: hosts.add(re.match(r"\w+://[^/]*", request.url).group()))
    yield page
    context.close()
    assert hosts <= {url}
    # What the browser says of answers with an error is no problem.
    assert [x for x in problems if "the server responded with a status of" not in x] == []


def send(page, address, text):
    """Opens the page of a model, and sends a text."""
    page.goto(address)
    page.fill("#text", text)
    page.click("button.main")


def bars(page):
    """The labels and percentages shown."""
    page.wait_for_selector(".bars")
    return [tuple(item.inner_text().split("\n")) for item in page.locator(".bars li").all()]


def test_a_text_is_classified_and_explained(page, url):
    send(page, f"{url}/#pets", "The cat sat zzz")
    assert bars(page) == [("cat", "70.0 %"), ("dog", "20.0 %"), ("<b>çat</b>", "10.0 %")]
    page.wait_for_selector(".words span")
    words = page.locator(".words span")
    assert words.all_inner_texts() == ["the", "cat", "sat", "zzz"]
    shades = [w.evaluate("e => getComputedStyle(e).backgroundColor") for w in words.all()]
    assert shades[0] != shades[1] == shades[2]
    assert page.locator(".words .unknown").all_inner_texts() == ["zzz"]
    page.click("text=Show the attention's graph")
    assert page.locator("table.heat td[title]").count() == 16


def test_labels_come_before_the_attention_for_which_a_model_loads(page, url):
    asked = []

    def answer(route):
        if "explain" not in route.request.post_data:
            route.continue_()
            return
        asked.append(page.locator(".bars li").count() + page.locator(".waiting").count())
        if len(asked) < 3:  # what the server says while the SavedModel loads
            headers = {"Retry-After": "0.2"}
            route.fulfill(status=503, body='{"error": "still loading"}', headers=headers)
        else:
            route.continue_()

    page.route("**/v1/models/pets:predict", answer)
    send(page, f"{url}/#pets", "The cat sat")
    page.wait_for_selector(".words span")
    assert asked == [4, 4, 4]  # three labels, and what turns
    assert page.locator(".waiting").count() == 0
    assert page.text_content("#message") == ""
    page.unroute("**/v1/models/pets:predict")


def test_the_names_of_the_probabilities_are_in_the_metadata(url):
    metadata = get(f"{url}/v1/models/pets/metadata")[1]["metadata"]
    assert metadata["labels"] == ["cat", "dog", "<b>çat</b>"]
    assert set(get(f"{url}/v1/models/plain/metadata")[1]["metadata"]) == {"signature_def"}


@pytest.mark.parametrize("model", ["pets", "pt_en"])
def test_an_empty_text_is_not_computed(model, page, url):
    send(page, f"{url}/#{model}", " \n")
    page.wait_for_selector("#message:has-text('Write a text first.')")
    assert page.locator(".bars, .hypotheses li").count() == 0


def test_a_language_model_continues_a_prompt(page, url):
    pytest.importorskip("onnxruntime")
    page.goto(f"{url}/#tales")
    page.fill("#max_tokens", "12")
    page.fill("#temperature", "0")
    page.fill("#text", "cab")
    page.click("button.main")
    body = {"text_input": "cab", "parameters": {"max_tokens": 12}}
    text = post(f"{url}/v2/models/tales/generate", body)[1]["text_output"]
    wait_for(lambda: page.text_content("#output") == "cab" + text)
    assert "/v2/models/tales/generate" in page.inner_text("#curl")
    page.fill("#max_tokens", "")  # as many as the model still reads
    page.click("text=bad")  # an example
    wait_for(lambda: len(page.text_content("#output")) > len("bad ") + 12)
    page.fill("#text", "cat")
    page.click("button.main")
    wait_for(lambda: "Received: 't'" in page.text_content("#message"))


def test_examples_are_text_and_never_markup(page, url):
    page.goto(f"{url}/#pets")
    page.click("text=a dog <i>barked</i>")
    assert bars(page)[0] == ("dog", "80.0 %")
    assert page.input_value("#text") == "a dog <i>barked</i>"
    assert page.locator("#try i, #try b").count() == 0


def test_the_card_and_the_request_to_copy(page, url):
    page.goto(f"{url}/#pets")
    page.click("text=The cat sat")
    bars(page)
    card = page.locator("#card").inner_text()
    assert "fingerprint: 0f3a" in card
    assert "test accuracy: 0.8753" in card.splitlines()
    assert page.locator("#version").inner_text() == "version 1, classify"
    assert page.locator("#curl").inner_text() == (
        """curl -d '{"instances":["The cat sat"]}' """
        f"{url}/v1/models/pets:predict"
    )
    page.click("button[data-copies=python]")
    page.wait_for_selector("text=Copied")
    code = page.evaluate("navigator.clipboard.readText()")
    printed = []
    exec(code, {"print": printed.append})
    assert printed[0]["predictions"][0]["label"] == "cat"


def test_a_sentence_is_translated_greedily_and_by_a_beam(page, url):
    page.goto(f"{url}/#pt_en")
    page.fill("#text", "eu vi ☃")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("table.heat")
    assert page.locator("#output").inner_text() == "EU VI ☃"
    assert page.locator(".hypotheses li").count() == 1
    assert page.locator(".words .unknown").all_inner_texts() == ["☃"]
    cells = page.locator("table.heat td[title]")
    titles = [cell.get_attribute("title") for cell in cells.all()]
    assert [t for t in titles if t.endswith("1.000")] == [
        "EU ← eu: 1.000",
        "VI ← vi: 1.000",
        "☃ ← ☃: 1.000",
    ]
    page.check("input[value=n_best]")
    page.click("button.main")
    page.wait_for_selector(".hypotheses li:nth-child(2)")
    page.click(".hypotheses li:nth-child(2) button")
    assert page.locator("#output").inner_text() == "EU VI ☃!"
    assert "1.500" in page.locator(".hypotheses li:nth-child(2)").inner_text()


def test_a_joiner_is_shown_as_a_dot(page, url):
    send(page, f"{url}/#pt_en", "eu \uffedvi\uffed")
    page.wait_for_selector("table.heat")
    assert page.locator(".words span").all_inner_texts() == ["eu", "·vi·"]


def test_a_rule_is_continued_beside_the_network(page, url):
    page.goto(f"{url}/#rule-110")
    page.click("button.main")
    page.wait_for_selector("text=0 of 2,256 cells differ.")
    assert page.locator("figcaption").all_inner_texts()[0] == "Rule 110"
    assert page.locator("canvas").count() == 3
    # An empty row stays empty by the rule; the network sets a cell, which then grows.
    page.focus(".cells button >> nth=24")
    page.keyboard.press("Space")
    assert page.locator(".cells button[aria-pressed=true]").count() == 0
    page.click("button.main")
    page.wait_for_selector("#verdict:text-matches('^[1-9][0-9,]* of 2,256')")


def test_a_digit_is_drawn_with_the_mouse_and_with_the_keyboard(page, url):
    page.goto(f"{url}/#digits")
    box = page.locator("canvas.paper").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.8 * box["height"], steps=5)
    page.mouse.up()
    page.wait_for_selector("text=Label: 1")
    page.click("text=Clear")
    page.focus("canvas.paper")
    for key in ("ArrowRight", "ArrowRight", "Space"):
        page.keyboard.press(key)
    page.wait_for_selector("text=Label: 0")


def test_a_model_without_a_card_takes_json(page, url):
    page.goto(f"{url}/#plain")
    page.wait_for_selector("#try textarea")
    page.fill("#text", '{"x": 4}')
    page.click("button.main")
    page.wait_for_selector("#results:text-matches('^8')")
    page.fill("#text", "{")
    page.click("button.main")
    page.wait_for_selector("text=Expected one row of inputs as JSON.")


def test_errors_of_the_server_are_shown(page, url):
    page.goto(f"{url}/#pt_en")
    page.wait_for_selector("#text")
    page.evaluate("document.querySelector('#text').maxLength = 1000")
    page.fill("#text", "x" * 300)
    page.click("button.main")
    page.wait_for_selector("#message:has-text('Expected at most 200')")


def test_models_are_chosen_from_the_list(page, url):
    page.goto(url)
    page.wait_for_selector("#model option >> nth=0", state="attached")
    names = [m["name"] for m in get(f"{url}/v1/models")[1]["models"]]
    assert page.locator("#model option").all_inner_texts() == names
    page.select_option("#model", "rule-110")
    page.wait_for_selector(".cells")
    assert page.url.endswith("#rule-110")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone_in_both_schemes(browser, url, scheme):
    with browser.new_context(
        viewport={"width": 360, "height": 640}, color_scheme=scheme, has_touch=True
    ) as context:
        page = context.new_page()
        send(page, f"{url}/#pets", "the cat sat " * 20)
        page.wait_for_selector(".bars")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for name in ("curl", "python"):  # no line of the snippets is cut
            sizes = "e => [e.scrollWidth, e.clientWidth]"
            wide, shown = page.locator(f"#{name}").evaluate(sizes)
            assert wide <= shown
        channels = page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        )
        assert (sum(channels[:3]) > 384) == (scheme == "light")
