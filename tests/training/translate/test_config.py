import pytest

from keras_tnattn.models import PRESETS as MODELS
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import from_json, to_json
from keras_tnattn_train.translate.config import ATTENTIONS, PRESETS, TranslateConfig, fitting_warmup
from keras_tnattn_train.translate.models import build_translator, compile_translator

SIZES = {"model_dim": 8, "num_heads": 2, "feedforward_dim": 8}


def power_law_attentions(config):
    layers = build_translator(config, (20, 20))._flatten_layers()
    return [layer for layer in layers if hasattr(layer, "metric_from")]


def test_presets_and_attentions_are_those_of_the_translator():
    assert set(PRESETS) == set(MODELS)
    assert {options["attention"] for options in MODELS.values()} == set(ATTENTIONS)


def test_sizes_are_those_of_the_preset():
    for name, preset in MODELS.items():
        config = TranslateConfig(preset=name)
        assert config.model_dim == preset.get("model_dim", 512)
        assert config.feedforward_dim == preset.get("feedforward_dim", 2048)


def test_the_default_is_a_small_model_of_scaled_dot_product_attention():
    config, other = TranslateConfig(), TranslateConfig(preset="plga-small", attention="sdpa")
    assert (config.preset, config.attention) == ("sdpa-small", "sdpa")
    one, two = (build_translator(c, (20, 20)) for c in (config, other))
    kinds = {type(layer).__name__ for layer in one._flatten_layers()}
    assert "MultiHeadAttention" in kinds
    assert "PowerLawGraphAttention" not in kinds
    assert one.count_params() == two.count_params()
    names = ("warmup_steps", "learning_rate")
    assert [getattr(config, n) for n in names] == [getattr(other, n) for n in names] == [2000, 8e-4]
    assert TranslateConfig(attention="plga").preset == "plga-small"


def test_the_schedule_is_the_papers():
    plga, sdpa = TranslateConfig(preset="plga-2"), TranslateConfig(preset="sdpa")
    assert (plga.attention, plga.warmup_steps) == ("plga", 15_000)
    assert (sdpa.attention, sdpa.warmup_steps) == ("sdpa", 4000)
    assert plga.learning_rate == pytest.approx(3.6e-4, rel=0.01)
    assert sdpa.learning_rate == pytest.approx(7.0e-4, rel=0.01)
    assert TranslateConfig(learning_rate=1e-3).learning_rate == 1e-3
    small = TranslateConfig(preset="plga-small")
    assert (small.warmup_steps, small.learning_rate) == (2000, 8e-4)


def test_it_survives_json():
    config = TranslateConfig(corpus="a/train.pt,a/train.en", checkpoint_epochs=(3, 1), reverse=True)
    assert config.name == "train-reversed-sdpa-small-0"
    assert from_json(TranslateConfig, to_json(config)) == config
    assert config.replace(seed=1).seed == 1
    with pytest.raises(InputError, match="preset"):
        TranslateConfig(preset="plga-7")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "cldr_pt-en-sdpa-small-0"),
        ({"preset": "plga-2"}, "cldr_pt-en-plga-2-0"),
        ({"preset": "plga-2", "attention": "sdpa"}, "cldr_pt-en-plga-2-sdpa-0"),
        ({"preset": "sdpa", "attention": "plga"}, "cldr_pt-en-sdpa-plga-0"),
        ({"preset": "plga-2", "causal_metric": True}, "cldr_pt-en-plga-2-causal-0"),
        ({"preset": "plga-2", "cross_metric": "key"}, "cldr_pt-en-plga-2-keys-0"),
        ({"preset": "plga-2", "metric_epsilon": 0.01}, "cldr_pt-en-plga-2-eps0.01-0"),
        ({"preset": "plga-small", "cross_metric": "key"}, "cldr_pt-en-plga-small-0"),
        ({"preset": "plga-small", "metric_epsilon": 0.01}, "cldr_pt-en-plga-small-0"),
        ({"preset": "plga-small", "metric_epsilon": 0.1}, "cldr_pt-en-plga-small-eps0.1-0"),
        ({"preset": "plga-small", "cross_metric": "query"}, "cldr_pt-en-plga-small-queries-0"),
    ],
)
def test_the_name_tells_what_is_trained(options, name):
    assert TranslateConfig(**options).name == name


def test_numbers_of_epochs_that_just_fit():
    fitting = {"early_stopping": 2, "epochs_after_best": 2, "checkpoint_epochs": (1, 3)}
    fitting |= {"cooldown_epochs": 3}
    config = TranslateConfig(epochs=3, **fitting)
    assert {name: getattr(config, name) for name in fitting} == fitting
    too_many = {"epochs_after_best": 3, "cooldown_epochs": 4, "checkpoint_epochs": (4,)}
    for name, value in too_many.items():
        with pytest.raises(InputError, match=name):
            TranslateConfig(epochs=3, **{**fitting, name: value})


def test_a_beam_or_a_folder_makes_another_export():
    configs = [
        TranslateConfig(export=True, **options)
        for options in ({}, {"export_beam": 2}, {"saved_models": "x"}, {"name": "x"})
    ]
    assert len({str(config.export_options) for config in configs}) == 4


def test_options_change_the_preset():
    rates = {"query_dropout": 0.1, "key_dropout": 0.2}
    config = TranslateConfig(preset="plga-4", num_heads=2, causal_metric=True, **rates)
    assert config.overrides == {
        "attention": "plga",
        "num_heads": 2,
        "model_dim": 512,
        "feedforward_dim": 2048,
        "feedforward": "dense",
        "causal_metric": True,
        **rates,
    }


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "plga-small"},
        {"preset": "plga-2", "cross_metric": "key", "decoder_attention": "sdpa"},
    ],
)
def test_a_causal_metric_without_effect_is_refused(options):
    with pytest.raises(InputError, match=r"causal_metric=True, cross_metric='key', decoder_attent"):
        TranslateConfig(causal_metric=True, **options)
    for other in ({"cross_metric": "query"}, {"decoder_attention": "plga"}):
        assert TranslateConfig(causal_metric=True, **{**options, **other}).causal_metric


def test_options_of_the_metric_reach_the_layers():
    fixed = {"residual_dim": 4, "residual_units": 1, "query_dropout": 0.1, "key_dropout": 0.2}
    of_cross_attention = {"cross_metric": "key", "metric_epsilon": 0.01}
    for options, expected in (
        ({}, [("query", 1e-9)] * 3),
        (of_cross_attention, [("query", 0.01), ("query", 0.01), ("key", 0.01)]),
    ):
        config = TranslateConfig(preset="plga-2", **SIZES, **fixed, **options)
        layers = power_law_attentions(config)
        result = [(x.metric_from, x.epsilon) for x in layers]
        assert sorted(result, reverse=True) == sorted(expected, reverse=True)
        assert {(x.query_dropout, x.key_dropout) for x in layers} == {(0.1, 0.2)}


@pytest.mark.parametrize(
    ("options", "causal"),
    [
        ({"preset": "sdpa", "encoder_attention": "plga"}, False),
        ({"preset": "plga-small", "attention": "sdpa", "encoder_attention": "plga"}, False),
        ({"preset": "sdpa", "decoder_attention": "plga", "causal_metric": True}, True),
    ],
)
def test_options_of_the_metric_reach_another_attention(options, causal):
    of_plga = {"residual_dim": 4, "residual_units": 1, "metric_epsilon": 0.1}
    config = TranslateConfig(**SIZES, num_layers=1, **of_plga, **options)
    (layer,) = power_law_attentions(config)
    assert (layer.residual_dim, layer.residual_units, layer.epsilon) == (4, 1, 0.1)
    assert layer.causal_metric is causal


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_attention": "plga", "cross_metric": "key"},
        {"encoder_attention": "plga", "causal_metric": True},
        {"decoder_attention": "tsa", "metric_epsilon": 0.1},
    ],
)
def test_options_of_the_metric_need_an_attention_that_has_one(options):
    with pytest.raises(InputError, match=r"attention='sdpa', which has none"):
        TranslateConfig(preset="sdpa", **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"metric_epsilon": 0.01}, True),
        ({"metric_epsilon": 0.01, "causal_metric": True}, False),
        ({"metric_epsilon": 0.01, "decoder_attention": "sdpa"}, True),
        ({"metric_epsilon": 0.01, "cross_metric": "key"}, True),
        ({"metric_epsilon": 0.01, "cross_metric": "key", "decoder_attention": "sdpa"}, False),
        ({"preset": "plga-small"}, False),
        ({"preset": "plga-small", "cross_metric": "query"}, True),
        ({"preset": "plga-small", "decoder_attention": "plga"}, True),
        ({"preset": "sdpa", "encoder_attention": "plga", "metric_epsilon": 0.01}, False),
    ],
)
def test_which_decoders_read_ahead(options, expected):
    assert TranslateConfig(**{"preset": "plga-2", **options}).reads_ahead is expected


def test_a_compiled_translator_has_the_optimizer_of_the_options():
    config = TranslateConfig(**SIZES, num_layers=1, epochs=6, cooldown_epochs=2, warmup_steps=7)
    optimizer = compile_translator(config, (20, 20), steps_per_epoch=5).optimizer
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    schedule = optimizer.get_config()["learning_rate"]["config"]
    assert schedule["warmup_steps"] == 7
    assert schedule["total_steps"] == 30
    assert schedule["cooldown_steps"] == 10


def test_the_default_warm_up_fits_the_run():
    config = TranslateConfig(preset="plga-small")
    assert [fitting_warmup(config, steps) for steps in (2000, 1999, 9)] == [2000, 199, 1]
    assert fitting_warmup(config.replace(warmup_steps=2001), 10) == 2001
