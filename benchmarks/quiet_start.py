"""Starts Keras and TensorFlow without their messages; import this module before them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from keras_tnattn_train.processes.backend import start_backend

start_backend()
