"""The one exception that the command line turns into a line without a traceback."""


class InputError(ValueError):
    """What the user gave cannot be used; the message says what was expected instead."""
