"""`python -m keras_tnattn_train COMMAND ...`, the same as `keras-tnattn COMMAND ...`."""

import sys

from keras_tnattn_train.cli import main

if __name__ == "__main__":
    sys.exit(main())
