"""The scripts of benchmarks/ run to their end, at a tiny size."""

import ast
import importlib
import pkgutil
from pathlib import Path

import keras
import pytest
from import_path import run_python

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = {
    "../studies/benchmarks/additive_scores.py": "--quick",
    "corpus_memory.py": "--pairs 1000 --steps 2",
    "decoding.py": "--quick",
    "encoder_start.py": "--backends tensorflow --runs 1",
    "export_sizes.py": "--quick --runtimes onnxruntime",
    "../studies/benchmarks/frozen_metric.py": "--quick",
    "gpu.py": "--quick --precisions float32",
    "graph_tensor_network.py": "--lengths 64",
    "../studies/benchmarks/low_rank_dense.py": "--sizes 64 --rows 1",
    "paper_sizes.py": "--quick",
    "scaling.py": "--processes 1 --rounds 1 --steps 1 --batch-size 2 "
    "--model-dim 32 --residual-dim 16",
    "serving.py": "--servers auto plain --clients 2 --seconds .5 --rounds 1",
    "spectral_attention.py": "--quick",
    "table_memory.py": "--rows 1000",
    "text_classifier.py": "--quick",
    "tn_attention.py": "--quick",
    "translator.py": "--quick",
    "tt_dense.py": "--quick",
}


def test_every_script_of_make_bench_is_tried():
    words = (ROOT / "Makefile").read_text().split()
    called = {word.split("/")[1] for word in words if word.startswith("benchmarks/")}
    assert called <= SCRIPTS.keys()


def ours(script):
    """The modules of this repository that a script imports from, and the names that it takes."""
    nodes = [x for x in ast.walk(ast.parse(script.read_text())) if isinstance(x, ast.ImportFrom)]
    return [
        (x.module, name.name) for x in nodes if x.module.startswith("keras_") for name in x.names
    ]


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "studies/benchmarks"])
def test_the_scripts_import_what_there_is(folder):
    wanted = {names for script in (ROOT / folder).glob("*.py") for names in ours(script)}
    assert wanted
    for module, name in wanted:
        found = importlib.import_module(module)
        modules = [x.name for x in pkgutil.iter_modules(getattr(found, "__path__", []))]
        assert hasattr(found, name) or name in modules, f"from {module} import {name}"


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the scripts need TensorFlow")
@pytest.mark.parametrize("script", SCRIPTS)
def test_it_runs_to_its_end(script, tmp_path):
    backend = "jax" if script == "gpu.py" else "tensorflow"
    command = [ROOT / "benchmarks" / script, *SCRIPTS[script].split()]
    assert run_python(*command, backend=backend, cwd=tmp_path).stdout
