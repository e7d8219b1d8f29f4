"""Files of models whose numbers take as few bytes as their frequencies allow.

`files.encode_model` makes the content of a `.tnz` file, which `keras_small.load` loads. Both need
the extra `coded`.
"""
