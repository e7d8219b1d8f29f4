"""Requests and what a server has to answer, both protocols.

`python tests/support/serving_table.py --url http://127.0.0.1:8501` asks any server that serves the
models of `plain_models`, which `--write FOLDER` makes; `--protocol tensorflow-serving` leaves out
what only TensorFlow Serving's peers here offer, so that it can be pointed at TensorFlow Serving
itself.
"""

import argparse
import base64
import dataclasses
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
        name: What it shows.
        protocol: Whose rule it is; `OWN` for what neither protocol says.
        request: Method and path.
        body: Sent as it is if `bytes`, else as JSON; `None`: none.
        expected: The expected JSON, a function from it to whether it is right, or a text that has
            to be in the answer `{"error": "..."}`.
        code: The expected status. Defaults to 200, or 400 for an error.
    """

    name: str
    protocol: str
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
INFER, INFER_SUMS, INFER_BYTES = (f"POST /v2/models/{n}/infer" for n in ("double", "sums", "bytes"))
ROWS = [{"a": [1, 2], "b": 3}, {"a": [0.5, 0], "b": -1}]
SUMS_OUT = [{"product": [3.0, 6.0], "total": 6.0}, {"product": [-0.5, 0.0], "total": -0.5}]
X12 = tensor("x", [1, 2], "FP32", [1, 2])
DEEP = b'{"instances":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

CASES = [
    # TensorFlow Serving: states and metadata
    Case("status", TFS, "GET /v1/models/double", None, available("1")),
    Case("status of a version", TFS, "GET /v1/models/double/versions/1", None, available("1")),
    Case("status of an unknown model", TFS, "GET /v1/models/nobody", None, "nobody", 404),
    Case("status of an unknown version", TFS, "GET /v1/models/double/versions/7", None, "7", 404),
    Case(
        "metadata",
        TFS,
        "GET /v1/models/sums/metadata",
        None,
        lambda a: (
            a["model_spec"] == {"name": "sums", "signature_name": "", "version": "1"}
            and a["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]["a"][
                "dtype"
            ]
            == "DT_FLOAT"
        ),
    ),
    Case(
        "shapes in the metadata",
        TFS,
        "GET /v1/models/sums/versions/1/metadata",
        None,
        lambda a: (
            [
                d["size"]
                for d in a["metadata"]["signature_def"]["signature_def"]["serving_default"][
                    "inputs"
                ]["a"]["tensor_shape"]["dim"]
            ]
            == ["-1", "2"]
        ),
    ),
    Case(
        "metadata of an unknown model", TFS, "GET /v1/models/nobody/metadata", None, "nobody", 404
    ),
    Case(
        "all models",
        OWN,
        "GET /v1/models",
        None,
        lambda a: {"double", "sums"} <= {m["name"] for m in a["models"]},
    ),
    # rows
    Case(
        "rows",
        TFS,
        DOUBLE,
        {"instances": [[1, 2], [3.5, -4]]},
        {"predictions": [[2.0, 4.0], [7.0, -8.0]]},
    ),
    Case(
        "rows as objects",
        TFS,
        DOUBLE,
        {"instances": [{"x": [1, 2]}]},
        {"predictions": [[2.0, 4.0]]},
    ),
    Case(
        "a version",
        TFS,
        "POST /v1/models/double/versions/1:predict",
        {"instances": [[1, 2]]},
        {"predictions": [[2.0, 4.0]]},
    ),
    Case(
        "the signature by name",
        TFS,
        DOUBLE,
        {"signature_name": "serving_default", "instances": [[1, 2]]},
        {"predictions": [[2.0, 4.0]]},
    ),
    Case(
        "another signature",
        TFS,
        DOUBLE,
        {"signature_name": "negative", "instances": [[1, 2]]},
        {"predictions": [[-1.0, -2.0]]},
    ),
    Case("several inputs and outputs", TFS, SUMS, {"instances": ROWS}, {"predictions": SUMS_OUT}),
    Case("fewest digits", TFS, DOUBLE, {"instances": [[0.1, 0.2]]}, {"predictions": [[0.2, 0.4]]}),
    Case(
        "many rows",
        TFS,
        DOUBLE,
        {"instances": [[i, 0] for i in range(100)]},
        {"predictions": [[2.0 * i, 0.0] for i in range(100)]},
    ),
    Case(
        "other keys are ignored",
        TFS,
        DOUBLE,
        {"instances": [[1, 2]], "comment": "hello"},
        {"predictions": [[2.0, 4.0]]},
    ),
    # columns
    Case(
        "columns", TFS, DOUBLE, {"inputs": [[1, 2], [3, 4]]}, {"outputs": [[2.0, 4.0], [6.0, 8.0]]}
    ),
    Case("columns by name", TFS, DOUBLE, {"inputs": {"x": [[1, 2]]}}, {"outputs": [[2.0, 4.0]]}),
    Case(
        "several columns",
        TFS,
        SUMS,
        {"inputs": {"a": [[1, 2], [0.5, 0]], "b": [3, -1]}},
        {"outputs": {"product": [[3.0, 6.0], [-0.5, 0.0]], "total": [6.0, -0.5]}},
    ),
    # strings
    Case(
        "text",
        TFS,
        NAMED,
        {"instances": ["añb", ""]},
        {"predictions": [{"length": 4, "text": "añb"}, {"length": 0, "text": ""}]},
    ),
    Case(
        "text in base64",
        TFS,
        NAMED,
        {"instances": [b64("ñ".encode())]},
        {"predictions": [{"length": 2, "text": "ñ"}]},
    ),
    Case(
        "an object with text in base64",
        TFS,
        NAMED,
        {"instances": [{"text": b64(b"abc")}]},
        {"predictions": [{"length": 3, "text": "abc"}]},
    ),
    Case(
        "bytes come back in base64",
        TFS,
        BYTES,
        {"instances": [b64(b"\xff\x00")]},
        {"predictions": [b64(b"\xff\x00")]},
    ),
    Case(
        "bytes in a column",
        TFS,
        BYTES,
        {"inputs": {"data": [b64(b"\xfe")]}},
        {"outputs": [b64(b"\xfe")]},
    ),
    Case("a single value in base64", TFS, BYTES, {"inputs": [b64(b"q")]}, {"outputs": [b64(b"q")]}),
    # numbers that are not finite
    Case(
        "NaN",
        TFS,
        DOUBLE,
        b'{"instances": [[NaN, 1]]}',
        lambda a: math.isnan(a["predictions"][0][0]),
    ),
    Case(
        "infinity",
        TFS,
        DOUBLE,
        b'{"instances": [[-Infinity, 1]]}',
        {"predictions": [[-math.inf, 2.0]]},
    ),
    # errors
    Case(
        "unknown model",
        TFS,
        "POST /v1/models/nobody:predict",
        {"instances": [1]},
        "Servable not found for request: Latest(nobody)",
        404,
    ),
    Case(
        "unknown version",
        TFS,
        "POST /v1/models/double/versions/9:predict",
        {"instances": [[1, 2]]},
        "Servable not found for request: Specific(double, 9)",
        404,
    ),
    Case(
        "unknown signature",
        TFS,
        DOUBLE,
        {"signature_name": "nothing", "instances": [[1, 2]]},
        "nothing",
    ),
    Case(
        "a signature that is no text",
        TFS,
        DOUBLE,
        {"signature_name": 3, "instances": [[1, 2]]},
        "signature_name",
    ),
    Case("no JSON", TFS, DOUBLE, b"instances", "JSON Parse error"),
    Case("empty body", TFS, DOUBLE, b"", "JSON Parse error"),
    Case("JSON that breaks off", TFS, DOUBLE, b'{"instances": [[1, 2]', "JSON Parse error"),
    Case("no object", TFS, DOUBLE, [1, 2], "Is not object"),
    Case("no inputs", TFS, DOUBLE, {}, "Missing 'inputs' or 'instances' key"),
    Case(
        "rows and columns",
        TFS,
        DOUBLE,
        {"instances": [[1, 2]], "inputs": [[1, 2]]},
        "expecting only one of 'inputs' or 'instances'",
    ),
    Case("rows that are no list", TFS, DOUBLE, {"instances": 3}, "list/array"),
    Case("no rows", TFS, DOUBLE, {"instances": []}, "No values in"),
    Case("text for a number", TFS, DOUBLE, {"instances": [["1", 2]]}, "is not of expected type"),
    Case("null", TFS, DOUBLE, {"instances": [[None, 2]]}, "Null"),
    Case("true for a number", TFS, DOUBLE, {"instances": [[True, 2]]}, ""),
    Case(
        "a fraction for an integer",
        TFS,
        SUMS,
        {"instances": [{"a": [1, 2], "b": 1.5}]},
        "is not of expected type",
    ),
    Case("an integer out of range", TFS, SUMS, {"instances": [{"a": [1, 2], "b": 2**40}]}, ""),
    Case("a number for text", TFS, NAMED, {"instances": [3]}, "is not of expected type: string"),
    Case("ragged rows", TFS, DOUBLE, {"instances": [[1, 2], [3]]}, "size"),
    Case("too deep a row", TFS, DOUBLE, {"instances": [[[1, 2]]]}, ""),
    Case("too short a row", TFS, DOUBLE, {"instances": [[1]]}, ""),
    Case("a missing input", TFS, SUMS, {"instances": [{"a": [1, 2]}]}, "keys must be equal to: a"),
    Case("an input too many", TFS, SUMS, {"instances": [{"a": [1, 2], "b": 1, "c": 1}]}, ""),
    Case("a list for several inputs", TFS, SUMS, {"instances": [[1, 2]]}, "list of objects"),
    Case(
        "objects and values",
        TFS,
        DOUBLE,
        {"instances": [{"x": [1, 2]}, [1, 2]]},
        "Expecting object but got",
    ),
    Case("a missing column", TFS, SUMS, {"inputs": {"a": [[1, 2]]}}, "Missing named input: b"),
    Case("a list for several columns", TFS, SUMS, {"inputs": [[1, 2]]}, "object"),
    Case("columns of different length", TFS, SUMS, {"inputs": {"a": [[1, 2]], "b": [1, 2]}}, ""),
    Case("broken base64", TFS, BYTES, {"instances": [{"b64": "!"}]}, "base64"),
    Case(
        "an object that is no base64", TFS, BYTES, {"instances": [{"data": {"b65": "x"}}]}, "base64"
    ),
    Case(
        "a value that the graph refuses",
        TFS,
        DOUBLE,
        {"signature_name": "positive", "instances": [[-1, 2]]},
        "not positive",
    ),
    Case(
        "an unknown method",
        TFS,
        "POST /v1/models/double:explain",
        {"instances": [[1, 2]]},
        "Malformed request: POST /v1/models/double:explain",
    ),
    Case("prediction by GET", TFS, "GET /v1/models/double:predict", None, "Malformed request: GET"),
    Case("inference by GET", OWN, "GET /v2/models/double/infer", None, "Not Allowed", 405),
    Case("an empty column", OWN, BYTES, {"inputs": []}, "at least one row"),
    Case("invalid UTF-8", OWN, DOUBLE, b'{"instances": ["\xff"]}', "JSON Parse error"),
    Case("half a surrogate pair", OWN, NAMED, b'{"instances": ["\\ud800"]}', "Unicode"),
    Case("a hundred thousand lists deep", OWN, DOUBLE, DEEP, "JSON Parse error"),
    Case(
        "a number of 10,000 digits",
        OWN,
        DOUBLE,
        b'{"instances": [[' + b"9" * 10_000 + b", 1]]}",
        "",
    ),
    Case("10,000 rows", OWN, DOUBLE, {"instances": [[1, 2]] * 10_000}, "10000 rows", 413),
    Case("a text of 1 MB", OWN, NAMED, {"instances": ["x" * 1_000_000]}, "1000000", 413),
    Case("a body of 5 MB", OWN, NAMED, {"instances": ["x" * 5_000_000]}, "a body of", 413),
    Case("a path out of the folder", OWN, "GET /v1/models/..%2f..%2fetc", None, ""),
    Case(
        "a version out of the folder",
        OWN,
        "POST /v1/models/double/versions/..:predict",
        {"instances": [[1, 2]]},
        "",
    ),
    Case("an unknown path", OWN, "GET /nothing", None, "", 404),
    # the Open Inference Protocol v2
    Case("live", V2, "GET /v2/health/live"),
    Case("ready", V2, "GET /v2/health/ready"),
    Case(
        "the server", V2, "GET /v2", None, lambda a: {"name", "version", "extensions"} <= a.keys()
    ),
    Case(
        "a model's metadata",
        V2,
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
    Case(
        "a version's metadata",
        V2,
        "GET /v2/models/sums/versions/1",
        None,
        lambda a: [o["name"] for o in a["outputs"]] == ["product", "total"],
    ),
    Case("a model is ready", V2, "GET /v2/models/sums/ready"),
    Case("a version is ready", V2, "GET /v2/models/sums/versions/1/ready"),
    Case("an unknown model is not ready", V2, "GET /v2/models/nobody/ready", None, "", 404),
    Case(
        "infer",
        V2,
        INFER,
        {"id": "a1", "inputs": [X12]},
        {
            "model_name": "double",
            "model_version": "1",
            "id": "a1",
            "outputs": [tensor("y", [1, 2], "FP32", [2.0, 4.0])],
        },
    ),
    Case("infer without id", V2, INFER, {"inputs": [X12]}, lambda a: "id" not in a),
    Case(
        "infer with a version",
        V2,
        "POST /v2/models/double/versions/1/infer",
        {"inputs": [X12]},
        lambda a: a["model_version"] == "1",
    ),
    Case(
        "nested data",
        V2,
        INFER,
        {"inputs": [tensor("x", [2, 2], "FP32", [[1, 2], [3, 4]])]},
        lambda a: a["outputs"] == [tensor("y", [2, 2], "FP32", [2.0, 4.0, 6.0, 8.0])],
    ),
    Case(
        "several tensors",
        V2,
        INFER_SUMS,
        {"inputs": [tensor("b", [1], "INT32", [3]), tensor("a", [1, 2], "FP32", [1, 2])]},
        lambda a: (
            a["outputs"]
            == [tensor("product", [1, 2], "FP32", [3.0, 6.0]), tensor("total", [1], "FP32", [6.0])]
        ),
    ),
    Case(
        "one of the outputs",
        V2,
        INFER_SUMS,
        {
            "inputs": [tensor("b", [1], "INT32", [3]), tensor("a", [1, 2], "FP32", [1, 2])],
            "outputs": [{"name": "total"}],
        },
        lambda a: [o["name"] for o in a["outputs"]] == ["total"],
    ),
    Case(
        "BYTES",
        V2,
        "POST /v2/models/named/infer",
        {"inputs": [tensor("text", [2], "BYTES", ["añb", ""])]},
        lambda a: (
            a["outputs"]
            == [tensor("length", [2], "INT32", [4, 0]), tensor("text", [2], "BYTES", ["añb", ""])]
        ),
    ),
    Case(
        "a signature as a parameter",
        OWN,
        INFER,
        {"inputs": [X12], "parameters": {"signature_name": "negative"}},
        lambda a: a["outputs"][0]["data"] == [-1.0, -2.0],
    ),
    Case(
        "infer with an unknown model",
        V2,
        "POST /v2/models/nobody/infer",
        {"inputs": [X12]},
        "",
        404,
    ),
    Case(
        "infer with an unknown version",
        V2,
        "POST /v2/models/double/versions/9/infer",
        {"inputs": [X12]},
        "",
        404,
    ),
    Case("another datatype", V2, INFER, {"inputs": [tensor("x", [1, 2], "INT32", [1, 2])]}, "FP32"),
    Case(
        "data that do not fill the shape",
        V2,
        INFER,
        {"inputs": [tensor("x", [2, 2], "FP32", [1, 2])]},
        "[2, 2]",
    ),
    Case(
        "a shape that does not fit",
        V2,
        INFER,
        {"inputs": [tensor("x", [2, 1], "FP32", [1, 2])]},
        "",
    ),
    Case(
        "a negative shape", V2, INFER, {"inputs": [tensor("x", [-1, 2], "FP32", [1, 2])]}, "shape"
    ),
    Case(
        "a shape that is no list",
        V2,
        INFER,
        {"inputs": [{"name": "x", "shape": 3, "datatype": "FP32", "data": [1, 2]}]},
        "Expected the shape of input x to be a list of sizes",
    ),
    Case("an unknown input", V2, INFER, {"inputs": [tensor("z", [1, 2], "FP32", [1, 2])]}, "z"),
    Case("a missing tensor", V2, INFER_SUMS, {"inputs": [tensor("b", [1], "INT32", [3])]}, "a"),
    Case("an unknown output", V2, INFER, {"inputs": [X12], "outputs": [{"name": "z"}]}, "z"),
    Case("no tensors", V2, INFER, {}, "inputs"),
    Case("tensors that are no objects", V2, INFER, {"inputs": [1]}, ""),
    Case("infer without JSON", V2, INFER, b"{", ""),
    Case("metrics", OWN, "GET /metrics"),
    Case("metrics where TensorFlow Serving has them", OWN, "GET /monitoring/prometheus/metrics"),
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
