"""The command line: `python training/launch.py -n 2 -- training/train.py ...`, or with `-m`."""

import sys
from pathlib import Path

if not __package__:
    # Run as a script: put the project's folder first on the import path instead of training/.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from training.engine.launching import main

if __name__ == "__main__":
    sys.exit(main())
