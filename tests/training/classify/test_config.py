import pytest

from keras_tnattn.layers.base_attention import adapter_of
from keras_tnattn.models.attentions import find_attention
from keras_tnattn_train.classify.config import ATTENTIONS, MOST_WORDS, ClassifyConfig
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import from_json, to_json


def test_config_survives_json():
    config = ClassifyConfig(dataset="tfds:ag_news_subset", attention="tsa", damping=0.5)
    assert config.name == "ag_news_subset-tsa-0"
    assert from_json(ClassifyConfig, to_json(config)) == config
    with pytest.raises(InputError, match="color"):
        from_json(ClassifyConfig, '{"command": "classify", "color": "red"}')


def test_a_window_needs_its_reach():
    with pytest.raises(InputError, match=r"time_graph='window', window=None"):
        ClassifyConfig(attention="tsa", time_graph="window")


def test_a_monitor_needs_early_stopping():
    assert ClassifyConfig(early_stopping=3, monitor="accuracy").monitor == "accuracy"
    with pytest.raises(InputError, match="no monitor with early_stopping=None"):
        ClassifyConfig(monitor="accuracy")


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_registry_knows_which_layers_compare_all_pairs(attention):
    graphs = [{}]
    if "time_graph" in ClassifyConfig(attention=attention).attention_arguments:
        graphs += [
            {"damping": 0.999},
            {"time_graph": "window", "window": 9},
            {"time_graph": "window", "window": 4000},
            {"time_graph": "power_law", "exponent": 1.0},
            {"time_graph": "exponential"},
        ]
    for options in graphs:
        config = ClassifyConfig(attention=attention, **options)
        make = find_attention(attention).make
        layer = make(config.num_heads, config.embedding_dim, **config.attention_options)
        expected = adapter_of(layer).compares_pairs(MOST_WORDS, config.embedding_dim)
        assert config.settings.compares_pairs is expected, options


@pytest.mark.parametrize(
    ("dataset", "source"),
    [
        ("docstrings", "docstrings"),
        ("my data.csv", "my_data"),
        ("C:table.v2.tsv.xz", "C_table"),
        ("-.csv", "_"),
        (".", "here"),
        ("../there/../here/", "here"),
        ("/", "data"),
        ("tfds:ag_news_subset:1.0.0", "ag_news_subset"),
        ("tfds:glue/cola", "glue_cola"),
    ],
)
def test_the_default_name_is_a_name(tmp_path, monkeypatch, dataset, source):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert ClassifyConfig(dataset=dataset).name == f"{source}-none-0"
