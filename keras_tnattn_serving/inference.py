"""What both protocols share: reading bodies, checking inputs and running signatures."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from keras_tnattn_serving.answers import least_size
from keras_tnattn_serving.batching import Arrays
from keras_tnattn_serving.bodies import read_body
from keras_tnattn_serving.errors import RequestError, too_large
from keras_tnattn_serving.monitoring import Monitoring
from keras_tnattn_serving.repository import Repository, Version
from keras_tnattn_serving.servable import Signature
from keras_tnattn_serving.settings import Settings
from keras_tnattn_serving.tensors import parse_object

DEFAULT_SIGNATURE = "serving_default"
# What takes about a millisecond is converted at once, what takes longer in a thread.
_SHORT_BODY = 32 * 1024  # bytes
_SHORT_ANSWER = 8 * 1024  # entries
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Inference:
    """The models and the limits of a server.

    Attributes:
        draining: Whether the server is about to stop.
        ages_of_texts: Returns the seconds for which tokens of a model have been computed that are
            computed now.
    """

    def __init__(self, repository: Repository, settings: Settings, monitoring: Monitoring) -> None:
        self.repository, self.settings, self.monitoring = repository, settings, monitoring
        self.draining = False
        self.ages_of_texts: Callable[[str], list[float]] = lambda name: []
        # One thread: Python computes in one at a time anyway, and this bounds the memory.
        self._converting = ThreadPoolExecutor(1, thread_name_prefix="conversion")

    @property
    def ready(self) -> bool:
        """Whether a model is available, no batch is stuck and the server is not about to stop."""
        models = self.repository
        return (
            models.scanned
            and not self.draining
            and any(models.available(name) for name in models.names())
            and not self.overdue()
        )

    def overdue(self) -> dict[str, float]:
        """The models that have computed a batch for longer than `deadline_s`, and the seconds."""
        oldest = {}
        for name in self.repository.names():
            batches = (age for v in self.repository.versions(name) for age in v.ages())
            oldest[name] = max([0.0, *batches, *self.ages_of_texts(name)])
        return {name: age for name, age in oldest.items() if age > self.settings.deadline_s}

    def admit(self, name: str, number: int | None) -> None:
        """Refuses what cannot be computed now, before its body is read.

        Raises:
            RequestError: With 404 for what is not served, 429 if its queue is full, 503 if it is
                loading or stuck.
        """
        batcher = self.repository.find(name, number).batches
        if batcher.stuck(self.settings.deadline_s):
            seconds = max(batcher.ages(), default=0.0)
            raise RequestError(
                f"The model {name} has been computing one batch for {seconds:.0f} s, longer than "
                f"{self.settings.deadline_s:g} s (--deadline-s). Restart the server if it does "
                "not end",
                503,
                {"Retry-After": "5"},
            )
        batcher.check_room()

    async def parse(self, request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns a request's entry in the access log, and its body as a JSON object."""
        record = request.scope["record"]
        body = await read_body(request, self.settings.max_body, self.settings.deadline_s)
        request.scope["long"] = len(body) > _SHORT_BODY
        parsed = await self.convert(request, parse_object, body)
        if self.monitoring.log_texts:
            record["body"] = parsed
        return record, parsed

    async def convert(
        self, request: Request, function: Callable[..., _T], *arguments: object
    ) -> _T:
        """Calls a function on what a request has sent, in a thread if the request is long."""
        if not request.scope["long"]:
            return function(*arguments)
        return await self._in_thread(function, *arguments)

    async def answer(
        self, outputs: Arrays, function: Callable[..., bytes], *arguments: object
    ) -> Response:
        """Returns what `function(outputs, *arguments, max_answer)` writes as a JSON response.

        It is called in a thread if the answer is long, so that other requests are answered
        meanwhile.

        Raises:
            RequestError: With 413, if the answer would exceed `max_answer`.
        """
        arguments = (outputs, *arguments, self.settings.max_answer)
        if sum(output.size for output in outputs.values()) <= _SHORT_ANSWER:
            body = function(*arguments)
        else:
            body = await self._in_thread(function, *arguments)
        return Response(body, media_type="application/json")

    async def _in_thread(self, function: Callable[..., _T], *arguments: object) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._converting, function, *arguments)

    def close(self) -> None:
        """Ends the threads after what they do now."""
        self._converting.shutdown(wait=False, cancel_futures=True)
        for name in self.repository.names():
            for version in self.repository.versions(name):
                if version.batcher:
                    version.batcher.close()
        self.monitoring.close()

    def signature(self, version: Version, name: Any) -> Signature:
        """Returns a signature by its name, or the default one for an empty name.

        Raises:
            RequestError: With 400, if there is no such signature, or it has tensors of a dtype
                that the protocols do not have.
        """
        if not isinstance(name, str):
            raise RequestError(
                "JSON Value not formatted correctly. 'signature_name' key must be a string"
            )
        name = name or DEFAULT_SIGNATURE
        signatures = version.servable.signatures
        if name not in signatures:
            message = f'Serving signature name: "{name}" not found in signature def'
            if version.servable.language_model is not None:
                message += ". A language model answers POST /v2/models/NAME/generate"
            elif signatures:
                message += f". The model has {', '.join(sorted(signatures))}"
            raise RequestError(message)
        signatures[name].check_dtypes()
        return signatures[name]

    async def run(
        self,
        request: Request,
        version: Version,
        signature: Signature,
        arrays: Arrays,
        names: Collection[str] | None = None,
    ) -> Arrays:
        """Computes a signature on the arrays of a request.

        Raises:
            RequestError: With 400 for shapes or values that the signature does not accept, 413 if
                a limit is exceeded, 429 if the queue is full, 500 if the model fails, 503 if it
                runs out of memory, 504 after the deadline.
        """
        rows = self._checked_rows(signature, arrays)
        request.scope["record"] |= {"signature": signature.name, "rows": rows}
        gone = request.scope.get("extensions", {}).get("disconnected")
        limit, least = self.settings.max_answer, 0

        def check(outputs: Arrays) -> None:
            nonlocal least
            least += least_size(outputs[name] for name in names or outputs)
            if least > limit:
                raise too_large(f"an answer of {least} bytes or more", limit, "--max-answer")

        try:
            seconds = await self._load_missing(signature)
            return await version.batches.run(signature, arrays, rows, check, gone, seconds)
        except (RequestError, ClientDisconnect):
            raise
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise RequestError(
                f"Deadline of {self.settings.deadline_s:g} s (--deadline-s) exceeded", 504
            ) from error
        except MemoryError as error:
            raise RequestError("Out of memory: send fewer or shorter rows", 503) from error
        except Exception as error:
            _log.exception("%s of %s failed", signature.name, version.path)
            raise RequestError(f"The model failed: {type(error).__name__}", 500) from error

    async def _load_missing(self, signature: Signature) -> float:
        """Waits for the SavedModel, if an engine served so far and the signature needs it.

        Returns the seconds that are left until the deadline. Raises `RequestError` with 503 if it
        is still loading then, 500 if it cannot be loaded.
        """
        seconds, missing = self.settings.deadline_s, signature.model_to_load()
        if missing is None:
            return seconds
        began = time.monotonic()
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(missing)), seconds)
            return max(0.001, seconds - (time.monotonic() - began))
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise RequestError(
                f"{signature.name} needs the SavedModel, which is still loading: ask again",
                503,
                {"Retry-After": "1"},
            ) from error
        except (ImportError, ValueError) as error:
            raise RequestError(f"{signature.name} needs the SavedModel: {error}", 500) from error

    def _checked_rows(self, signature: Signature, arrays: Arrays) -> int:
        """Checks sizes and shapes; returns the number of rows."""
        settings = self.settings
        sizes = {}
        for name, array in arrays.items():
            spec = signature.inputs[name]
            if not spec.fits(array.shape):
                raise RequestError(
                    f"Expected shape {list(spec.shape or ())} of input {name}. "
                    f"Received: {list(array.shape)}",
                )
            sizes[name] = len(array) if array.ndim else 1
            if sizes[name] > settings.max_instances:
                raise too_large(f"{sizes[name]} rows", settings.max_instances, "--max-instances")
            self._check_lengths(signature, name, array)
        if signature.batches and len(set(sizes.values())) > 1:
            raise RequestError(f"Expected the same number of rows in each input. Received: {sizes}")
        rows = max(sizes.values(), default=1)
        if signature.batches and not rows:
            raise RequestError("Expected at least one row. Received: none")
        return max(rows, 1)

    def _check_lengths(self, signature: Signature, name: str, array: np.ndarray) -> None:
        own = signature.hint(name, "max_length")
        if array.dtype == object:
            longest = max(map(len, array.flat), default=0)
            limit, option, unit = self.settings.max_text, "--max-text", "bytes"
        else:
            shape = signature.inputs[name].shape
            sizes = array.shape[1:]
            unknown = [n for i, n in enumerate(sizes, 1) if not shape or shape[i] is None]
            longest = max(unknown, default=0)
            limit, option, unit = self.settings.max_length, "--max-length", "entries"
        if type(own) is int and 0 < own < limit:
            limit, option = own, "the model card"
        if longest > limit:
            raise too_large(f"{longest} {unit} of input {name}", limit, option)
