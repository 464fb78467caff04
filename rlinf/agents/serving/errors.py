"""Errors in the shape that clients of OpenAI's API know."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A request that is refused.

    Args:
        message: What was given, what is allowed, what to do.
        status: Of HTTP.
        kind: `type` of the error.
        param: Name of the parameter that is wrong.
        code: A short name of the error.
        retry_after: Seconds after which it may be tried again.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.kind = message, status, kind
        self.param, self.code, self.retry_after = param, code, retry_after

    def body(self) -> dict[str, Any]:
        """Return what the client reads."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def anthropic_body(self) -> dict[str, Any]:
        """Return the same as clients of Anthropic's API know it."""
        known = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = known.get(self.status)
        if kind is None:
            kind = "api_error" if self.status >= 500 else "invalid_request_error"
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def engine_gone(reason: str) -> ApiError:
    """Return the error of a request that no engine can answer."""
    return ApiError(
        f"{reason}; try again later", status=503, kind="server_error", code="engine_gone"
    )
