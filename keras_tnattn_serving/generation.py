"""Continuations of texts: `/v2/models/NAME/generate` and `generate_stream`.

The generate extension of the Open Inference Protocol, as Triton and KServe have it.
"""

import asyncio
import itertools
import json
import logging
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.routing import Route

from keras_tnattn_serving.errors import RequestError, too_large
from keras_tnattn_serving.inference import Inference
from keras_tnattn_serving.open_inference import MODEL, VERSION, version_number
from keras_tnattn_serving.responses import json_response
from keras_tnattn_serving.servable import Servable
from keras_tnattn_serving.settings import Settings

# The parameters of a request, and whether each is a whole number, a number or a text.
_PARAMETERS = {
    "max_tokens": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "stop": str,
    "seed": int,
}
_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_KINDS: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,)}


class Generation:
    """Continues texts with the language models of a server.

    The tokens of all texts of a version are computed in turns, by as many threads as `--threads`
    says.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference, self._settings = inference, inference.settings
        self._queues: weakref.WeakKeyDictionary[Servable, _Queue] = weakref.WeakKeyDictionary()
        inference.ages_of_texts = self._ages

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            Route(f"{path}/{name}", endpoint, methods=["POST"])
            for path in (VERSION, MODEL)
            for name, endpoint in (("generate", self.generate), ("generate_stream", self.stream))
        ]

    def close(self) -> None:
        """Ends the threads after what they do now."""
        for queue in list(self._queues.values()):
            queue.close()

    async def generate(self, request: Request) -> Response:
        """Answers with the whole continuation."""
        head, texts = await self._begun(request)
        whole = [text async for text in texts]
        return json_response({**head, "text_output": "".join(whole)})

    async def stream(self, request: Request) -> Response:
        """Answers with server-sent events, one for each token as soon as it is chosen."""
        head, texts = await self._begun(request)
        # The first token before the head of the answer, so that its errors have their status.
        first = await anext(texts, "")

        async def events() -> AsyncIterator[str]:
            try:
                # Also of a text that ends at once, because clients wait for an event.
                yield _event({**head, "text_output": first})
                async for text in texts:
                    yield _event({**head, "text_output": text})
            except ClientDisconnect:
                return
            except RequestError as error:
                yield _event({"error": error.message})
            except Exception as error:  # the head with status 200 is sent already
                _log.exception("%s failed", request.scope["path"])
                yield _event({"error": f"The model failed: {type(error).__name__}"})
            finally:
                await texts.aclose()

        headers = {"Cache-Control": "no-cache"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    async def _begun(self, request: Request) -> tuple[dict[str, Any], Any]:
        """Reads a request; returns what each answer says, and an iterator over the texts."""
        name, version = request.path_params["name"], request.path_params.get("version")
        number = version_number(name, version)
        self._inference.admit(name, number)
        record, parsed = await self._inference.parse(request)
        prompt, options = _prompt_and_options(parsed, self._settings.max_text)
        with self._inference.repository.use(name, number) as used:
            record |= {"model": name, "version": used.number}
            servable = used.servable
        model = servable.language_model
        if model is None:
            raise RequestError(f"Expected a language model. Received: {name}, another one")
        queue = self._queues.get(servable)
        if queue is None:
            queue = self._queues[servable] = _Queue(name, self._settings)
        head = {"model_name": name, "model_version": str(used.number)}
        gone = request.scope.get("extensions", {}).get("disconnected")
        limit = self._settings.max_length

        def begin() -> Iterator[str]:
            size = len(model.prompt(prompt))
            if size > limit:
                raise too_large(f"{size} tokens of text_input", limit, "--max-length")
            return model.stream(prompt, **options)

        return head, queue.texts(begin, gone)

    def _ages(self, name: str) -> list[float]:
        now = time.monotonic()
        queues = [queue for queue in list(self._queues.values()) if queue.name == name]
        # A copy, because the threads change the dict.
        return [now - since for queue in queues for since in list(queue.began.values())]


class _Queue:
    """Computes the texts of one version of a model."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name, self._settings = name, settings
        # When each token began that is computed now, by its number.
        self.began: dict[int, float] = {}
        self._running, self._numbers = 0, itertools.count()
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="generation")

    def close(self) -> None:
        """Ends the threads after what they do now."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def texts(
        self, begin: Callable[[], Iterator[str]], gone: Callable[[], bool] | None
    ) -> AsyncIterator[str]:
        """Yields the texts of the iterator that `begin` returns.

        Raises:
            ClientDisconnect: Once `gone()`.
            RequestError: With 400 for what the model cannot continue, 413 for a prompt that is too
                long, 429 if there are too many texts, 504 after the deadline.
        """
        if self._running >= self._settings.max_queue:
            raise RequestError(
                f"Expected at most {self._settings.max_queue} texts at a time (--max-queue). Try "
                "again soon",
                429,
                {"Retry-After": "1"},
            )
        self._running += 1
        try:
            end = time.monotonic() + self._settings.deadline_s
            try:
                texts = await self._compute(begin, gone, end)
            except ValueError as error:
                raise RequestError(str(error)) from error
            while (text := await self._compute(lambda: next(texts, None), gone, end)) is not None:
                yield text
        finally:
            self._running -= 1

    async def _compute(
        self, function: Callable[[], _T], gone: Callable[[], bool] | None, end: float
    ) -> _T:
        """Calls a function in a thread."""
        number = next(self._numbers)

        def compute() -> _T:
            if gone and gone():
                raise ClientDisconnect()
            self.began[number] = time.monotonic()
            try:
                return function()
            finally:
                del self.began[number]

        future = asyncio.get_running_loop().run_in_executor(self._threads, compute)
        try:
            return await asyncio.wait_for(future, max(0.0, end - time.monotonic()))
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise RequestError(
                f"Deadline of {self._settings.deadline_s:g} s (--deadline-s) exceeded", 504
            ) from error


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _prompt_and_options(parsed: dict[str, Any], max_text: int) -> tuple[str, dict[str, Any]]:
    """Returns the prompt and the options of a request."""
    others = parsed.keys() - {"text_input", "parameters", "id"}
    if others:
        raise RequestError(
            f"Expected text_input and parameters. Received: {', '.join(sorted(others))[:80]}"
        )
    prompt, options = parsed.get("text_input"), parsed.get("parameters", {})
    if type(prompt) is not str:
        raise RequestError("Expected text_input, the text to continue")
    size = len(prompt.encode("utf-8", "surrogatepass"))
    if size > max_text:
        raise too_large(f"{size} bytes of text_input", max_text, "--max-text")
    if type(options) is not dict:
        raise RequestError("Expected parameters to be an object")
    options = {name: value for name, value in options.items() if value is not None}
    for name, value in options.items():
        kind = _PARAMETERS.get(name)
        if kind is None:
            raise RequestError(
                f"Expected parameters among {', '.join(_PARAMETERS)}. Received: {name[:40]!r}",
            )
        if type(value) not in _KINDS[kind]:
            raise RequestError(
                f"Expected {name} of type {kind.__name__}. Received: {str(value)[:40]!r}"
            )
    return prompt, options
