"""Opens written pages in Chromium, without a network."""

import functools
import http.server
import importlib.util
import os
import re
import shutil
import threading

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")


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
