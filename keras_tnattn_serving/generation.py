"""Continuations of texts: `/v2/models/NAME/generate` and `generate_stream`.

The generate extension of the Open Inference Protocol, as Triton and KServe have it.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.routing import Route

from keras_tnattn_serving.errors import RequestError, too_large
from keras_tnattn_serving.inference import Inference
from keras_tnattn_serving.open_inference import MODEL, VERSION, version_number
from keras_tnattn_serving.responses import json_response

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
_KINDS: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,)}


class Generation:
    """Continues texts with the language models of a server.

    The tokens of all texts are computed in turns, by as many threads as `--threads` says.

    Args:
        inference: The models and the limits.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference, self._settings = inference, inference.settings
        self._running = 0
        self._threads = ThreadPoolExecutor(self._settings.threads, thread_name_prefix="generation")

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            Route(f"{path}/{name}", endpoint, methods=["POST"])
            for path in (VERSION, MODEL)
            for name, endpoint in (("generate", self.generate), ("generate_stream", self.stream))
        ]

    def close(self) -> None:
        """Ends the threads after what they do now."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def generate(self, request: Request) -> Response:
        """Answers with the whole continuation."""
        head, texts = await self._begun(request)
        whole = [text async for text in texts]
        return json_response({**head, "text_output": "".join(whole)})

    async def stream(self, request: Request) -> Response:
        """Answers with server-sent events, one for each token as soon as it is chosen."""
        head, texts = await self._begun(request)
        # The first token before the head of the answer, so that its errors have their status.
        first = await anext(texts, None)

        async def events() -> AsyncIterator[str]:
            try:
                if first is not None:
                    yield _event({**head, "text_output": first})
                async for text in texts:
                    yield _event({**head, "text_output": text})
            except ClientDisconnect:
                return
            except RequestError as error:
                yield _event({"error": error.message})
            finally:
                await texts.aclose()

        headers = {"Cache-Control": "no-cache"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    async def _begun(self, request: Request) -> tuple[dict[str, Any], Any]:
        """Reads a request; returns what each answer says, and an iterator over the texts."""
        name, version = request.path_params["name"], request.path_params.get("version")
        number = version_number(name, version)
        self._inference.admit(name, number)
        record, parsed = await self._inference.parsed(request)
        prompt, options = _checked(parsed, self._settings.max_text)
        with self._inference.repository.use(name, number) as used:
            record |= {"model": name, "version": used.number}
            model = used.servable.language_model
            if model is None:
                raise RequestError(400, f"Expected a language model. Received: {name}, another one")
            try:
                texts = model.stream(prompt, **options)
            except ValueError as error:
                raise RequestError(400, str(error)) from error
        head = {"model_name": name, "model_version": str(used.number)}
        gone = request.scope.get("extensions", {}).get("disconnected")
        return head, self._texts(texts, gone)

    async def _texts(
        self, texts: Iterator[str], gone: Callable[[], bool] | None
    ) -> AsyncIterator[str]:
        if self._running >= self._settings.max_queue:
            raise RequestError(
                429,
                f"Expected at most {self._settings.max_queue} texts at a time (--max-queue). Try "
                "again soon",
                {"Retry-After": "1"},
            )
        self._running += 1
        try:
            end = time.monotonic() + self._settings.deadline_s
            while True:
                text = await asyncio.get_running_loop().run_in_executor(
                    self._threads, next, texts, None
                )
                if text is None:
                    return
                if gone and gone():
                    raise ClientDisconnect()
                yield text
                if time.monotonic() > end:
                    raise RequestError(
                        504, f"Deadline of {self._settings.deadline_s:g} s (--deadline-s) exceeded"
                    )
        finally:
            self._running -= 1


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _checked(parsed: dict[str, Any], max_text: int) -> tuple[str, dict[str, Any]]:
    """Returns the prompt and the options of a request."""
    prompt, options = parsed.get("text_input"), parsed.get("parameters", {})
    if type(prompt) is not str:
        raise RequestError(400, "Expected text_input, the text to continue")
    size = len(prompt.encode("utf-8", "surrogatepass"))
    if size > max_text:
        raise too_large(f"{size} bytes of text_input", max_text, "--max-text")
    if type(options) is not dict:
        raise RequestError(400, "Expected parameters to be an object")
    options = {name: value for name, value in options.items() if value is not None}
    for name, value in options.items():
        kind = _PARAMETERS.get(name)
        if kind is None:
            raise RequestError(
                400,
                f"Expected parameters among {', '.join(_PARAMETERS)}. Received: {name[:40]!r}",
            )
        if type(value) not in _KINDS[kind]:
            raise RequestError(
                400, f"Expected {name} of type {kind.__name__}. Received: {str(value)[:40]!r}"
            )
    return prompt, options
