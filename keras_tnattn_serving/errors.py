"""Errors that are answered with an HTTP status."""


class RequestError(Exception):
    """An error that the server answers with an HTTP status, by default that of a bad request."""

    def __init__(
        self, message: str, status: int = 400, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def not_found(name: str, version: int | None = None) -> RequestError:
    """The error for a model or a version that is not served, in TensorFlow Serving's words."""
    which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return RequestError(f"Servable not found for request: {which}", 404)


def loading(name: str) -> RequestError:
    """The error for a model that is being loaded."""
    return RequestError(f"The model {name} is loading. Try again soon", 503, {"Retry-After": "2"})


def too_large(received: str, limit: int, option: str) -> RequestError:
    """The error for what exceeds a limit that an option, or the model card, sets."""
    return RequestError(f"Expected at most {limit} ({option}). Received: {received}", 413)
