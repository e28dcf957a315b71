"""One answer of a request while it is written: its KV, its tokens, the text that became final."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.answer.detokenizer import Detokenizer
from engine.answer.outlet import Outlet
from engine.answer.sampling import Sampler, likely_logprobs
from engine.calls.format import Piece
from engine.messages import CallDelta, EndReason, TextDelta, TokenLogprob
from engine.passes.decode import Decoder
from engine.serving.prepared import Prepared, call_reader
from engine.serving.runtime import Runtime


class Answer:
    """Feed `take` the logits of `decoder` steps until `reason` says why it ended; `close` at the end, whatever
    happened. `token` was drawn last and has no row yet."""

    def __init__(
        self,
        runtime: Runtime,
        prepared: Prepared,
        index: int,
        decoder: Decoder,
        words: Sequence[int],
        emit: Callable[[TextDelta | CallDelta], None],
    ) -> None:
        """`words` are the ids of the prompt's text."""
        # Nothing here refers to `prepared`: it has the pixels.
        self._runtime, self._emit = runtime, emit
        self._request, self._prompt, self._most = (
            prepared.request.id,
            prepared.layout.length,
            prepared.max_tokens,
        )
        self.index = index
        self.decoder = decoder
        self.token = -1
        self.reason: EndReason | None = None
        self._drawn: list[int] = []
        sampling = prepared.request.sampling
        self._sampling = sampling
        self._ends = frozenset(sampling.stop_tokens) | (
            frozenset() if sampling.ignore_eos else runtime.family.stop_tokens
        )
        follower = prepared.follower
        self._sampler = Sampler(
            sampling,
            words,
            runtime.family.shape.vocab,
            follower.copy() if follower is not None and index else follower,
            number=index,
            ends=sorted(self._ends),
        )
        self._detokenizer = Detokenizer(runtime.prompt.tokenizer)
        self._outlet = Outlet(sampling.stop, call_reader(runtime, prepared.request))
        self._logprobs: list[TokenLogprob] = []

    @property
    def tokens(self) -> int:
        """Tokens drawn, that which ended it among them."""
        return len(self._drawn)

    @property
    def with_rows(self) -> list[int]:
        """Tokens that have a row in the KV: the one drawn last has none yet."""
        return self._drawn[: self.decoder.slot - self._prompt]

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those behind which no text came, once the answer has ended."""
        return () if self._outlet.stopped else tuple(self._logprobs)

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self._outlet.stop

    def take(self, logits: torch.Tensor) -> None:
        """Draw the next token from `logits` [vocab], show the text that became final, end where the answer does."""
        self.token = self._sampler.draw(logits)
        self._drawn.append(self.token)
        if self.token in self._ends:
            self._end("stop")
            return
        self._note_logprobs(logits)
        # What stands before the least length is no stop string, nor the beginning of one.
        stopping = self.tokens >= self._sampling.min_tokens
        self._show(self._outlet.add(self._detokenizer.add(self.token), stopping))
        if self._outlet.stopped:
            self._end("stop")
        elif self.tokens >= self._most:
            self._end("length")

    def close(self) -> None:
        """Give the KV back."""
        self._runtime.pool.give_back(self.decoder.kv)

    def _end(self, reason: EndReason) -> None:
        if not self._outlet.stopped:
            self._show([*self._outlet.add(self._detokenizer.flush()), *self._outlet.flush()])
        if self._outlet.stopped:
            reason = "stop"
        self.reason = "tool_calls" if reason == "stop" and self._outlet.calls else reason

    def _note_logprobs(self, logits: torch.Tensor) -> None:
        count = self._sampling.logprobs
        if count is None:
            return
        own, top = likely_logprobs(logits, self.token, count)
        named = tuple((self._name(token), logprob) for token, logprob in top)
        self._logprobs.append(TokenLogprob(self._name(self.token), own, named))

    def _name(self, token: int) -> str:
        text: str = self._runtime.prompt.tokenizer.decode([token], skip_special_tokens=False)
        return text

    def _show(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            logprobs = tuple(self._logprobs)
            self._logprobs.clear()
            if isinstance(piece, str):
                self._emit(TextDelta(self._request, piece, logprobs, self.index))
            else:
                call = (piece.call, piece.name, piece.arguments)
                self._emit(CallDelta(self._request, *call, logprobs, self.index))
