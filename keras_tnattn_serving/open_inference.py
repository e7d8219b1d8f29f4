"""The Open Inference Protocol v2: `/v2/...`."""

import math
import re
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from starlette.routing import Route

from keras_tnattn_runtime import __version__
from keras_tnattn_serving import answers
from keras_tnattn_serving.errors import RequestError, not_found
from keras_tnattn_serving.inference import DEFAULT_SIGNATURE, Inference
from keras_tnattn_serving.responses import json_response
from keras_tnattn_serving.servable import Servable, Signature
from keras_tnattn_serving.specs import Spec
from keras_tnattn_serving.tensors import shown, to_array

MODEL = "/v2/models/{name}"
VERSION = MODEL + "/versions/{version}"
_INFER = (VERSION + "/infer", MODEL + "/infer")


def routes(inference: Inference) -> APIRouter:
    """Returns the routes that tell about the server and its models."""
    router = APIRouter()
    repository = inference.repository

    @router.get("/v2")
    async def server() -> dict[str, Any]:
        return {"name": "keras_tnattn", "version": __version__, "extensions": ["generate"]}

    @router.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @router.get("/v2/health/ready")
    async def ready() -> Response:
        if inference.ready:
            return json_response({"ready": True})
        reasons = [
            f"the model {name} has been computing one batch for {seconds:.0f} s"
            for name, seconds in inference.overdue().items()
        ]
        reasons = ["the server is about to stop"] * inference.draining + reasons
        return json_response(
            {"ready": False, "error": "; ".join(reasons) or "no model is available"}, 503
        )

    @router.get(VERSION + "/ready")
    @router.get(MODEL + "/ready")
    async def model_ready(name: str, version: str | None = None) -> Response:
        with repository.use(name, version_number(name, version)) as used:
            if used.batches.stuck(inference.settings.deadline_s):
                return json_response({"name": name, "ready": False}, 503)
            return json_response({"name": name, "ready": True})

    @router.get(VERSION)
    @router.get(MODEL)
    async def metadata(name: str, version: str | None = None) -> dict[str, Any]:
        with repository.use(name, version_number(name, version)) as used:
            model = used.servable
            return {
                "name": name,
                "versions": [str(number) for number in repository.available(name)],
                "platform": model.engine if model.language_model else "tensorflow_savedmodel",
                **_tensors(model),
            }

    return router


def inference_routes(inference: Inference) -> list[Route]:
    """Returns the routes that compute."""

    async def infer(request: Request) -> Response:
        name, version = request.path_params["name"], request.path_params.get("version")
        number = version_number(name, version)
        inference.admit(name, number)
        if "inference-header-content-length" in request.headers:
            raise RequestError(
                "Expected tensors as JSON. Received: binary ones, an extension that is not "
                "supported. Give binary_data=False to set_data_from_numpy and "
                "InferRequestedOutput of tritonclient",
            )
        record, parsed = await inference.parse(request)
        with inference.repository.use(name, number) as used:
            record |= {"model": name, "version": used.number}
            parameters = parsed.get("parameters", {})
            if type(parameters) is not dict:
                raise RequestError("Expected parameters to be an object")
            signature = inference.signature(used, parameters.get("signature_name", ""))
            arrays = await inference.convert(request, _inputs, signature, parsed.get("inputs"))
            requested = _requested_outputs(signature, parsed.get("outputs"))
            outputs = await inference.run(request, used, signature, arrays, requested)
        head: dict[str, Any] = {"model_name": name, "model_version": str(used.number)}
        if "id" in parsed:
            head["id"] = parsed["id"]
        chosen = {key: outputs[key] for key in requested}
        return await inference.answer(chosen, _answer_body, head, signature)

    return [Route(path, infer, methods=["POST"]) for path in _INFER]


def _answer_body(
    outputs: dict[str, np.ndarray], head: dict[str, Any], signature: Signature, limit: int
) -> bytes:
    """Returns the answer: `head`, and the outputs as flat lists."""
    answers.check_size(outputs.values(), limit)
    writer = answers.JsonWriter(limit)
    writer.raw(bytes(json_response(head).body[:-1]) + b', "outputs":[')
    for i, (name, output) in enumerate(outputs.items()):
        tensor = {
            "name": name,
            "shape": list(output.shape),
            "datatype": signature.outputs[name].datatype,
        }
        writer.raw((b"," if i else b"") + orjson.dumps(tensor)[:-1] + b',"data":')
        writer.array(output.reshape(-1))
        writer.raw(b"}")
    writer.raw(b"]}")
    return writer.getvalue()


def version_number(name: str, version: str | None) -> int | None:
    """Returns the number of a version in a path, or `None` for the newest."""
    if version is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", version):
        raise RequestError(not_found(name).message + f": version {version[:40]}", 404)
    return int(version)


def _tensors(servable: Servable) -> dict[str, Any]:
    signature = servable.signatures.get(DEFAULT_SIGNATURE)
    if signature is None:
        return {"inputs": [], "outputs": []}
    return {
        kind: [
            {
                "name": name,
                "datatype": spec.datatype or spec.name,
                # The protocol has no word for a shape of any rank.
                "shape": [-1]
                if spec.shape is None
                else [-1 if size is None else size for size in spec.shape],
            }
            for name, spec in specs.items()
        ]
        for kind, specs in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }


def _inputs(signature: Signature, tensors: Any) -> dict[str, np.ndarray]:
    if type(tensors) is not list:
        raise RequestError("Expected inputs to be a list")
    arrays = {}
    for tensor in tensors:
        if type(tensor) is not dict or type(tensor.get("name")) is not str:
            raise RequestError("Expected each input to be an object with a name")
        name = tensor["name"]
        if name not in signature.inputs or name in arrays:
            raise RequestError(
                f"Expected the inputs {', '.join(signature.inputs)}, each once. "
                f"Received: {shown(name)}",
            )
        arrays[name] = _array(signature.inputs[name], tensor)
    missing = signature.inputs.keys() - arrays.keys()
    if missing:
        raise RequestError(f"Missing inputs: {', '.join(sorted(missing))}")
    return arrays


def _array(spec: Spec, tensor: dict[str, Any]) -> np.ndarray:
    name, datatype, shape = tensor["name"], tensor.get("datatype"), tensor.get("shape")
    if datatype != spec.datatype:
        raise RequestError(
            f"Expected datatype {spec.datatype} of input {name}. Received: {shown(datatype)}",
        )
    if type(shape) is not list or any(type(n) is not int or n < 0 for n in shape):
        raise RequestError(f"Expected the shape of input {name} to be a list of sizes")
    if "data" not in tensor or type(tensor["data"]) is not list:
        raise RequestError(f"Expected the data of input {name} to be a list")
    if len(shape) > 8:
        raise RequestError(f"Expected a shape of at most 8 sizes. Received: {len(shape)}")
    array = to_array(tensor["data"], spec.array_dtype)
    # The data may be flat, or nested like the shape.
    if array.size != math.prod(shape) or (array.ndim != 1 and list(array.shape) != shape):
        raise RequestError(
            f"Expected data of shape {shape} of input {name}. Received: {list(array.shape)}"
        )
    return array.reshape(shape)


def _requested_outputs(signature: Signature, outputs: Any) -> list[str]:
    if outputs is None or outputs == []:
        return list(signature.outputs)
    if type(outputs) is not list or not all(type(output) is dict for output in outputs):
        raise RequestError("Expected outputs to be a list of objects with a name")
    names = [output.get("name") for output in outputs]
    for name in names:
        if type(name) is not str or name not in signature.outputs:
            raise RequestError(
                f"Expected outputs among {', '.join(signature.outputs)}. Received: {shown(name)}",
            )
    return names
