"""Values of JSON become arrays, or the error of their request."""

import numpy as np
import pytest

from keras_tnattn_serving.errors import RequestError
from keras_tnattn_serving.tensors import to_array

STRINGS = np.dtype(object)


def test_strings_may_be_base64():
    array = to_array([["é", {"b64": "/wA="}]], STRINGS)
    assert array.tolist() == [["é".encode(), b"\xff\x00"]]


@pytest.mark.parametrize("text", ["/wA", "_wA=", "/wA=\n", "é"])
def test_what_is_no_base64_is_refused(text):
    with pytest.raises(RequestError, match="Unable to base64 decode"):
        to_array([{"b64": text}], STRINGS)


def test_lists_are_nested_up_to_the_maximum():
    value = [[[1.0, 2.0]]]
    assert to_array(value, np.dtype("float32"), max_rank=3).shape == (1, 1, 2)
    with pytest.raises(RequestError, match="unexpected level: expected < 2"):
        to_array(value, np.dtype("float32"), max_rank=2)
