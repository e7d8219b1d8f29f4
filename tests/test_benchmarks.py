"""The scripts of benchmarks/ run to their end, at a tiny size."""

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


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the scripts need TensorFlow")
@pytest.mark.parametrize("script", SCRIPTS)
def test_it_runs_to_its_end(script, tmp_path):
    backend = "jax" if script == "gpu.py" else "tensorflow"
    command = [ROOT / "benchmarks" / script, *SCRIPTS[script].split()]
    assert run_python(*command, backend=backend, cwd=tmp_path).stdout
