"""Models that cannot be compressed are refused in a sentence; the others are compressed."""

import keras
import numpy as np
import pytest
from compressing import Holder, compress, error_of
from conformance import assert_same_arrays, to_numpy

from keras_small import Data, Promise, Smaller, Within, logits_divergence
from keras_small.survey import survey

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(32, 32)).astype("float32")


def sequential(*layers):
    return keras.Sequential([keras.Input((32,)), *layers])


def reasons(result):
    return {row.kind: row.reason for row in result.report.layers if row.format == "kept"}


@pytest.mark.parametrize("data", [None, ROWS], ids=["no data", "data"])
def test_nan_in_a_kernel_is_not_blamed_on_the_data(data):
    model = sequential(keras.layers.Dense(32, name="broken"))
    kernel, bias = model.get_weights()
    kernel[3, 3] = np.nan
    model.set_weights([kernel, bias])
    with pytest.raises(ValueError, match=r"finite weights.* in the kernel of broken"):
        compress(model, 2.0, data=data, verbose=0)


@pytest.mark.parametrize("bits", [32, 8])
def test_dtypes_of_each_layer(bits):
    dtypes = ["float16", "float32", "mixed_float16", "bfloat16"]
    model = sequential(*(keras.layers.Dense(32, dtype=dtype) for dtype in dtypes))
    result = compress(model, 2.0, bits=bits, data=ROWS, verbose=0)
    assert result.report.ratio >= 2
    half = [row for row in result.report.layers if row.path == model.layers[0].name]
    assert [row.bits for row in half] == [32]
    assert ("in float16" in str(result.report)) == (bits == 8)
    assert result.model(ROWS).dtype == model(ROWS).dtype


@pytest.mark.parametrize(("options", "asked"), [({"bits": 8}, "bits=8"), ({"goal": 1.1}, "1.1")])
def test_quantized_models_are_not_quantized_again(options, asked):
    model = sequential(keras.layers.Dense(32))
    model.layers[0].quantize("int8")
    with pytest.raises(ValueError, match=f"{asked}.*quantized already .int8."):
        compress(model, **options, data=ROWS, verbose=0)


def test_what_is_not_supported_is_named_with_its_bytes():
    model = keras.Sequential([keras.Input((32,)), keras.layers.LayerNormalization()])
    for options in ({"bits": 8}, {"goal": 2.0}, {"goal": Within(0.1)}):
        with pytest.raises(ValueError, match="LayerNormalization: 256 bytes, not supported"):
            compress(model, **options, verbose=0)
    report = compress(model, verbose=0).report
    assert report.ratio == 1
    assert [row.reason for row in report.layers] == ["not supported"]


def test_bits_that_make_no_layer_smaller_are_said():
    result = compress(sequential(keras.layers.Dense(1, use_bias=False)), bits=4, verbose=0)
    assert (result.report.ratio == 1) == ("No layer became smaller" in str(result.report))


class Inner(keras.Model):
    """Has no `get_config` and is not registered."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = keras.layers.Dense(32), keras.layers.Dense(32)

    def call(self, inputs):
        return self.second(self.first(inputs))


@keras.saving.register_keras_serializable("tests")
class WithUnused(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.used, self.unused = keras.layers.Dense(32), keras.layers.Dense(32)

    def build(self, shape):
        self.used.build(shape)

    def call(self, inputs):
        return self.used(inputs)


def test_a_layer_that_was_never_called():
    report = compress(sequential(WithUnused()), bits=8, data=ROWS, verbose=0).report
    assert [row.format for row in report.layers] == ["dense"]


def test_subclassed_models_inside_models():
    inputs = keras.Input((32,))
    model = keras.Model(inputs, keras.layers.Dense(3)(Inner()(inputs)))
    report = compress(model, 2.0, data=ROWS, verbose=0).report
    assert [row.format for row in report.layers if row.path.startswith("inner")] == ["low_rank"] * 2


def test_a_layer_that_several_layers_hold_stays():
    dense = keras.layers.Dense(32)
    inputs = keras.Input((32,))
    x = Holder(dense)(Holder(dense)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(64, name="other")(x))
    result = compress(model, 1.1, data=ROWS, verbose=0)
    held = [row.reason for row in result.report.layers if row.path.endswith("layer")]
    assert held == ["held by several layers, each of which loads its own copy"] * 2
    np.testing.assert_array_equal(
        to_numpy(result.model.layers[1](ROWS)), to_numpy(model.layers[1](ROWS))
    )


@pytest.mark.parametrize("names", [("class scores", "d d"), ("é", "_x"), ("a:b", "%d")])
def test_names_that_graphs_refuse(names, tmp_path):
    scores, hidden = names
    layers = (keras.layers.Dense(64, name=hidden), keras.layers.Dense(32, "softmax", name=scores))
    model = keras.Sequential([keras.Input((32,)), *layers], name="my model")
    first = compress(model, 2, bits=32, data=np.repeat(ROWS, 10, 0))
    assert [weight.path for weight in first.model.weights][-1].startswith(f"{scores}/")
    assert first.heal(ROWS, loss="mse")
    before = first.report.error
    assert len(first.heal(ROWS, epochs=2)) in (0, 2)
    assert first.report.error <= before


def test_a_refusal_names_layers_without_a_smaller_candidate():
    layers = [keras.Input((8, 4)), keras.layers.Conv1DTranspose(8, 3, name="up")]
    message = (
        r"a model that can become smaller: 416 of 416 bytes .* \(up: 416 bytes, no format makes it "
        r"smaller without bits\)\. Try 4 or 3 bits\. Received: factor=3"
    )
    rows = ROWS.reshape(32, 8, 4)
    with pytest.raises(ValueError, match=message):
        compress(keras.Sequential(layers), 3, data=rows, bits=32, verbose=0)


def test_copies_of_shared_layers_are_named_in_a_refusal():
    shared, inputs = keras.layers.Dense(32), keras.Input((32,))
    x = Holder(shared)(Holder(shared)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(32)(x))
    message = (
        r"a model that can become smaller: 8,448 of 12,672 bytes .*held by several.*; these are "
        r"more than the 8,448 of the model, because Keras loads .* Call it through one of them\. "
        r"Received"
    )
    with pytest.raises(ValueError, match=message):
        compress(model, 3, data=ROWS, verbose=0)


def test_a_factor_beyond_the_layers_that_stay_is_refused_before_the_work(monkeypatch):
    monkeypatch.setattr(survey, "observe", None)
    model = sequential(keras.layers.Dense(32), keras.layers.Dense(32))
    message = r"a factor of at most 2.0, if nothing.*: 4,224 of 8,448 bytes .*not selected"
    with pytest.raises(ValueError, match=message):
        compress(model, 3, data=ROWS, filters=model.layers[1].name, verbose=0)


def test_a_lora_stays_and_the_rest_goes_on():
    model = sequential(keras.layers.Dense(32), keras.layers.Dense(32))
    model.layers[0].enable_lora(2)
    result = compress(model, 1.2, data=ROWS, verbose=0)
    assert reasons(result) == {"Dense": "has a LoRA"}


def test_the_error_of_the_outputs_is_measured_on_all_rows():
    model = sequential(keras.layers.Dense(32, "relu"), keras.layers.Dense(32))
    rows = RNG.normal(size=(1500, 32)).astype("float32")
    rows[1200:] *= 40
    result = compress(model, 2.0, data=(rows, np.zeros(1500)), verbose=0)

    assert result.report.rows == 1500
    assert result.report.error == pytest.approx(error_of(model, result.model, rows), rel=1e-3)
    result.heal(rows[:64], epochs=1)
    assert result.report.error == pytest.approx(error_of(model, result.model, rows), rel=1e-3)


def test_progress_is_printed_if_asked_for(capsys):
    compress(sequential(keras.layers.Dense(32, name="only")), 2.0)
    assert "layers that can be replaced: 1" in capsys.readouterr().out
    compress(sequential(keras.layers.Dense(32)), 2.0, verbose=0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (ROWS, r"Received: goal=array.*\. Inputs are the argument data: compress\(model, 8, data="),
        ([ROWS], r"Inputs are the argument data"),
        (Data(ROWS), r"Inputs are the argument data"),
        ((batch for batch in [ROWS]), r"Inputs are the argument data"),
        ("8", r"Smaller\(factor\), Within\(.*Received: goal='8', a text: pass the number 8$"),
        ("small", r"goal='small', a text$"),
        (Smaller, r"a class: pass Smaller\(\.\.\.\), an instance$"),
        (Promise, r"a class: pass Promise\(\.\.\.\), an instance$"),
        (float, r"goal=<class 'float'>, a class$"),
        (True, r"goal=True$"),
    ],
)
def test_what_is_no_goal_is_refused_with_the_goals(goal, message):
    with pytest.raises(ValueError, match=message) as error:
        compress(sequential(keras.layers.Dense(32)), goal, 8)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "metric",
    [
        lambda model: model.predict(ROWS, verbose=0),
        lambda model: np.array([0.5]),
        lambda model: "0.5",
        lambda model: None,
        lambda model: {"accuracy": 0.5},
    ],
    ids=["outputs", "one in a list", "text", "nothing", "dict"],
)
def test_a_metric_that_returns_no_number_is_named(metric):
    with pytest.raises(ValueError, match=r"one number.*Received: metric\(model\)=") as error:
        compress(sequential(keras.layers.Dense(32)), Smaller(2, metric=metric), verbose=0)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("metric", [keras.metrics.CategoricalAccuracy(), keras.losses.Loss, "acc"])
def test_a_metric_is_a_function_of_a_model(metric):
    with pytest.raises(ValueError, match=r"a function of a model, such as lambda .*evaluate"):
        Smaller(2, metric=metric)


def test_a_metric_may_return_a_number_of_any_library():
    model = sequential(keras.layers.Dense(32))
    for value in (np.float32(0.5), np.array(0.5), keras.ops.convert_to_tensor(0.5), 1, True):
        goal = Smaller(2, metric=lambda model, value=value: value)
        assert compress(model, goal, verbose=0).report.metric_before == float(value)


@pytest.mark.parametrize("coded", ["yes", 1, None])
def test_coded_is_true_or_false(coded):
    with pytest.raises(ValueError, match=rf"True or False. Received: coded={coded!r}"):
        compress(sequential(keras.layers.Dense(32)), 2, coded=coded)


def two_inputs():
    inputs = [keras.Input((32,)), keras.Input((5, 32))]
    return keras.Model(inputs, [keras.layers.Dense(8)(x) for x in inputs])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ROWS[0], r"\(None, 32\). Received: data of shape \(32,\), a single row.* data\[None\]"),
        ([ROWS[0]], "a single row"),
        ((ROWS, np.zeros(5)), "as many labels as rows.*32 rows and 5 labels"),
    ],
    ids=["row", "row in a list", "labels"],
)
def test_data_of_another_shape_than_rows(data, message):
    with pytest.raises(ValueError, match=message):
        compress(sequential(keras.layers.Dense(32)), 2, data=data, verbose=0)


def test_labels_in_the_place_of_an_input():
    model = two_inputs()
    other = RNG.normal(size=(32, 5, 32)).astype("float32")
    with pytest.raises(ValueError, match=r"\(32, 32\) and \(32,\). Pass labels, .*labels\)"):
        compress(model, 2, data=(ROWS, np.zeros(32)), verbose=0)
    for data in ((ROWS, other), ((ROWS, other), np.zeros(32)), [ROWS, other]):
        assert compress(model, 2, data=data, verbose=0).report.rows == 32


@pytest.mark.parametrize("filters", ["nothing", [], lambda layer: False])
def test_filters_that_select_nothing_are_refused_before_any_work(filters, capsys):
    model = sequential(keras.layers.Dense(32, name="first"), keras.layers.Dense(32, name="second"))
    for goal in (2, None):
        with pytest.raises(ValueError, match=r"select a layer.*, of first, second. Received: f"):
            compress(model, goal, filters=filters)
    assert capsys.readouterr().out == ""


def test_a_layer_is_no_filter():
    model = sequential(keras.layers.Dense(32, name="first"))
    with pytest.raises(ValueError, match=r"a layer: pass its name, 'first'"):
        compress(model, 2, filters=model.layers[0])


@pytest.mark.parametrize("formats", [None, 3])
def test_formats_are_names(formats):
    with pytest.raises(ValueError, match=rf"or \(\) for none. Received: formats={formats}"):
        compress(sequential(keras.layers.Dense(32)), 2, formats=formats)


def named(x):
    return keras.ops.tanh(x)


def test_a_lambda_that_keras_cannot_load_is_named(capsys):
    def model_of(function):
        return sequential(keras.layers.Lambda(function, name="mine"), keras.layers.Dense(32))

    with pytest.raises(ValueError, match=r"Lambda layer mine, whose function uses keras, which"):
        compress(model_of(lambda x: keras.ops.tanh(x)), 2)
    assert capsys.readouterr().out == ""
    for function in (named, lambda x: 2 * abs(x)):
        assert compress(model_of(function), 2, verbose=0).report.ratio > 2


def test_the_divergence_of_logits_is_not_that_of_probabilities():
    model = sequential(keras.layers.Dense(32), keras.layers.Dense(4, "softmax"))
    result = compress(model, 2, data=ROWS, verbose=0)
    before = result.model.get_weights()
    with pytest.raises(ValueError, match=r"returns logits. Received: loss=logits_divergence"):
        result.heal(ROWS, loss=logits_divergence)
    assert_same_arrays(result.model.get_weights(), before)


def test_data_of_another_shape_are_not_printed():
    model = sequential(keras.layers.Dense(32))
    with pytest.raises(ValueError, match=r"do not fit .*shape.*\(1, 32, 3\)") as error:
        compress(model, 2, data=np.ones((40, 32, 3), "float32"), verbose=0)
    assert len(str(error.value)) < 300


def test_a_result_prints_its_report_and_says_that_it_was_healed():
    result = compress(sequential(keras.layers.Dense(32)), 2, data=ROWS, verbose=0)
    assert str(result) == str(result.report)
    assert "healed" not in str(result)
    result.heal(ROWS)
    result.heal(ROWS)
    assert str(result).count("healed; layer errors were measured before healing") == 1
