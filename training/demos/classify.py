"""The demo of this name, as `python -m keras_tnattn_train.demos.classify`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("keras_tnattn_train.demos.classify", run_name="__main__")
