"""The command line: `python -m training.launch -n 2 -- training/train.py ...`."""

import sys

from training.engine.launching import main

if __name__ == "__main__":
    sys.exit(main())
