"""Recall: long texts whose every question has a known answer, which needs order and distance.

Ids are 1 for a question, 2 to 9 for the eight letters, and above for words without a meaning. A
text consists of sections of 64 tokens. Each section has one question, one letter 1 to 8 tokens
before it and another letter 1 to 8 tokens after it, at random places. The answer is the last letter
before the question.

What a reader that ignores something scores at best, in the limit of long texts: one that sees only
the question 1 / 8; one that also ignores the distance hardly more, because all letters are equally
frequent in a text; one that ignores the order 1 / 2, because the letters before and after have the
same distances.
"""

import numpy as np

QUESTION, FIRST_LETTER, LETTERS, WORDS = 1, 2, 8, 32
VOCABULARY_SIZE = FIRST_LETTER + LETTERS + WORDS
SECTION, REACH = 64, 8


def recall_texts(
    count: int, length: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws texts.

    Returns:
        Ids `(B, L)`; labels `(B, L)`, the letter from 0 to 7 that is the answer to a question and 0
        elsewhere; weights `(B, L)`, 1 at questions and 0 elsewhere.

    Raises:
        ValueError: If the length is not a positive multiple of 64.
    """
    if length < SECTION or length % SECTION:
        raise ValueError(f"Expected a positive multiple of {SECTION}. Received: length={length}")
    shape = (count * length // SECTION, SECTION)
    rows = np.arange(len(ids := rng.integers(FIRST_LETTER + LETTERS, VOCABULARY_SIZE, shape)))
    # Far enough from the start that letters of other sections are further away than this one's.
    question = rng.integers(SECTION // 2 - REACH, SECTION - REACH, len(rows))
    answer = rng.integers(0, LETTERS, len(rows))
    other = (answer + rng.integers(1, LETTERS, len(rows))) % LETTERS
    ids[rows, question] = QUESTION
    ids[rows, question - rng.integers(1, REACH + 1, len(rows))] = FIRST_LETTER + answer
    ids[rows, question + rng.integers(1, REACH + 1, len(rows))] = FIRST_LETTER + other
    labels, weights = np.zeros(shape, "int32"), np.zeros(shape, "float32")
    labels[rows, question], weights[rows, question] = answer, 1
    whole = (count, length)
    return ids.astype("int32").reshape(whole), labels.reshape(whole), weights.reshape(whole)
