"""The errors of the API: an HTTP status, one of OCI's codes and a sentence, as `{"code", "message"}`.

The sentences are worded as the real service words them where that is known, since clients match on them.
"""

from typing import Any

GONE = "Authorization failed or requested resource not found."


class ApiError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """Return the body that is sent to the client."""
        return {"code": self.code, "message": self.message}


def invalid(message: str) -> ApiError:
    """Return the error for an invalid value."""
    return ApiError(400, "InvalidParameter", message)


def missing(message: str) -> ApiError:
    """Return the error for a missing value."""
    return ApiError(400, "MissingParameter", message)


def unparsable(message: str) -> ApiError:
    """Return the error for a body that is no JSON object."""
    return ApiError(400, "CannotParseRequest", message)


def not_found(message: str = GONE) -> ApiError:
    """Return the error for a resource that does not exist or is forbidden: the service does not distinguish them."""
    return ApiError(404, "NotAuthorizedOrNotFound", message)


def incorrect_state(message: str) -> ApiError:
    """Return the error for a resource whose state forbids the operation."""
    return ApiError(409, "IncorrectState", message)


def conflict(message: str) -> ApiError:
    """Return the error for a resource that another one refers to."""
    return ApiError(409, "Conflict", message)


def token_invalidated(token: str) -> ApiError:
    """Return the error for a retry token of another request, or of a deleted resource."""
    return ApiError(409, "InvalidatedRetryToken", f"The opc-retry-token {token} has been invalidated.")


def unauthenticated(why: str) -> ApiError:
    """Return the error for a signature that is missing, wrong or too old."""
    return ApiError(401, "NotAuthenticated", f"The required information to complete authentication {why}")


def limit_exceeded(*names: str) -> ApiError:
    """Return the error for a service limit of the tenancy."""
    return ApiError(
        400,
        "LimitExceeded",
        f"The following service limits were exceeded: {', '.join(names)}. "
        "Request a service limit increase from the service limits page in the console. ",
    )


def out_of_capacity() -> ApiError:
    """No machine of that shape in that place: the service says so with a status of 500."""
    return ApiError(500, "InternalError", "Out of host capacity.")
