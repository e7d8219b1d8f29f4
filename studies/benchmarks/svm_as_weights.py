"""Where does a linear SVM as the weights of a classifier part from scikit-learn's own?

    python studies/benchmarks/svm_as_weights.py --data-dir DIR

scikit-learn's TF-IDF weights and `LinearSVC`, with their defaults, are fitted to so many rows, and
predict 6,000 others. Each line changes one thing, and says on which share of these rows the label
stays, and how the accuracy changes; means over the seeds, in %. The seeds are not those of
`classify_small_sets.py`.
"""

import argparse
import os
from statistics import fmean

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC
from sklearn.utils.extmath import randomized_svd

from keras_tnattn.estimator.batches import outputs_of
from keras_tnattn.estimator.building import compiled_model
from keras_tnattn.estimator.initial_weights import WORD, become_svm
from keras_tnattn.estimator.parts import ids_of, words_to_read
from keras_tnattn.estimator.settings import Settings
from keras_tnattn.text.words import WordVectorizer, learn_words
from keras_tnattn_train.data.texts import load_texts
from keras_tnattn_train.data.texts.labeled import split_rows

TESTED = 6000  # rows
FEATURES = 43  # that are left for norms by 20 classes in 64 dimensions
OURS = WordVectorizer([], 1_000_000).words


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--set", default="newsgroups")
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    options = parser.parse_args()
    data = load_texts(options.set, options.data_dir)
    for rows in options.rows:
        results = [compared(data, rows, seed) for seed in options.seeds]
        print(f"{options.set}, {rows:,} rows: {'same label':>35} {'accuracy':>9}")
        for name in results[0]:
            same, gain = (100 * fmean(result[name][i] for result in results) for i in range(2))
            print(f"  {name:50} {same:8.1f} {gain:+9.2f}", flush=True)


def compared(data, rows, seed):
    """Returns the share of equal labels and the gain in accuracy of each change."""
    train, test = split_rows(data.labels, 1 - rows / len(data.labels), seed)
    test = np.random.default_rng(seed).permutation(test)[:TESTED]
    parts = [[data.texts[row] for row in numbers] for numbers in (train, test)]
    labels, truth = data.labels[train], data.labels[test]

    def fitted(analyzer="word", intercept=True, norms=exact_norms):
        return predicted(*parts, labels, seed, analyzer, intercept, norms)

    expected = fitted()
    changed = {
        "our words": fitted(OURS),
        "scikit-learn's words in ours": fitted(words_in_ours(parts[0])),
        "no intercept": fitted(intercept=False),
        "norms of random projections": fitted(norms=projected_norms),
        "norms of principal directions and projections": fitted(norms=principal_norms),
        "as weights": as_weights(*parts, labels, len(data.class_names), seed),
    }
    right = np.mean(expected == truth)
    return {
        name: (np.mean(labels == expected), np.mean(labels == truth) - right)
        for name, labels in changed.items()
    }


def predicted(texts, new, labels, seed, analyzer, intercept, norms):
    """Returns what an SVM predicts whose TF-IDF weights are divided by other norms in the end."""
    vectorizer = TfidfVectorizer(max_features=20_000, analyzer=analyzer, norm=None)
    weights, new_weights = vectorizer.fit_transform(texts), vectorizer.transform(new)
    svm = LinearSVC(random_state=seed, fit_intercept=intercept)
    svm.fit(weights.multiply(1 / exact_norms(weights, weights, seed)).tocsr(), labels)
    scores = (new_weights @ svm.coef_.T) / norms(weights, new_weights, seed) + svm.intercept_
    return svm.classes_[scores.argmax(axis=1)]


def exact_norms(weights, new, seed):
    """Returns the norms of the rows of `new`, with 1 in place of 0."""
    squares = np.asarray(new.multiply(new).sum(axis=1))
    return np.sqrt(np.where(squares > 0, squares, 1))


def projected_norms(weights, new, seed):
    """Returns norms of random projections."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (new.shape[1], FEATURES))
    return norms_of(new @ (signs / np.sqrt(FEATURES)))


def principal_norms(weights, new, seed):
    """Returns norms of principal directions, and of random projections of the rest."""
    first = randomized_svd(weights, FEATURES // 4, random_state=seed)[2].T
    others = FEATURES - first.shape[1]
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (new.shape[1], others))
    rest = (signs - first @ (first.T @ signs)) / np.sqrt(others)
    return norms_of(new @ np.concatenate([first, rest], axis=1))


def norms_of(features):
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return np.where(norms > 0, norms, 1)


def words_in_ours(texts):
    """Returns an analyzer: scikit-learn's words in those of our words that these texts have."""
    known = {word for text in texts for word in OURS(text)}
    return lambda text: [part for w in OURS(text) if w in known for part in WORD.findall(w)]


def as_weights(texts, new, labels, classes, seed):
    """Returns what the Keras model predicts that has the SVM as its weights."""
    settings = Settings(seed=seed)
    vectorizer = learn_words(texts, max_words=lambda lengths: words_to_read(settings, lengths))
    model = compiled_model(settings, vectorizer.vocabulary_size(), classes, 1)
    ids, new_ids = (ids_of(vectorizer, part, np.arange(len(part))) for part in (texts, new))
    become_svm(settings, model, ids, labels, vectorizer.get_vocabulary())
    return outputs_of(model, new_ids).argmax(axis=1)


if __name__ == "__main__":
    main()
