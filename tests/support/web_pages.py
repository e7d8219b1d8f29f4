"""Opens written pages in Chromium, without a network, and runs their scripts in Node.js."""

import functools
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import threading

import pytest

from keras_tnattn_train.exports import pages

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(not NODE, reason="needs Node.js")


def in_node(folder, script, program, *data):
    """Runs a program with what a script of the page has; returns what it prints as JSON."""
    shutil.copyfile(pages._PAGE / script, folder / "page.mjs")
    (folder / "data.json").write_text(json.dumps(data), "utf-8")
    head = (
        "import * as page from './page.mjs'; import { readFileSync } from 'fs';"
        "const data = JSON.parse(readFileSync('data.json'));"
        "const { Pieces, decoded, unpackedModel, unpackedWords } = page;"
    )
    (folder / "run.mjs").write_text(head + program, "utf-8")
    options = {"capture_output": True, "encoding": "utf-8", "check": True}
    return json.loads(subprocess.run([NODE, "run.mjs"], cwd=folder, **options).stdout)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def runtime_of_pages():
    """Returns the folder of onnxruntime-web, or None for that of npm; skips a test without both."""
    runtime = os.environ.get("ONNXRUNTIME_WEB")
    if not (CHROMIUM and importlib.util.find_spec("playwright")):
        pytest.skip("needs chromium, and playwright of the extra dev")
    if not (runtime or shutil.which("npm")):
        pytest.skip("needs npm, which fetches onnxruntime-web")
    return runtime


def try_page(folder, program):
    """Opens the page of a folder, runs a program with it offline, and checks that it is alone."""
    from playwright.sync_api import sync_playwright

    handler = functools.partial(Quiet, directory=str(folder))
    problems, hosts = [], set()
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        context = browser.new_context()
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("request", lambda x: hosts.add(re.match(r"\w+://[^/]*", x.url).group()))
        page.goto(url)
        page.wait_for_selector("#classes li", timeout=240_000)
        context.set_offline(True)
        program(page)
        browser.close()
        server.shutdown()
    assert problems == []
    assert hosts == {url}
