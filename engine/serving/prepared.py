"""A request before anything of it is computed: checked, laid out, and fitting the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from engine.answer.constraint import Follower
from engine.answer.sampling import check_sampling
from engine.calls.format import CallReader
from engine.errors import ContextLengthExceeded, InvalidImage, InvalidSampling, TooMuchToExplain
from engine.families.span import SpanShape
from engine.messages import GenerateRequest, ImageInput
from engine.passes.refresh import slots_needed
from engine.policies.choice import Choice
from engine.prompt.layout import PromptLayout
from engine.serving.runtime import Runtime

# Answer tokens where a request does not say.
DEFAULT_MAX_TOKENS = 2048
# Visual tokens whose explanation is about 1 MB of an answer.
MOST_EXPLAINED = 32_768


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was found good: laid out, and fitting the model. `submitted` is on the monotonic clock."""

    request: GenerateRequest
    choice: Choice
    layout: PromptLayout
    shapes: tuple[SpanShape, ...]
    max_tokens: int
    submitted: float
    follower: Follower | None = None

    @property
    def slots(self) -> int:
        """KV slots that the request may ever take."""
        return max(slots_needed(self.layout), self.layout.length + self.max_tokens)

    def without_pixels(self) -> Prepared:
        """All that decoding needs."""
        return replace(self, request=replace(self.request, images=()))


def prepare(runtime: Runtime, request: GenerateRequest, submitted: float) -> Prepared:
    """Check and lay out a request. Raises `EngineError` for what is wrong with it."""
    choice = runtime.choose(request.cache)
    check_sampling(request.sampling, runtime.family.shape.vocab)
    # Before tokenising: that takes seconds for megabytes of text.
    answer_budget(
        runtime.prompt.least_tokens(request.messages, request.tools), None, runtime.family.max_context
    )
    shapes = tuple(_shape(runtime, image, number) for number, image in enumerate(request.images))
    layout = runtime.prompt.layout(
        request.messages, shapes, choice.policy.question, request.tools, request.template
    )
    if request.cache.explain and layout.visual_tokens > MOST_EXPLAINED:
        raise TooMuchToExplain(
            f"cache.explain: the request has {layout.visual_tokens} visual tokens, and {MOST_EXPLAINED} can be "
            "explained"
        )
    max_tokens = answer_budget(layout.length, request.sampling.max_tokens, runtime.family.max_context)
    if request.sampling.min_tokens > max_tokens:
        raise InvalidSampling(f"min_tokens: {request.sampling.min_tokens}, but {max_tokens} at most fit here")
    return Prepared(request, choice, layout, shapes, max_tokens, submitted, _follower(runtime, request))


def call_reader(runtime: Runtime, request: GenerateRequest) -> CallReader | None:
    """What finds the calls in an answer to `request`, where it may hold any."""
    if request.tools is None or request.tools.use == "none":
        return None
    return runtime.prompt.call_format.reader()


def _follower(runtime: Runtime, request: GenerateRequest) -> Follower | None:
    form = request.sampling.constraint
    if request.tools is not None:
        return runtime.constraints.follow_calls(runtime.prompt.call_format, request.tools, form)
    return None if form is None else runtime.constraints.follow(form)


def _shape(runtime: Runtime, image: ImageInput, number: int) -> SpanShape:
    try:
        return runtime.family.span(image.width, image.height)
    except InvalidImage as error:
        raise error.at(number) from None


def picture(image: ImageInput) -> np.ndarray:
    """Pixels of an image, uint8 [height, width, 3]."""
    return np.frombuffer(image.pixels, dtype=np.uint8).reshape(image.height, image.width, 3)


def answer_budget(prompt: int, asked: int | None, context: int) -> int:
    """Tokens that may be generated. Raises `ContextLengthExceeded` where prompt and answer do not fit together."""
    room = context - prompt
    if room < (asked or 1):
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens and {asked or 1} are asked for, but the model holds {context}"
        )
    return asked or min(room, DEFAULT_MAX_TOKENS)
