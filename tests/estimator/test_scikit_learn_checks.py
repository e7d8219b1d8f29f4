"""scikit-learn's own checks of an estimator.

They give arrays of numbers, and leave out estimators of texts. So `OfNumbers` reads a row as a text
whose words name a column and about its value; all else is `TextClassifier` itself. Its networks are
not trained: the checks are about what is promised, and the linear SVM is kept.
"""

import numpy as np
import pytest
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

from keras_tnattn import TextClassifier

pytestmark = pytest.mark.usefixtures("eagerly")


class OfNumbers(TextClassifier):
    def fit(self, X, y):  # noqa: N803 the names of scikit-learn
        X, y = validate_data(self, X, y)  # noqa: N806
        features = self.n_features_in_
        super().fit(self._texts(X), y)
        self.n_features_in_ = features
        return self

    def predict_proba(self, X):  # noqa: N803
        check_is_fitted(self)
        return super().predict_proba(self._texts(validate_data(self, X, reset=False)))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = False
        tags.input_tags.two_d_array = True
        tags.input_tags.string = False
        return tags

    def _train(self, training):
        model = training.build()
        self._start_from_svm(model, training)
        return model

    @staticmethod
    def _texts(rows):
        numbers = np.floor(2 * rows).astype(int)
        return [" ".join(f"c{i}v{value}" for i, value in enumerate(row)) for row in numbers]


# What is not for lists of texts, each with the reason.
EXCEPTIONS = {
    "check_methods_sample_order_invariance": "in float32 the last bits depend on the batch",
    "check_class_weight_classifiers": "class_weight is 'balanced' or None: a dict is not taken",
}


@parametrize_with_checks([OfNumbers(random_state=0)], expected_failed_checks=lambda _: EXCEPTIONS)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_scikit_learn_knows_that_it_takes_texts():
    with pytest.warns(SkipTestWarning, match="requires input"):
        check_estimator(TextClassifier())
