"""A builder frees what the last model does not need."""

import keras
import numpy as np

from keras_small.asked.data import Data
from keras_small.building.builder import Builder
from keras_small.planning.options import Options
from keras_small.planning.plan import make_plan
from keras_small.survey.inventory import Inventory
from keras_small.survey.survey import survey_of


def test_the_last_model_frees_candidates_inputs_and_factors():
    layers = [keras.layers.Embedding(64, 64), keras.layers.Dense(64)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
    ids = np.arange(64).reshape(16, 4)
    survey = survey_of(Inventory.of(model), Data(ids), None, lambda layer: True)
    plan = make_plan(survey, Options(bits=4))
    assert any(note.factors is not None for note in plan.statistics.values())
    builder = Builder(plan, survey.comparison)
    choice = {path: group[-1] for path, group in plan.choices.items()}
    builder.finish(choice, builder.replacements(choice))
    assert not plan.choices
    assert all(note.call is None and note.factors is None for note in plan.statistics.values())
