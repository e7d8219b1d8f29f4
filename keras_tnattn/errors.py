"""What errors of Keras and its backends say in the end."""

import re


def cause_of(error: Exception) -> str:
    """Returns what failed in the end, without the configs, arguments and colors that Keras adds."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    text = re.split(r"(?:Exception|Error) encountered(?: during [a-z]+)?: ", text)[-1]
    text = re.sub(r"Exception encountered when calling [^\n]*\n\n", "", text)
    text = re.sub(r"(Invalid input shape for input) .*? (with name)", r"\1 \2", text, flags=re.S)
    text = text.partition("\n\nArguments received by")[0].partition("Full object config")[0]
    # "Example error message for object <...>:" is followed by the cause.
    paragraphs = text.strip().split("\n\n")
    text = " ".join(paragraphs[: 2 if paragraphs[0].endswith(":") else 1])
    return " ".join(text.split())[:500]
