"""Searches: beams, greedy and sampled texts, with a state of earlier tokens where there is one."""

from keras_tnattn.search.beam_search import BeamSearch
from keras_tnattn.search.generator import Generator
from keras_tnattn.search.steps import Start, Steps

__all__ = ["BeamSearch", "Generator", "Start", "Steps"]
