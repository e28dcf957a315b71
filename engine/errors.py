"""Errors of the engine, torch-free. Each has a stable code that crosses the process boundary in `Failed`.

EngineError
|- InvalidPrompt            invalid_prompt             the conversation cannot be laid out as a prompt
|  `- InvalidImage          invalid_image              the model's processor refuses one of its images
|- UnsupportedTools         unsupported_tools          the checkpoint has no way to be told of tools, or to call them
|- InvalidSampling          invalid_sampling           a sampling option that this model cannot serve
|- InvalidConstraint        invalid_constraint         a schema, regular expression or choice that no answer can follow
|- ContextLengthExceeded    context_length_exceeded    prompt plus the tokens asked for do not fit the model
|- UnknownPolicy            unknown_policy             no refresh policy of that name, or an unknown option of one
|- InvalidRefreshRatio      invalid_refresh_ratio      not in [0, 1]
|- TooMuchToExplain         too_much_to_explain        more visual tokens than `cache.explain` tells of
|- QueueFull                queue_full                 too many requests are waiting
|- KvTooLarge               kv_too_large               the request's KV alone is more than this worker may hold
|- DeadlineExceeded         request_timeout            the request ran into its own time limit
|- Aborted                  aborted                    the client went away or asked for the end
|- EngineStopped            engine_stopped             the worker is stopping or has died
|- NotFinite                not_finite                 the model gave NaN or infinity where an answer needs numbers
|- StoreFailed              store_failed               the store could not do what an operator asked of it
|- UnsupportedModel         unsupported_model          the checkpoint cannot be served (only at start)
`- InternalError            internal_error             anything else; the cause is in the log, never in the message
"""

from __future__ import annotations

from typing import Self


class EngineError(Exception):
    """Base of the tree. `message` is written by us and safe to show to a user."""

    code = "internal_error"
    image: int | None = None
    """Which of the request's images is at fault, counted from 0."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidPrompt(EngineError):
    code = "invalid_prompt"


class InvalidImage(InvalidPrompt):
    """`message` goes on from the image's name: "it is ...". Raised without `image` by families, which see one."""

    code = "invalid_image"

    def at(self, image: int) -> Self:
        self.image = image
        return self


class UnsupportedTools(EngineError):
    code = "unsupported_tools"


class InvalidSampling(EngineError):
    code = "invalid_sampling"


class InvalidConstraint(EngineError):
    code = "invalid_constraint"


class ContextLengthExceeded(EngineError):
    code = "context_length_exceeded"


class UnknownPolicy(EngineError):
    code = "unknown_policy"


class InvalidRefreshRatio(EngineError):
    code = "invalid_refresh_ratio"


class TooMuchToExplain(EngineError):
    code = "too_much_to_explain"


class QueueFull(EngineError):
    code = "queue_full"


class DeadlineExceeded(EngineError):
    code = "request_timeout"


class KvTooLarge(EngineError):
    code = "kv_too_large"


class Aborted(EngineError):
    code = "aborted"


class EngineStopped(EngineError):
    code = "engine_stopped"


class NotFinite(EngineError):
    code = "not_finite"


class StoreFailed(EngineError):
    code = "store_failed"


class UnsupportedModel(EngineError):
    code = "unsupported_model"


class InternalError(EngineError):
    code = "internal_error"
