"""The commands of `keras-tnattn`: training, evaluation, pictures. Not part of the public API."""
