"""The candidates that a runtime keeps small and fast, and the files of models made of them."""

import re

import keras
import numpy as np
import pytest
from compressing import compress
from conformance import relative_error, to_numpy
from slow_cases import slow_but

from keras_small.formats import candidates_for
from keras_small.formats.runtime_tables import RUNTIMES, bits_for, fit_for
from keras_small.runtimes import file_costs, file_outputs
from keras_small.survey.calibration import Statistics
from keras_tnattn_runtime.layout import file_sizes

SUFFIXES = {"litert": ".tflite", "onnxruntime": ".onnx", "openvino": ".xml"}
MODULES = {"litert": "ai_edge_litert", "onnxruntime": "onnxruntime", "openvino": "openvino"}
IDS = np.random.default_rng(0).integers(1, 1000, (16, 12)).astype("int32")


def table():
    layer = keras.layers.Embedding(1000, 32)
    layer.build()
    return layer


def dense():
    layer = keras.layers.Dense(64)
    layer.build((None, 64))
    return layer


def of(layer, bits):
    statistics = Statistics()
    statistics.fast = True
    return candidates_for(layer, statistics, ("low_rank", "tensor_train"), bits)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_tables_have_no_slow_lookups(runtime):
    layer, found = table(), of(table(), 4)
    assert {("tensor_train", 4), ("low_rank", 4), ("dense", 4)} <= {
        (c.format, c.bits) for c in found
    }
    held = fit_for(runtime, layer, found)
    assert held[0].keeps_layer
    few = {("low_rank", 4), ("dense", 4)} if RUNTIMES[runtime].table_bits == 4 else set()
    assert {(c.format, c.bits) for c in held[1:]} - {("low_rank", 8)} == {("dense", 8)} | few
    kernels = {(c.format, c.bits) for c in fit_for(runtime, dense(), of(dense(), 4))}
    assert {("low_rank", 4), ("dense", 4), ("tensor_train", None)} <= kernels


def test_integers_that_files_do_not_keep_small_are_left_out():
    layer, found = dense(), of(dense(), 3)
    bits = {name: {c.bits for c in fit_for(name, layer, found)} for name in RUNTIMES}
    assert not {3, 6} & set.union(*bits.values())


def test_without_a_runtime_all_candidates_stay():
    found = of(table(), 2)
    assert fit_for(None, table(), found) == found


def test_columns_are_one_group_where_products_are_fastest_then():
    layer = keras.layers.Dense(8)
    layer.build((None, 300))
    found = of(layer, 8)
    groups = {
        name: {c.ranks for c in fit_for(name, layer, found) if (c.format, c.bits) == ("dense", 8)}
        for name in (None, "onnxruntime", "openvino")
    }
    assert groups == {None: {(128,)}, "onnxruntime": {(300,)}, "openvino": {(128,)}}


def test_zeros_are_left_out_where_products_take_none():
    convolution = keras.layers.Conv2D(8, 3)
    convolution.build((None, 8, 8, 16))
    without = {
        (name, kind, c.bits)
        for name in RUNTIMES
        for kind, layer in (("dense", dense()), ("convolution", convolution))
        for c in fit_for(name, layer, [x for bits in (4, 8) for x in of(layer, bits)])
        if getattr(c.quantize, "keywords", {}).get("symmetric")
    }
    assert without == {
        *(("litert", kind, bits) for kind in ("dense", "convolution") for bits in (4, 8)),
        *((name, "convolution", 8) for name in ("onnxruntime", "openvino")),
    }


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="writes files on TensorFlow")
@pytest.mark.filterwarnings("ignore")  # of converters
@pytest.mark.parametrize("runtime", slow_but(["litert", "onnxruntime"], RUNTIMES))
def test_the_file_is_about_as_small_as_the_report(runtime, tmp_path):
    pytest.importorskip(MODULES[runtime])
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(1000, 64),
            layers.Dense(128, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(40),
        ]
    )
    result = compress(model, 8, bits=4, data=IDS, verbose=0, for_runtime=runtime)
    formats = {row.path: row.format for row in result.report.layers}
    assert "tensor_train" not in formats.values()
    path = result.export(tmp_path / f"model{SUFFIXES[runtime]}", IDS)
    assert path == tmp_path / f"model{SUFFIXES[runtime]}"
    size = sum(file_sizes(path).values())
    if runtime == "openvino":  # its text takes 250 bytes for each operation that restores integers
        size = path.with_suffix(".bin").stat().st_size
    assert size <= 1.2 * result.report.bytes_after + 10_000
    (costs,) = result.report.files
    assert costs.bytes == sum(file_sizes(path).values())
    assert 10_000 < costs.resident_bytes < 2**28
    assert 0 < costs.one_row_us < costs.many_rows_us
    assert 0 <= costs.error <= 0.012
    assert 0.9 < costs.agreement <= 1
    (outputs,), expected = file_outputs(path)(IDS), to_numpy(result.model(IDS))
    assert relative_error(outputs, expected) <= 0.012
    assert f"{costs.resident_bytes:,} bytes of memory" in str(result.report)
    path.write_bytes(b"of something else")
    with pytest.raises(RuntimeError, match="Could not run"):
        file_costs(path, result.model, IDS)


@pytest.mark.parametrize(
    ("runtime", "reasons"),
    [
        (
            "onnxruntime",
            {"gru": "which reads it, takes floats", "head": "floats: faster below 262,144 weights"},
        ),
        ("litert", {"table": "each call restores rows"}),
    ],
)
def test_the_report_names_what_stays_in_floats(runtime, reasons, tmp_path):
    pytest.importorskip(MODULES[runtime])
    table, head = (
        keras.layers.Embedding(1000, 32, name="table"),
        keras.layers.Dense(40, name="head"),
    )
    gru = keras.layers.GRU(32, name="gru")
    model = keras.Sequential([keras.Input((12,), dtype="int32"), table, gru, head])
    result = compress(model, bits=8, data=IDS, verbose=0, for_runtime=runtime)
    result.export(tmp_path / f"model{SUFFIXES[runtime]}")
    (costs,) = result.report.files
    for layer, reason in reasons.items():
        found = [why for name, why in costs.changes.items() if layer in name]
        assert found
        assert all(why.startswith("floats: ") and reason in why for why in found)
        assert found[0] in str(result.report)
    assert not {name for name in costs.changes if not any(x in name for x in reasons)}


def tables_and_dense():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(1000, 32, name="table"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(40, name="head"),
        ]
    )


def test_tables_have_8_bits_without_a_target():
    assert [bits_for("litert", layer, 4) for layer in (table(), dense())] == [8, 4]
    assert bits_for(None, table(), 4) == 4
    result = compress(tables_and_dense(), bits=4, data=IDS, verbose=0, for_runtime="litert")
    assert {row.path: row.bits for row in result.report.layers} == {"table": 8, "head": 4}
    assert "For litert: tables as floats" in str(result.report)


def dense_alone():
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, name="head")])


@pytest.mark.parametrize(
    ("make", "bits", "advice"), [(tables_and_dense, 32, " Try 8 or 4 bits."), (dense_alone, 4, "")]
)
def test_the_advice_names_what_the_runtime_holds(make, bits, advice):
    model = make()
    options = {"bits": bits, "verbose": 0, "for_runtime": "litert"}
    with pytest.raises(ValueError, match="at most") as error:
        compress(model, 1e4, **options)
    target = 1.1 * float(re.search(r"at most ([\d.]+)", str(error.value))[1])
    received = f"Received: factor={target}, for_runtime='litert'"
    with pytest.raises(ValueError, match=re.escape(f"%.{advice} {received}")):
        compress(model, target, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"for_runtime": "tvm"}, "'litert'.*for_runtime='tvm'"),
        ({"for_runtime": ["litert"]}, r"for_runtime=\['litert'\]"),
        ({"for_runtime": "litert", "bits": 3}, "bits=3, for_runtime='litert'"),
    ],
)
def test_bad_runtimes(options, message):
    with pytest.raises(ValueError, match=message):
        compress(tables_and_dense(), 4, verbose=0, **options)


def test_no_advice_of_bits_that_tables_do_not_get():
    layers = [keras.Input((None,), dtype="int32"), keras.layers.Embedding(90, 32)]
    model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling1D()])
    with pytest.raises(ValueError, match=r"%\. Received"):
        compress(model, 5, bits=8, formats=(), data=IDS % 90, verbose=0, for_runtime="litert")


def test_no_advice_where_nothing_helps():
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((16,)), layers.Dense(32, name="hidden"), layers.Dense(32, name="output")]
    )
    with pytest.raises(ValueError, match=r"a factor of at most 1\.51, if nothing") as error:
        compress(model, 20, filters="hidden", verbose=0)  # the other one has two thirds
    assert "Try" not in str(error.value)
