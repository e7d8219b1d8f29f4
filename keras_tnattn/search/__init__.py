"""Beam search, with a key-value cache where the attention allows one."""

from keras_tnattn.search.beam_search import BeamSearch, Hypotheses

__all__ = ["BeamSearch", "Hypotheses"]
