"""Requests and what a server has to answer, both protocols.

`python tests/support/serving_table.py --url http://127.0.0.1:8501` asks any server that serves the
models of `plain_models`, which `--write FOLDER` makes; `--protocol tensorflow-serving` leaves out
what only TensorFlow Serving's peers here offer, so that it can be pointed at TensorFlow Serving
itself.
"""

import argparse
import base64
import dataclasses
import functools
import json
import math
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

TFS, V2, OWN = "tensorflow-serving", "open-inference", "own"


@dataclasses.dataclass(frozen=True)
class Case:
    """One request.

    Args:
        protocol: Whose rule it is; `OWN` for what neither protocol says.
        name: What it shows.
        request: Method and path.
        body: Sent as it is if `bytes`, else as JSON; `None`: none.
        expected: The expected JSON, a function from it to whether it is right, or a text that has
            to be in the answer `{"error": "..."}`.
        code: The expected status. Defaults to 200, or 400 for an error.
    """

    protocol: str
    name: str
    request: str
    body: Any = None
    expected: Any = None
    code: int | None = None

    @property
    def status(self) -> int:
        return self.code or (400 if isinstance(self.expected, str) else 200)


def b64(data: bytes) -> dict[str, str]:
    """Binary data in JSON."""
    return {"b64": base64.b64encode(data).decode()}


def tensor(name: str, shape: list[int], datatype: str, data: list) -> dict[str, Any]:
    """An input of the Open Inference Protocol."""
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def rows(*instances: Any) -> dict[str, list]:
    """A request of rows."""
    return {"instances": [*instances]}


def signed(name: Any, *instances: Any) -> dict[str, Any]:
    """A request of rows for a signature."""
    return {"signature_name": name, **rows(*instances)}


def inputs(*tensors: Any) -> dict[str, list]:
    """A request of tensors."""
    return {"inputs": [*tensors]}


def predicted(*outputs: Any) -> dict[str, list]:
    """The answer to a request of rows."""
    return {"predictions": [*outputs]}


def first_input(answer: Any) -> dict[str, Any]:
    """The input `a` in metadata."""
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    return signatures["serving_default"]["inputs"]["a"]


def available(*numbers: str) -> Callable[[Any], bool]:
    """A status in which these versions, and no others, are available."""
    return lambda answer: (
        {
            v["version"]
            for v in answer["model_version_status"]
            if v["state"] == "AVAILABLE"
            and v["status"] == {"error_code": "OK", "error_message": ""}
        }
        == set(numbers)
    )


DOUBLE, SUMS, BYTES, NAMED = (
    f"POST /v1/models/{n}:predict" for n in ("double", "sums", "bytes", "named")
)
DOUBLE_1, DOUBLE_9, DOUBLE_UP = (
    f"POST /v1/models/double/versions/{n}:predict" for n in (1, 9, "..")
)
INFER, INFER_SUMS, INFER_NAMED, INFER_NOBODY, INFER_9 = (
    f"POST /v2/models/{n}/infer" for n in ("double", "sums", "named", "nobody", "double/versions/9")
)
ROWS = [{"a": [1, 2], "b": 3}, {"a": [0.5, 0], "b": -1}]
SUMS_OUT = [{"product": [3.0, 6.0], "total": 6.0}, {"product": [-0.5, 0.0], "total": -0.5}]
X12 = tensor("x", [1, 2], "FP32", [1, 2])
B, A12 = tensor("b", [1], "INT32", [3]), tensor("a", [1, 2], "FP32", [1, 2])
DEEP = b'{"instances":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

tfs, v2, own = (functools.partial(Case, protocol) for protocol in (TFS, V2, OWN))
CASES = [
    # TensorFlow Serving: states and metadata
    tfs("status", "GET /v1/models/double", None, available("1")),
    tfs("status of a version", "GET /v1/models/double/versions/1", None, available("1")),
    tfs("status of an unknown model", "GET /v1/models/nobody", None, "nobody", 404),
    tfs("status of an unknown version", "GET /v1/models/double/versions/7", None, "7", 404),
    tfs(
        "metadata",
        "GET /v1/models/sums/metadata",
        None,
        lambda a: (
            a["model_spec"] == {"name": "sums", "signature_name": "", "version": "1"}
            and first_input(a)["dtype"] == "DT_FLOAT"
        ),
    ),
    tfs(
        "shapes in the metadata",
        "GET /v1/models/sums/versions/1/metadata",
        None,
        lambda a: [d["size"] for d in first_input(a)["tensor_shape"]["dim"]] == ["-1", "2"],
    ),
    tfs("metadata of an unknown model", "GET /v1/models/nobody/metadata", None, "nobody", 404),
    own(
        "all models",
        "GET /v1/models",
        None,
        lambda a: {"double", "sums"} <= {m["name"] for m in a["models"]},
    ),
    # rows
    tfs("rows", DOUBLE, rows([1, 2], [3.5, -4]), predicted([2.0, 4.0], [7.0, -8.0])),
    tfs("rows as objects", DOUBLE, rows({"x": [1, 2]}), predicted([2.0, 4.0])),
    tfs("a version", DOUBLE_1, rows([1, 2]), predicted([2.0, 4.0])),
    tfs("a signature", DOUBLE, signed("serving_default", [1, 2]), predicted([2.0, 4.0])),
    tfs("another signature", DOUBLE, signed("negative", [1, 2]), predicted([-1.0, -2.0])),
    tfs("several inputs and outputs", SUMS, rows(*ROWS), predicted(*SUMS_OUT)),
    tfs("fewest digits", DOUBLE, rows([0.1, 0.2]), predicted([0.2, 0.4])),
    tfs(
        "many rows",
        DOUBLE,
        rows(*([i, 0] for i in range(100))),
        predicted(*([2.0 * i, 0.0] for i in range(100))),
    ),
    tfs("other keys are ignored", DOUBLE, rows([1, 2]) | {"comment": ""}, predicted([2.0, 4.0])),
    # columns
    tfs("columns", DOUBLE, inputs([1, 2], [3, 4]), {"outputs": [[2.0, 4.0], [6.0, 8.0]]}),
    tfs("columns by name", DOUBLE, {"inputs": {"x": [[1, 2]]}}, {"outputs": [[2.0, 4.0]]}),
    tfs(
        "several columns",
        SUMS,
        {"inputs": {"a": [[1, 2], [0.5, 0]], "b": [3, -1]}},
        {"outputs": {"product": [[3.0, 6.0], [-0.5, 0.0]], "total": [6.0, -0.5]}},
    ),
    # strings
    tfs(
        "text",
        NAMED,
        rows("añb", ""),
        predicted({"length": 4, "text": "añb"}, {"length": 0, "text": ""}),
    ),
    tfs("text in base64", NAMED, rows(b64("ñ".encode())), predicted({"length": 2, "text": "ñ"})),
    tfs(
        "an object with text in base64",
        NAMED,
        rows({"text": b64(b"abc")}),
        predicted({"length": 3, "text": "abc"}),
    ),
    tfs("bytes come back in base64", BYTES, rows(b64(b"\xff\x00")), predicted(b64(b"\xff\x00"))),
    tfs("bytes in a column", BYTES, {"inputs": {"data": [b64(b"p")]}}, {"outputs": [b64(b"p")]}),
    tfs("a single value in base64", BYTES, inputs(b64(b"\xfe")), {"outputs": [b64(b"\xfe")]}),
    # numbers that are not finite
    tfs("NaN", DOUBLE, b'{"instances": [[NaN, 1]]}', lambda a: math.isnan(a["predictions"][0][0])),
    tfs("infinity", DOUBLE, b'{"instances": [[-Infinity, 1]]}', predicted([-math.inf, 2.0])),
    # errors
    tfs(
        "unknown model",
        "POST /v1/models/nobody:predict",
        rows(1),
        "Servable not found for request: Latest(nobody)",
        404,
    ),
    tfs(
        "unknown version",
        DOUBLE_9,
        rows([1, 2]),
        "Servable not found for request: Specific(double, 9)",
        404,
    ),
    tfs("unknown signature", DOUBLE, signed("nothing", [1, 2]), "nothing"),
    tfs("a signature that is no text", DOUBLE, signed(3, [1, 2]), "signature_name"),
    tfs("no JSON", DOUBLE, b"instances", "JSON Parse error"),
    tfs("empty body", DOUBLE, b"", "JSON Parse error"),
    tfs("JSON that breaks off", DOUBLE, b'{"instances": [[1, 2]', "JSON Parse error"),
    tfs("no object", DOUBLE, [1, 2], "Is not object"),
    tfs("no inputs", DOUBLE, {}, "Missing 'inputs' or 'instances' key"),
    tfs(
        "rows and columns",
        DOUBLE,
        rows([1, 2]) | inputs([1, 2]),
        "expecting only one of 'inputs' or 'instances'",
    ),
    tfs("rows that are no list", DOUBLE, {"instances": 3}, "list/array"),
    tfs("no rows", DOUBLE, rows(), "No values in"),
    tfs("text for a number", DOUBLE, rows(["1", 2]), "is not of expected type"),
    tfs("null", DOUBLE, rows([None, 2]), "Null"),
    tfs("true for a number", DOUBLE, rows([True, 2]), ""),
    tfs(
        "a fraction for an integer", SUMS, rows({"a": [1, 2], "b": 1.5}), "is not of expected type"
    ),
    tfs("an integer out of range", SUMS, rows({"a": [1, 2], "b": 2**40}), ""),
    tfs("a number for text", NAMED, rows(3), "is not of expected type: string"),
    tfs("ragged rows", DOUBLE, rows([1, 2], [3]), "size"),
    tfs("too deep a row", DOUBLE, rows([[1, 2]]), ""),
    tfs("too short a row", DOUBLE, rows([1]), ""),
    tfs("a missing input", SUMS, rows({"a": [1, 2]}), "keys must be equal to: a"),
    tfs("an input too many", SUMS, rows({"a": [1, 2], "b": 1, "c": 1}), ""),
    tfs("a list for several inputs", SUMS, rows([1, 2]), "list of objects"),
    tfs("objects and values", DOUBLE, rows({"x": [1, 2]}, [1, 2]), "Expecting object but got"),
    tfs("a missing column", SUMS, {"inputs": {"a": [[1, 2]]}}, "Missing named input: b"),
    tfs("a list for several columns", SUMS, inputs([1, 2]), "object"),
    tfs("columns of different length", SUMS, {"inputs": {"a": [[1, 2]], "b": [1, 2]}}, ""),
    tfs("broken base64", BYTES, rows({"b64": "!"}), "base64"),
    tfs("an object that is no base64", BYTES, rows({"data": {"b65": "x"}}), "base64"),
    tfs("a value that the graph refuses", DOUBLE, signed("positive", [-1, 2]), "not positive"),
    tfs(
        "an unknown method",
        "POST /v1/models/double:explain",
        rows([1, 2]),
        "Malformed request: POST /v1/models/double:explain",
    ),
    tfs("prediction by GET", "GET /v1/models/double:predict", None, "Malformed request: GET"),
    own("inference by GET", "GET /v2/models/double/infer", None, "Not Allowed", 405),
    own(
        "an unknown signature names the others",
        DOUBLE,
        signed("explain", [1, 2]),
        "The model has negative, positive, serving_default",
    ),
    own("an empty column", BYTES, inputs(), "at least one row"),
    own("invalid UTF-8", DOUBLE, b'{"instances": ["\xff"]}', "JSON Parse error"),
    own("half a surrogate pair", NAMED, b'{"instances": ["\\ud800"]}', "Unicode"),
    own("a hundred thousand lists deep", DOUBLE, DEEP, "JSON Parse error"),
    own("a number of 10,000 digits", DOUBLE, b'{"instances": [[' + b"9" * 10_000 + b", 1]]}", ""),
    own("10,000 rows", DOUBLE, rows(*[[1, 2]] * 10_000), "10000 rows", 413),
    own("a text of 1 MB", NAMED, rows("x" * 1_000_000), "1000000", 413),
    own("a body of 5 MB", NAMED, rows("x" * 5_000_000), "a body of", 413),
    own("a path out of the folder", "GET /v1/models/..%2f..%2fetc", None, ""),
    own("a version out of the folder", DOUBLE_UP, rows([1, 2]), ""),
    own("an unknown path", "GET /nothing", None, "", 404),
    # the Open Inference Protocol v2
    v2("live", "GET /v2/health/live"),
    v2("ready", "GET /v2/health/ready"),
    v2("the server", "GET /v2", None, lambda a: {"name", "version", "extensions"} <= a.keys()),
    v2(
        "a model's metadata",
        "GET /v2/models/sums",
        None,
        lambda a: (
            a["name"] == "sums"
            and a["versions"] == ["1"]
            and a["inputs"]
            == [
                {"name": "a", "datatype": "FP32", "shape": [-1, 2]},
                {"name": "b", "datatype": "INT32", "shape": [-1]},
            ]
        ),
    ),
    v2(
        "a version's metadata",
        "GET /v2/models/sums/versions/1",
        None,
        lambda a: [o["name"] for o in a["outputs"]] == ["product", "total"],
    ),
    v2("a model is ready", "GET /v2/models/sums/ready"),
    v2("a version is ready", "GET /v2/models/sums/versions/1/ready"),
    v2("an unknown model is not ready", "GET /v2/models/nobody/ready", None, "", 404),
    v2(
        "infer",
        INFER,
        inputs(X12) | {"id": "a1"},
        {
            "model_name": "double",
            "model_version": "1",
            "id": "a1",
            "outputs": [tensor("y", [1, 2], "FP32", [2.0, 4.0])],
        },
    ),
    v2("infer without id", INFER, inputs(X12), lambda a: "id" not in a),
    v2(
        "infer with a version",
        "POST /v2/models/double/versions/1/infer",
        inputs(X12),
        lambda a: a["model_version"] == "1",
    ),
    v2(
        "nested data",
        INFER,
        inputs(tensor("x", [2, 2], "FP32", [[1, 2], [3, 4]])),
        lambda a: a["outputs"] == [tensor("y", [2, 2], "FP32", [2.0, 4.0, 6.0, 8.0])],
    ),
    v2(
        "several tensors",
        INFER_SUMS,
        inputs(B, A12),
        lambda a: (
            a["outputs"]
            == [tensor("product", [1, 2], "FP32", [3.0, 6.0]), tensor("total", [1], "FP32", [6.0])]
        ),
    ),
    v2(
        "one of the outputs",
        INFER_SUMS,
        inputs(B, A12) | {"outputs": [{"name": "total"}]},
        lambda a: [o["name"] for o in a["outputs"]] == ["total"],
    ),
    v2(
        "BYTES",
        INFER_NAMED,
        inputs(tensor("text", [2], "BYTES", ["añb", ""])),
        lambda a: (
            a["outputs"]
            == [tensor("length", [2], "INT32", [4, 0]), tensor("text", [2], "BYTES", ["añb", ""])]
        ),
    ),
    own(
        "a signature as a parameter",
        INFER,
        inputs(X12) | {"parameters": {"signature_name": "negative"}},
        lambda a: a["outputs"][0]["data"] == [-1.0, -2.0],
    ),
    v2("infer with an unknown model", INFER_NOBODY, inputs(X12), "", 404),
    v2("infer with an unknown version", INFER_9, inputs(X12), "", 404),
    v2("another datatype", INFER, inputs({**X12, "datatype": "INT32"}), "FP32"),
    v2("data that do not fill the shape", INFER, inputs({**X12, "shape": [2, 2]}), "[2, 2]"),
    v2("a shape that does not fit", INFER, inputs({**X12, "shape": [2, 1]}), ""),
    v2("a negative shape", INFER, inputs({**X12, "shape": [-1, 2]}), "shape"),
    v2(
        "a shape that is no list",
        INFER,
        inputs({**X12, "shape": 3}),
        "shape of input x to be a list",
    ),
    v2("an unknown input", INFER, inputs({**X12, "name": "z"}), "z"),
    v2("a missing tensor", INFER_SUMS, inputs(B), "a"),
    v2("an unknown output", INFER, inputs(X12) | {"outputs": [{"name": "z"}]}, "z"),
    v2("no tensors", INFER, {}, "inputs"),
    v2("tensors that are no objects", INFER, inputs(1), ""),
    v2("infer without JSON", INFER, b"{", ""),
    own("metrics", "GET /metrics"),
    own("metrics where TensorFlow Serving has them", "GET /monitoring/prometheus/metrics"),
]


def ask(url: str, case: Case, seconds: float = 60) -> tuple[int, bytes]:
    """Sends the request of a case; returns the status and the body."""
    method, path = case.request.split(" ")
    body = case.body
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url + path, data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read()


def fault(url: str, case: Case) -> str | None:
    """Returns what is wrong with the answer to a case, or `None`."""
    code, body = ask(url, case)
    if code != case.status:
        return f"{code} instead of {case.status}: {body[:200]!r}"
    if case.expected is None:
        return None
    answer = json.loads(body)
    if isinstance(case.expected, str):
        right = answer.keys() == {"error"} and case.expected in answer["error"]
    else:
        right = case.expected(answer) if callable(case.expected) else answer == case.expected
    return None if right else f"another body: {body[:300]!r}"


def save_signatures(path: Path, functions: dict[str, tuple]) -> None:
    """Saves for the name of each signature a function and the specs of its inputs."""
    import tensorflow as tf

    signatures = {
        key: tf.function(function).get_concrete_function(*specs)
        for key, (function, *specs) in functions.items()
    }
    tf.saved_model.save(tf.Module(), str(path), signatures)


def plain_models(folder: Path) -> Path:
    """Writes the models that the table asks: graphs of TensorFlow alone."""
    import tensorflow as tf

    def write(name: str, **functions: Any) -> None:
        save_signatures(folder / name / "1", functions)

    def positive(x):
        check = tf.debugging.assert_positive(x, "not positive")
        with tf.control_dependencies([check]):
            return {"y": tf.identity(x)}

    x = tf.TensorSpec([None, 2], tf.float32, "x")
    text = tf.TensorSpec([None], tf.string, "text")
    write(
        "double",
        serving_default=(lambda x: {"y": 2 * x}, x),
        negative=(lambda x: {"y": -x}, x),
        positive=(positive, x),
    )
    write(
        "sums",
        serving_default=(
            lambda a, b: {
                "total": tf.reduce_sum(a, 1) + tf.cast(b, tf.float32),
                "product": a * tf.cast(b, tf.float32)[:, None],
            },
            tf.TensorSpec([None, 2], tf.float32, "a"),
            tf.TensorSpec([None], tf.int32, "b"),
        ),
    )
    write(
        "bytes",
        serving_default=(
            lambda data: {"copy_bytes": tf.identity(data)},
            tf.TensorSpec([None], tf.string, "data"),
        ),
    )
    write(
        "named",
        serving_default=(
            lambda text: {"text": tf.identity(text), "length": tf.strings.length(text)},
            text,
        ),
    )
    return folder


def main() -> int:
    """Asks a server; returns how many answers were wrong, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="the server, such as http://127.0.0.1:8501")
    parser.add_argument("--protocol", choices=(TFS, V2), help="leave out what others ask for")
    parser.add_argument("--write", type=Path, help="write the models to this folder and end")
    options = parser.parse_args()
    if options.write:
        print(f"wrote the models below {plain_models(options.write)}")
        return 0
    cases = [case for case in CASES if options.protocol in (None, case.protocol)]
    wrong = 0
    for case in cases:
        found = fault(options.url, case)
        wrong += found is not None
        print(
            f"{'wrong' if found else 'right'}  {case.status}  {case.name}"
            + (f": {found}" if found else "")
        )
    print(f"{len(cases) - wrong} of {len(cases)} right")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
