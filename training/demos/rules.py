"""The demo of this name, as `python -m keras_tnattn_train.demos.rules`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("keras_tnattn_train.demos.rules", run_name="__main__")
