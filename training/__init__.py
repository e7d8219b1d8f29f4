"""The commands by their paths in a checkout: `python training/train.py`, `-m training.train`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where keras_tnattn_train is
