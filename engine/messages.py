"""What crosses the seam between the HTTP side and a worker: frozen values, no torch.

A request goes one way (`GenerateRequest`), events come back (`Event`). Every accepted request ends in exactly one
terminal event: `Finished` or `Failed`. An abort asked for by the client ends as `Failed` with code `aborted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from engine.figures import ChainStats, ShadowStats
from engine.reports import KvReport, Timings, Usage
from engine.tools import ToolCall, Tools

Role = Literal["system", "user", "assistant", "tool"]
CacheMode = Literal["auto", "read", "bypass", "rewrite"]
# Which chains a request may go on from (see docs/design/engine/chains.md).
ChainUse = Literal["auto", "exact", "off"]
# What becomes of text behind an edit of the history: computed, or reused where a chain holds it.
TurnUse = Literal["compute", "reuse"]
# The end of an answer: its own, a stop string or a stop token; as many tokens as it may have; or calls, whose results
# the caller is to bring.
EndReason = Literal["stop", "length", "tool_calls"]
# A reason in `EngineStatus` that means: replace this worker.
WORKER_DOWN = "the worker is not running"


@dataclass(frozen=True, slots=True)
class ImageInput:
    """One decoded image: upright RGB, row-major, 3 bytes a pixel.

    `digest` is the canonical digest (SHA-256 over mode, width, height and the pixels, see
    `store.records.keys.pixel_digest`).
    """

    digest: bytes
    width: int
    height: int
    pixels: bytes


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A place in the conversation where `GenerateRequest.images[index]` stands."""

    index: int


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class Message:
    """`calls` of the assistant, `result_of` the call that a message of a tool answers, `name` of who speaks."""

    role: Role
    parts: tuple[Part, ...]
    calls: tuple[ToolCall, ...] = ()
    result_of: ToolCall | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form that an answer must have: `text` is a JSON Schema, a regular expression, or a JSON list of texts to
    choose from."""

    kind: Literal["json_schema", "regex", "choice"]
    text: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. The defaults change nothing: greedy, no filter, no penalty.

    `max_tokens` None means the worker's default (bounded by the context). Temperature 0 is greedy. `top_k` 0, `top_p` 1
    and `min_p` 0 keep every token. `repetition_penalty` (1 = none) divides the logits of tokens that the prompt or the
    answer holds; presence and frequency penalties are subtracted for tokens of the answer. `logit_bias` are
    (token id, bias) pairs. `logprobs` None reports none, n reports each token's own and those of the n most likely.
    Nothing ends an answer before it has `min_tokens`, unless its form does. A token of `stop_tokens` ends it and is not
    shown; with `ignore_eos` the model's own stop tokens do not end it.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How this request uses the store.

    auto: read, and store what was missing. read: read, store nothing. bypass: neither. rewrite: compile anew and store.
    `policy` and `refresh_ratio` None mean the server's defaults; `options` are the policy's own (for instance
    `{"preset": "paper"}`). `refine`: prompt rows that every decode step computes anew, in sequence order, until all
    are exact (0: none; None: the server's default). `pin_seconds` keeps the images' entries, and the beginning of what
    is written of the chain, from ordinary eviction for that long. `chain` says which chains may be used: all that fit,
    exact ones only, or none (then none is kept either); None is the server's default. `turns` "reuse" takes the
    rows of text behind an edit from where chains hold the same text, with chain "auto" only; None is the server's
    default. `explain` asks for an `Explanation` of every image in the report. `hint`: prompts of a tenant with the same
    one belong together, so that a use of one keeps the chains of the others; it never decides what is found.
    """

    mode: CacheMode = "auto"
    policy: str | None = None
    refresh_ratio: float | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    pin_seconds: float | None = None
    refine: int | None = None
    chain: ChainUse | None = None
    explain: bool = False
    hint: str | None = None
    turns: TurnUse | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """`tenant` names whose entries are used; `account` is who is served fairly beside others (empty: the tenant; they
    differ where one caller's salts make several tenants). `answers` are drawn from one prefill, the seeds of the others
    counted up from the first's. `pins` keep the entry of image i from ordinary eviction for so many seconds (0: not),
    beside what `cache` says of all. `template` are variables of the model's own chat template. A lower `priority` is
    served first. `timeout_seconds` from `submit` on, None for no limit. `traceparent` (W3C) is the caller's span."""

    id: str
    tenant: str
    messages: tuple[Message, ...]
    images: tuple[ImageInput, ...]
    sampling: Sampling = Sampling()
    cache: CacheOptions = CacheOptions()
    account: str = ""
    answers: int = 1
    priority: int = 0
    timeout_seconds: float | None = None
    traceparent: str | None = None
    tools: Tools | None = None
    pins: tuple[float, ...] = ()
    template: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    def pin_seconds(self, index: int) -> float:
        """For how long the entry of image `index` is kept: the longest that is asked for its pixels."""
        digest = self.images[index].digest
        own = [pin for image, pin in zip(self.images, self.pins, strict=False) if image.digest == digest]
        return max(self.cache.pin_seconds or 0.0, *own, 0.0)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The prompt was tokenised and fits: from here on a response may be started."""

    request_id: str
    prompt_tokens: int
    image_tokens: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token as text, its natural log probability, and the most likely ones at its place (itself among
    them only if it is one). Raw model probabilities: before temperature, filters and penalties."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of answer `index` that is final: held back until no stop string or split character can change it. Never
    empty. `logprobs` are those of the tokens that became final with it, where they were asked for."""

    request_id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The next of a tool call of answer `index`. `call` counts the calls of that answer from 0; `name` comes with the
    first of one and with no other; `arguments` goes on its JSON text. `logprobs` as in `TextDelta`."""

    request_id: str
    call: int
    name: str | None
    arguments: str
    logprobs: tuple[TokenLogprob, ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """Answer `index` is whole, others of the request are not yet. `logprobs` and `stop` as in `Finished`."""

    request_id: str
    reason: EndReason
    logprobs: tuple[TokenLogprob, ...] = ()
    index: int = 0
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last answer, `index`, is whole. `logprobs` are those of its tokens behind which no text came any more, `stop`
    is the stop string that ended it."""

    request_id: str
    reason: EndReason
    usage: Usage
    report: KvReport
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] = ()
    index: int = 0
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """`code` is stable (see `engine.errors`), `message` is ours and safe to show. `image` is which of the request's
    images is at fault, where one is."""

    request_id: str
    code: str
    message: str
    image: int | None = None


Event = Accepted | TextDelta | CallDelta | Ended | Finished | Failed


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the HTTP side needs to know of a loaded model."""

    model: str
    max_context: int
    policies: tuple[str, ...]
    default_policy: str
    default_refresh_ratio: float
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """`ready` with the reasons why not; `degraded` is what is wrong and keeps nobody from an answer;
    `progress_seconds` is the time since the worker last finished a step or was seen idle; queue lengths are
    requests."""

    ready: bool
    reasons: tuple[str, ...]
    progress_seconds: float
    waiting: int
    running: int
    shadow: ShadowStats = field(default_factory=ShadowStats)
    degraded: tuple[str, ...] = ()
    chains: ChainStats = field(default_factory=ChainStats)
