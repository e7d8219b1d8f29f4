from keras_tnattn_train.classify.baseline import linear_svms, most_frequent_class
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.data.texts.labeled import LabeledTexts


def test_the_baseline_learns_words_on_the_split_of_the_seed():
    texts = [f"the {word} {n}" for n in range(20) for word in ("good film", "bad film")]
    data = LabeledTexts.from_rows(zip(texts, ["good", "bad"] * 20, strict=True))
    configs = [ClassifyConfig(seed=seed) for seed in (3, 4)]
    results = linear_svms(configs, data)
    assert list(results) == [3, 4]
    for result in results.values():
        assert result["train_accuracy"] == result["test_accuracy"] == 1
        # A weight of each word in the training part, its document frequency, and an intercept.
        assert 0 < result["parameters"] <= 2 * 24 + 1
        assert result["parameters"] % 2 == 1


def test_the_most_frequent_class_is_that_of_the_training_part():
    # 60 rows for training and 40 for the test, stratified.
    data = LabeledTexts.from_rows((f"text {n}", "ab"[n % 10 < 3]) for n in range(100))
    results = most_frequent_class(
        [ClassifyConfig(test_fraction=0.4, seed=seed) for seed in (0, 1)], data
    )
    assert list(results) == [0, 1]
    for result in results.values():
        assert result["train_accuracy"] == result["test_accuracy"] == 0.7
        assert result["parameters"] == 0
    # Of 7 rows, 2 and 2 train and 1 and 2 test: the answer is the first of the former.
    few = LabeledTexts.from_rows((f"text {n}", "aaabbbb"[n]) for n in range(7))
    (result,) = most_frequent_class([ClassifyConfig(test_fraction=0.4)], few).values()
    assert (result["train_accuracy"], result["test_accuracy"]) == (1 / 2, 1 / 3)
