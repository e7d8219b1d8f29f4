"""`python -m keras_tnattn.serving`, which becomes `python -m keras_tnattn_serving`.

By the time that this is called, `keras_tnattn` has imported Keras and its backend, which a server
may not need: a new program without them takes the place of this process.
"""

import os
import sys

if __name__ == "__main__":
    names = {"keras_tnattn.serving": "keras_tnattn_serving"}
    os.execv(sys.executable, [names.get(word, word) for word in sys.orig_argv])
