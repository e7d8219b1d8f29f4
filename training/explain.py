"""Shows what a run's attention does, as `keras-tnattn explain`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # keras_tnattn of this checkout

from keras_tnattn_train.cli import program_main

if __name__ == "__main__":
    sys.exit(program_main("explain"))
