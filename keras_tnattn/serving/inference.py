"""What both protocols share: reading bodies, checking inputs and running signatures."""

import logging
from typing import Any

import anyio
import numpy as np
import tensorflow as tf
from fastapi import Request

from keras_tnattn.serving.batching import Arrays, Batcher
from keras_tnattn.serving.errors import RequestError
from keras_tnattn.serving.monitoring import Monitoring
from keras_tnattn.serving.repository import Repository, Version
from keras_tnattn.serving.servable import Signature
from keras_tnattn.serving.settings import Settings
from keras_tnattn.serving.tensors import parse_object

DEFAULT_SIGNATURE = "serving_default"
_READ_ON = 4  # times `max_body` is read and dropped before the connection is closed
_log = logging.getLogger(__name__)


class Inference:
    """The models, the batcher and the limits of a server.

    Args:
        repository: The models.
        settings: The limits.
        monitoring: Where batches and requests are counted.

    Attributes:
        draining: Whether the server is about to stop.
    """

    def __init__(self, repository: Repository, settings: Settings, monitoring: Monitoring) -> None:
        self.repository, self.settings, self.monitoring = repository, settings, monitoring
        self.batcher = Batcher(
            settings.max_batch,
            settings.batch_wait_ms,
            settings.max_queue,
            settings.threads,
            monitoring.batch,
        )
        monitoring.queue.set_function(lambda: self.batcher.waiting)
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether a model is available and the server is not about to stop."""
        models = self.repository
        return (
            models.scanned
            and not self.draining
            and any(models.available(name) for name in models.names())
        )

    async def body(self, request: Request) -> bytes:
        """Reads the body of a request.

        Raises:
            RequestError: With 413 if it is too large, 408 if it does not arrive in time.
        """
        limit = self.settings.max_body
        chunks, size = [], 0

        try:
            with anyio.fail_after(self.settings.deadline_s):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= limit:
                        chunks.append(chunk)
                        continue
                    # Read on for a while: most clients read no answer before they have sent all.
                    chunks.clear()
                    if size > _READ_ON * limit:
                        break
        except TimeoutError as error:
            raise RequestError(408, "The body did not arrive in time") from error
        if size > limit:
            raise _too_large(f"a body of {size} bytes or more", limit, "--max-body")
        return b"".join(chunks)

    async def parsed(self, request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns a request's entry in the access log, and its body as a JSON object.

        Raises:
            RequestError: With 400 if the body is not a JSON object, 408 or 413 as `body` raises it.
        """
        record = request.scope["record"]
        parsed = parse_object(await self.body(request))
        if self.monitoring.log_texts:
            record["body"] = parsed
        return record, parsed

    def signature(self, version: Version, name: Any) -> Signature:
        """Returns a signature by its name, or the default one for an empty name.

        Raises:
            RequestError: With 400, if there is no such signature.
        """
        if not isinstance(name, str):
            raise RequestError(
                400, "JSON Value not formatted correctly. 'signature_name' key must be a string"
            )
        name = name or DEFAULT_SIGNATURE
        signatures = version.servable.signatures
        if name not in signatures:
            raise RequestError(400, f'Serving signature name: "{name}" not found in signature def')
        return signatures[name]

    async def run(
        self, record: dict[str, Any], version: Version, signature: Signature, arrays: Arrays
    ) -> Arrays:
        """Computes a signature on the arrays of a request.

        Args:
            record: The request's entry in the access log; `signature` and `rows` are added.
            version: The version that the signature belongs to.
            signature: The signature.
            arrays: An array for each input.

        Raises:
            RequestError: With 400 for shapes or values that the signature does not accept, 413 if
                a limit is exceeded, 429 if the queue is full, 500 if the model fails, 503 if it
                runs out of memory, 504 after the deadline.
        """
        rows = self._checked_rows(signature, arrays)
        record |= {"signature": signature.name, "rows": rows}
        try:
            with anyio.fail_after(self.settings.deadline_s):
                return await self.batcher.run(signature, arrays, rows)
        except RequestError:
            raise
        except TimeoutError as error:
            raise RequestError(
                504, f"Deadline of {self.settings.deadline_s:g} s exceeded"
            ) from error
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise RequestError(400, _reason(error)) from error
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            raise RequestError(503, "Out of memory: send fewer or shorter rows") from error
        except Exception as error:
            _log.exception("%s of %s failed", signature.name, version.path)
            raise RequestError(500, f"The model failed: {type(error).__name__}") from error

    def _checked_rows(self, signature: Signature, arrays: Arrays) -> int:
        """Checks sizes and shapes; returns the number of rows."""
        settings = self.settings
        sizes = {}
        for name, array in arrays.items():
            if not signature.inputs[name].shape.is_compatible_with(array.shape):
                shape = signature.inputs[name].shape.as_list()
                raise RequestError(
                    400, f"Expected shape {shape} of input {name}. Received: {list(array.shape)}"
                )
            sizes[name] = len(array) if array.ndim else 1
            if sizes[name] > settings.max_instances:
                raise _too_large(f"{sizes[name]} rows", settings.max_instances, "--max-instances")
            self._check_lengths(signature, name, array)
        if signature.batches and len(set(sizes.values())) > 1:
            raise RequestError(
                400, f"Expected the same number of rows in each input. Received: {sizes}"
            )
        rows = max(sizes.values(), default=1)
        if signature.batches and not rows:
            raise RequestError(400, "Expected at least one row. Received: none")
        return max(rows, 1)

    def _check_lengths(self, signature: Signature, name: str, array: np.ndarray) -> None:
        own = signature.hint(name, "max_length")
        if array.dtype == object:
            longest = max(map(len, array.flat), default=0)
            limit, option, unit = self.settings.max_text, "--max-text", "bytes"
        else:
            known = signature.inputs[name].shape
            sizes = array.shape[1:]
            unknown = [n for i, n in enumerate(sizes, 1) if not known.rank or known[i] is None]
            longest = max(unknown, default=0)
            limit, option, unit = self.settings.max_length, "--max-length", "entries"
        if type(own) is int and 0 < own < limit:
            limit, option = own, "the model card"
        if longest > limit:
            raise _too_large(f"{longest} {unit} of input {name}", limit, option)


def _reason(error: tf.errors.OpError) -> str:
    """Returns the message of a failed operation without its place in the graph."""
    return error.message.rpartition("<stack traces unavailable>\n")[2].partition("\n\t [[")[0][:300]


def _too_large(received: str, limit: int, option: str) -> RequestError:
    return RequestError(413, f"Expected at most {limit} ({option}). Received: {received}")
