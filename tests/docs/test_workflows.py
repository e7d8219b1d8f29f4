"""The workflows, which run elsewhere, name targets and scripts that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_workflows_run_what_exists():
    text = "\n".join(path.read_text("utf-8") for path in WORKFLOWS)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    listed = re.search(r"target: \[(.+)\]", text)[1].split(", ")
    targets = {*listed, *re.findall(r"run: make ([\w-]+)", text)}
    assert len(targets) > 5
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.M)] == []
    assert {path for path in re.findall(r"\.ci/\w+", text) if not (ROOT / path).exists()} == set()


def test_every_release_runs_the_slow_tests_and_three_pythons():
    release = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    assert "test-slow" in release
    for path in WORKFLOWS:
        assert len(set(re.findall(r'"(3\.\d+)"', path.read_text("utf-8")))) >= 3
