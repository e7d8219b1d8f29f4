"""JSON responses."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns a JSON response; numbers that are not finite become `NaN` and `Infinity`."""
    body = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status, headers, media_type="application/json")
