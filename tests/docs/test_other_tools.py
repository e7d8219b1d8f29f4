"""The page on other tools: MLflow's blocks, the container's instructions, the signatures."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from import_path import run_python

from keras_tnattn_runtime.saved_model import read_metadata

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/guides/other_tools.md").read_text("utf-8")
LOG, LOAD, CODED = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
DATA = """
import numpy as np
inputs = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
"""
MODEL = """
import keras
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64), keras.layers.Dense(3)])
"""


def test_mlflow_logs_and_loads_a_small_model_in_a_new_process(tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("constriction")
    keep = "np.save('outputs.npy', small.predict(inputs))\n"
    compare = "np.testing.assert_allclose(outputs, np.load('outputs.npy'), atol=1e-5)\n"
    (tmp_path / "log.py").write_text(DATA + MODEL + LOG + CODED + keep)
    (tmp_path / "load.py").write_text(DATA + LOAD + compare)
    coded = LOAD.replace("import keras_small  # registers the layers\n", "")
    (tmp_path / "load_coded.py").write_text(DATA + coded.replace("/small/", "/coded/") + compare)
    for script in ("log.py", "load.py", "load_coded.py"):
        run_python(script, cwd=tmp_path)


def test_the_blocks_for_mlflow_use_what_exists():
    """Names of ours; `test_names.py` compares the arguments of `compress`."""
    import keras_small

    result = keras_small.compress(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), 1, verbose=0
    )
    owners = {"keras_small": keras_small, "result": result, "small": result.model}
    used = set()
    for node in ast.walk(ast.parse(LOG + LOAD + CODED)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add((node.value.id, node.attr))
    ours = {pair for pair in used if pair[0] in owners}
    assert {("keras_small", "compress"), ("keras_small", "load"), ("result", "save")} <= ours
    assert [pair for pair in ours if not hasattr(owners[pair[0]], pair[1])] == []


def instructions():
    """Returns the instructions of the Dockerfile: pairs of a word and its arguments."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def arguments(word):
    return [value for name, value in instructions() if name == word]


@pytest.fixture
def image(tmp_path):
    """A folder in which the COPY instructions were carried out, without what is ignored."""
    allowed = re.findall(r"^!(.+)", (ROOT / ".dockerignore").read_text("utf-8"), re.M)
    for value in arguments("COPY"):
        *sources, target = shlex.split(value)
        assert set(sources) <= set(allowed)
        for source in sources:
            path = tmp_path / target.strip("/")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, path)
            else:
                path.mkdir(exist_ok=True)
                shutil.copy(ROOT / source, path)
    return tmp_path / "source"


def test_the_image_has_what_the_installation_reads(image):
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((image / "pyproject.toml").read_text("utf-8"))["project"]
    packages = re.findall(r"^    \w+ = (\S+)$", (image / "setup.cfg").read_text("utf-8"), re.M)
    assert len(packages) > 4
    files = [project["readme"], *project["license-files"], *packages]
    assert [name for name in files if not (image / name).exists()] == []
    (chosen,) = (value.split("=")[1] for value in arguments("ARG") if "EXTRAS" in value)
    (other,) = re.findall(r"--build-arg EXTRAS=(\S+)", (ROOT / "Dockerfile").read_text("utf-8"))
    assert set(f"{chosen},{other}".split(",")) <= set(project["optional-dependencies"])
    assert f"EXTRAS={other}" in PAGE


def test_the_image_s_command_serves(image, tmp_path):
    pytest.importorskip("fastapi", reason="needs the extra serve")
    from serving_servers import get, wait_for

    (tmp_path / "models").mkdir()
    (command,) = map(json.loads, arguments("ENTRYPOINT"))
    (port,) = arguments("EXPOSE")
    assert command[command.index("--port") + 1] == port
    changed = {"python": sys.executable, "/models": str(tmp_path / "models"), port: "0"}
    changed["0.0.0.0"] = "127.0.0.1"
    process = subprocess.Popen(
        [changed.get(word, word) for word in command],
        cwd=tmp_path,
        env={"PYTHONPATH": str(image), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = re.match(r"http://\S+", process.stdout.readline()).group().rstrip("/")
        wait_for(lambda: get(f"{url}/v2/health/live")[0] == 200)
        (check,) = arguments("HEALTHCHECK")
        (path,) = re.findall(rf"http://127\.0\.0\.1:{port}(/[\w/]+)", check)
        assert get(f"{url}{path}")[0] == 503  # there is no model
        process.terminate()
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow exports")
def test_signatures_and_folders_are_those_of_an_export(tmp_path):
    import keras_small
    from keras_tnattn.models import text_classifier
    from keras_tnattn.text.words import learn_words
    from keras_tnattn_train.exports import Classifier, export

    words = learn_words(["a red fish", "a blue bird"])
    model = text_classifier(words.vocabulary_size(), 2, "tsa", embedding_dim=4)
    version = export(Classifier(model, words, ["fish", "bird"]), tmp_path / "docstrings")
    shown = PAGE.split("```text\n")[1].split("```")[0]
    names = [line.strip().rstrip("/") for line in shown.splitlines()[1:]]
    assert names[0] == version.name == "1"
    assert all((version / name).exists() for name in names[1:])

    pixels = keras.Input((4,), name="pixels")
    numeric = keras.Model(pixels, keras.layers.Dense(2)(pixels))
    numeric_version = keras_small.export(numeric, tmp_path / "mine/1")
    rows = re.findall(r"^\| (?!model|---)(.+?) \| `(\w+)` \| (.+?) \| (.+?) \|$", PAGE, re.M)
    assert len(rows) == 3
    for what, signature, inputs, outputs in rows:
        folder = version if what.startswith("classifier") else numeric_version
        metadata = read_metadata(folder)[signature]
        assert re.findall(r"`(\w+)`", inputs) == list(metadata["inputs"])
        assert re.findall(r"`(\w+)`", outputs) == sorted(metadata["outputs"])
