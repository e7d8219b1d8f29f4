"""TensorFlow Serving's REST API: `/v1/models/...`.

Where a request is at fault, the messages follow those of TensorFlow Serving.
"""

import re
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.routing import Route

from keras_tnattn_serving import answers
from keras_tnattn_serving.errors import RequestError
from keras_tnattn_serving.inference import Inference
from keras_tnattn_serving.repository import Version
from keras_tnattn_serving.responses import json_response
from keras_tnattn_serving.servable import Signature
from keras_tnattn_serving.tensors import to_array

Arrays = dict[str, np.ndarray]


class _BeforeColon(StringConvertor):
    """A part of a path up to the colon before a method, as in `NAME:predict`."""

    regex = "[^/:]+"


register_url_convertor("before_colon", _BeforeColon())
_MODEL = "/v1/models/{name:before_colon}"
_VERSION = _MODEL + "/versions/{version:before_colon}"


def routes(inference: Inference) -> APIRouter:
    """Returns the routes that tell about models."""
    router = APIRouter()
    repository = inference.repository

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        names = repository.names()
        return {"models": [{"name": name, **_status(repository.versions(name))} for name in names]}

    @router.get(_VERSION + "/metadata")
    @router.get(_MODEL + "/metadata")
    async def metadata(name: str, version: str | None = None) -> dict[str, Any]:
        with repository.use(name, _number(version)) as used:
            specification = {"name": name, "signature_name": "", "version": str(used.number)}
            about: dict[str, Any] = {"signature_def": {"signature_def": used.servable.metadata}}
            if "labels" in used.servable.card:  # what `probabilities` are of, in their order
                about["labels"] = used.servable.card["labels"]
            return {"model_spec": specification, "metadata": about}

    @router.get(_VERSION + "/card")
    @router.get(_MODEL + "/card")
    async def card(name: str, version: str | None = None) -> Response:
        with repository.use(name, _number(version)) as used:
            return json_response({**used.servable.card, "name": name, "version": used.number})

    @router.get(_VERSION)
    @router.get(_MODEL)
    async def status(name: str, version: str | None = None) -> dict[str, Any]:
        versions = repository.versions(name)
        number = _number(version)
        if not versions:
            raise RequestError(f"Could not find any versions of model {name}", 404)
        if number is not None:
            versions = [v for v in versions if v.number == number]
            if not versions:
                raise RequestError(f"Could not find version {number} of model {name}", 404)
        return _status(versions)

    return router


def malformed(method: str, path: str) -> Response:
    """Returns the answer for a path that does not exist, or not with this method."""
    return json_response({"error": f"Malformed request: {method} {path}"}, 400)


def inference_routes(inference: Inference) -> list[Route]:
    """Returns the routes that compute."""

    async def predict(request: Request) -> Response:
        name, version = request.path_params["name"], request.path_params.get("version")
        number = _number(version)
        inference.admit(name, number)
        record, parsed = await inference.parse(request)
        with inference.repository.use(name, number) as used:
            record |= {"model": name, "version": used.number}
            signature = inference.signature(used, parsed.get("signature_name", ""))
            by_rows, arrays = await inference.convert(request, _inputs, signature, parsed)
            outputs = await inference.run(request, used, signature, arrays)
        if by_rows:
            _check_rows(outputs)
        return await inference.answer(outputs, answers.rows if by_rows else answers.columns)

    return [Route(path + ":predict", predict, methods=["POST"]) for path in (_VERSION, _MODEL)]


def _number(version: str | None) -> int | None:
    if version is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", version):
        raise RequestError(f"Failed to convert version: {version[:40]} to numeric.")
    return int(version)


def _status(versions: list[Version]) -> dict[str, Any]:
    return {
        "model_version_status": [
            {
                "version": str(version.number),
                "state": version.state.name,
                "status": {
                    "error_code": version.error_code,
                    "error_message": version.error_message,
                },
            }
            for version in versions
        ]
    }


def _inputs(signature: Signature, parsed: dict[str, Any]) -> tuple[bool, Arrays]:
    """Returns whether the request sends rows rather than columns, and the array of each input."""
    if "instances" in parsed and "inputs" in parsed:
        raise RequestError("Not formatted correctly: expecting only one of 'inputs' or 'instances'")
    if "instances" in parsed:
        return True, _from_rows(signature, parsed["instances"])
    if "inputs" in parsed:
        return False, _from_columns(signature, parsed["inputs"])
    raise RequestError("Missing 'inputs' or 'instances' key")


def _from_rows(signature: Signature, instances: Any) -> Arrays:
    if type(instances) is not list:
        raise RequestError("Expecting 'instances' to be a list/array")
    if not instances:
        raise RequestError("No values in 'instances' array")
    names = signature.inputs
    named = [_is_object(instance) for instance in instances]
    if not any(named):
        expected = "instances is a plain list, but expecting list of objects with the inputs "
        return _from_plain(signature, instances, expected)
    for i, instance in enumerate(instances):
        if not named[i]:
            raise RequestError(f"Expecting object but got value at item {i} of input list")
        if instance.keys() != names.keys():
            raise RequestError(
                f"Failed to process element: {i} of 'instances' list: keys must be equal to: "
                + ", ".join(names),
            )
    return {name: _array(signature, name, [row[name] for row in instances]) for name in names}


def _from_plain(signature: Signature, value: Any, expected: str) -> Arrays:
    """Returns the array of the only input; an error that begins with `expected` for others."""
    names = list(signature.inputs)
    if len(names) != 1:
        raise RequestError(expected + (", ".join(names) or "nothing: the signature has no inputs"))
    return {names[0]: _array(signature, names[0], value)}


def _from_columns(signature: Signature, inputs: Any) -> Arrays:
    names = signature.inputs
    if not _is_object(inputs):
        expected = "inputs is a plain value, but expecting an object with "
        return _from_plain(signature, inputs, expected)
    for name in names:
        if name not in inputs:
            raise RequestError(f"Missing named input: {name} in 'inputs' object.")
    return {name: _array(signature, name, inputs[name]) for name in names}


def _array(signature: Signature, name: str, value: Any) -> np.ndarray:
    spec = signature.inputs[name]
    rank = 8 if spec.shape is None else len(spec.shape)
    return to_array(value, spec.array_dtype, rank)


def _is_object(value: Any) -> bool:
    return type(value) is dict and value.keys() != {"b64"}


def _check_rows(outputs: Arrays) -> None:
    sizes = {x.shape[:1] for x in outputs.values()}
    if len(sizes) > 1 or () in sizes:
        raise RequestError("The outputs do not have a row for each instance: send 'inputs' instead")
