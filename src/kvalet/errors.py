"""Every exception kvalet raises on purpose.

KvaletError
├── RequestError            the client's fault; names the field
│   ├── ContextExceeded     the prompt can never fit
│   ├── NotFound            no such route, slot or model
│   ├── Conflict            not possible in the state that the slot is in
│   └── StateFileError      a state file that is foreign, damaged or none
│       └── StateFileGone   there is no such file, or not any more
├── Overloaded              the queue is full: try again later
├── ConfigError             a flag or variable that cannot be honoured; the start fails
├── ModelFileError          a model file that is broken, foreign or unsupported
├── EngineError             computing or copying failed; concerns the requests it names
│   └── EngineFatal         the engine cannot go on
└── InvariantViolation      our bug: bookkeeping does not add up

An error carries a status *hint*; `server/errors.py` alone turns it into a body.
"""


class KvaletError(Exception):
    """Base of all of them."""

    status = 500
    kind = "server_error"


class RequestError(KvaletError):
    """A request that cannot be served as made. `field` is the request's own name for the fault."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextExceeded(RequestError):
    """A prompt of `n_prompt_tokens` (or, `at_least` so many) in `n_ctx` cells (behaviour S5)."""

    kind = "exceed_context_size_error"

    def __init__(self, n_prompt_tokens: int, n_ctx: int, *, at_least: bool = False) -> None:
        count = f"at least {n_prompt_tokens}" if at_least else str(n_prompt_tokens)
        super().__init__(
            f"the request exceeds the available context size: {count} prompt tokens, "
            f"n_ctx is {n_ctx}; shorten the prompt or start the server with a larger --ctx-size",
            "prompt",
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class NotFound(RequestError):
    status = 404
    kind = "not_found_error"


class Conflict(RequestError):
    status = 409
    kind = "conflict_error"


class StateFileError(RequestError):
    """A state file that this server cannot take; nothing was changed (behaviour X4)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "filename")


class StateFileGone(StateFileError):
    status = 404
    kind = "not_found_error"


class Overloaded(KvaletError):
    """No room in the queue, or the server is loading or draining (behaviour S1, C5)."""

    status = 503
    kind = "unavailable_error"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ConfigError(KvaletError):
    """Shown as one line; the process exits with 2."""


class ModelFileError(KvaletError):
    """Shown as one line; the process exits with 2."""


class EngineError(KvaletError):
    pass


class EngineFatal(EngineError):
    pass


class InvariantViolation(KvaletError):
    pass
