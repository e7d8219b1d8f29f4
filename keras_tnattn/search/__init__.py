"""Beam search, with a key-value cache if the attention supports one."""

from keras_tnattn.search.beam_search import BeamSearch, Hypotheses

__all__ = ["BeamSearch", "Hypotheses"]
