"""The life of one request inside the worker: prepared, prefilled piece by piece, decoded, its memory given back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from engine.answer.detokenizer import Detokenizer
from engine.answer.explain import explained
from engine.answer.report import Chained, kv_report, usage
from engine.answer.sampling import Sampler, likely_logprobs
from engine.answer.stops import StopStrings
from engine.messages import Finished, ImageInput, TextDelta, TokenLogprob
from engine.passes.decode import Decoder
from engine.passes.forward import Work
from engine.passes.refine import Refiner, first_stale
from engine.passes.refresh import Prefill, Prefilled, slots_needed
from engine.passes.witness import Witness
from engine.prompt.layout import ImageSpan
from engine.reports import KvReport, Timings
from engine.serving.chaining import Chaining
from engine.serving.entries import Entries
from engine.serving.prepared import Prepared
from engine.serving.refinement import Unfinished
from engine.serving.runtime import Runtime
from engine.tracing import record_phases

# Slots that the KV has for the answer at first; it grows with it.
FIRST_ANSWER_SLOTS = 256

# What lies between the times that a generation notes.
PHASES = ("engine.queue", "engine.images", "engine.refresh", "engine.decode")


class Generation:
    """Exhaust `prefill`, then feed `take` the logits of `decoder` steps until `finished` is set; `close` at the end,
    whatever happened."""

    def __init__(
        self,
        runtime: Runtime,
        prepared: Prepared,
        emit: Callable[[TextDelta], None],
        progress: Callable[[], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._prepared = prepared
        self._emit = emit
        self.decoder: Decoder | None = None
        self._refiner: Refiner | None = None
        self._report: KvReport | None = None
        self.token = -1
        self._drawn: list[int] = []
        request, layout = prepared.request, prepared.layout
        self._witness = Witness(layout.length) if request.cache.explain else None
        self._chaining = Chaining(runtime, request.tenant, prepared.choice, layout, request.images)
        words = layout.ids[layout.text_slots()].tolist()
        self._sampler = Sampler(
            prepared.request.sampling, words, runtime.family.shape.vocab, prepared.follower
        )
        self._detokenizer = Detokenizer(runtime.prompt.tokenizer)
        self._stops = StopStrings(prepared.request.sampling.stop)
        self._logprobs: list[TokenLogprob] = []
        self._marks = [prepared.submitted]
        self.first_logits: torch.Tensor | None = None
        self.finished: Finished | None = None
        self.work = Work(progress)
        self._entries = Entries(runtime, self.work)

    def prefill(self) -> Iterator[None]:
        """Pieces: one for each image to compute or to read from a tier, one for the scoring and refresh pass with the
        first token. Images that an exact chain holds are neither."""
        self._mark()
        features: dict[bytes, torch.Tensor] = {}
        behind = {span.image for span in self._prepared.layout.spans if not self._in_head(span)}
        for index, image in enumerate(self._prepared.request.images):
            if index in behind and image.digest not in features:
                features[image.digest] = self._entries.features(self._prepared, index)
                if self._entries.took_long(image.digest):
                    yield
            self._pin(image)
        self._mark()
        prefilled = self._first_logits(features)
        self._mark()
        self._report = self._make_report(prefilled)
        self._chaining.prefilled(prefilled)
        self._release()  # the entries are in the request's own KV now
        self._prepared = self._prepared.without_pixels()
        self.first_logits = prefilled.logits
        self.take(prefilled.logits)

    @property
    def refine_rows(self) -> int:
        """Prompt rows that the next `refine` computes."""
        return 0 if self._refiner is None else min(self._prepared.choice.refine, self._refiner.left)

    def refine(self) -> None:
        """What a decode step does before its token."""
        if self.refine_rows and self._refiner is not None and self.decoder is not None:
            self._refiner.step(self.decoder.kv, self.refine_rows)

    def take(self, logits: torch.Tensor) -> None:
        """Draw the next token from `logits` [vocab], show the text that became final, finish where the answer ends."""
        self.token = self._sampler.draw(logits)
        self._drawn.append(self.token)
        if self.token in self._runtime.family.stop_tokens:
            self._finish("stop")
            return
        self._note_logprobs(logits)
        self._show(self._stops.add(self._detokenizer.add(self.token)))
        if self._stops.found:
            self._finish("stop")
        elif len(self._drawn) >= self._prepared.max_tokens:
            self._finish("length")

    def keep(self) -> None:
        """Leave what is computed so far to the chains."""
        if self.decoder is not None:
            if self._refiner is not None:
                self._chaining.refined(self._refiner.start, self._refiner.refined)
            self._chaining.keep(self.decoder.kv, self._answered())

    def unfinished(self) -> Unfinished | None:
        """What is left to make exact of what it has kept."""
        return None if self.decoder is None else self._chaining.unfinished(self._answered())

    def close(self) -> None:
        """Give back leases and KV. Safe at any time, more than once."""
        self._release()
        if self.decoder is not None:
            self._runtime.pool.give_back(self.decoder.kv)
            self.decoder = None

    def _answered(self) -> list[int]:
        """Tokens of the answer that have a row: the one drawn last has none yet."""
        assert self.decoder is not None
        return self._drawn[: self.decoder.slot - self._prepared.layout.length]

    def _release(self) -> None:
        self._entries.release()
        self._chaining.release()

    def _mark(self) -> None:
        self._marks.append(time.monotonic())

    def _pin(self, image: ImageInput) -> None:
        request = self._prepared.request
        if request.cache.pin_seconds is not None and self._prepared.choice.policy.uses_store:
            self._entries.pin(request, image, request.cache.pin_seconds)

    def _in_head(self, span: ImageSpan) -> bool:
        return span.stop <= self._chaining.match.exact

    def _first_logits(self, features: dict[bytes, torch.Tensor]) -> Prefilled:
        runtime, layout, choice = self._runtime, self._prepared.layout, self._prepared.choice
        digests = self._span_digests()
        answer = min(self._prepared.max_tokens, FIRST_ANSWER_SLOTS)
        kv = runtime.pool.take(max(slots_needed(layout), layout.length + answer))
        self.decoder = Decoder(runtime.pool, kv, layout.length, layout.next_position, self._prepared.slots)
        found = [features.get(digest) for digest in digests]
        prefill = Prefill(runtime.family, kv, layout, found, self.work, self._chaining.match, self._witness)
        if not choice.policy.uses_store:
            return prefill.full()
        fetched = [self._entries.of(digest) for digest in digests]
        entries = [None if one is None else one.entry for one in fetched]
        prefilled = prefill.reuse(entries, choice.policy, choice.ratio)
        if choice.refine:
            start = first_stale(layout, prefilled.exact)
            self._refiner = Refiner(runtime.family, prefill.prompt_rows, start, self.work)
        return prefilled

    def _span_digests(self) -> list[bytes]:
        return [self._prepared.request.images[span.image].digest for span in self._prepared.layout.spans]

    def _make_report(self, prefilled: Prefilled) -> KvReport:
        request, layout = self._prepared.request, self._prepared.layout
        fetched = [self._entries.of(digest) for digest in self._span_digests()]
        keys = [self._runtime.key(request.tenant, request.images[span.image]).hex for span in layout.spans]
        chained = Chained(self._chaining.chained(), *self._chaining.chained_tokens())
        choice = self._prepared.choice
        report = kv_report(choice, layout, prefilled, fetched, keys, chained)
        if self._witness is None:
            return report
        given = self._chaining.match.given(layout.length)
        return explained(report, layout, choice.policy, prefilled, given, self._witness)

    def _finish(self, reason: str) -> None:
        if not self._stops.found:
            self._show(self._stops.add(self._detokenizer.flush()) + self._stops.flush())
        assert self._report is not None
        self._mark()
        if self._refiner is not None:
            self._report = replace(self._report, refined=self._refiner.refined)
        submitted, started, images, first, end = self._marks
        request = self._prepared.request
        counts = {"visual_tokens": self._report.visual_tokens, "refreshed": self._report.refreshed}
        record_phases(request.traceparent, PHASES, self._marks, {"request.id": request.id, **counts})
        stores = request.cache.mode in ("auto", "rewrite")
        self.finished = Finished(
            request.id,
            "length" if reason == "length" and not self._stops.found else "stop",
            usage(self._prepared.layout, self._report, len(self._drawn), stores),
            self._report,
            Timings(started - submitted, images - started, first - submitted, end - submitted),
            () if self._stops.found else tuple(self._logprobs),
        )

    def _note_logprobs(self, logits: torch.Tensor) -> None:
        count = self._prepared.request.sampling.logprobs
        if count is None:
            return
        own, top = likely_logprobs(logits, self.token, count)
        named = tuple((self._name(token), logprob) for token, logprob in top)
        self._logprobs.append(TokenLogprob(self._name(self.token), own, named))

    def _name(self, token: int) -> str:
        text: str = self._runtime.prompt.tokenizer.decode([token], skip_special_tokens=False)
        return text

    def _show(self, text: str) -> None:
        if text:
            self._emit(TextDelta(self._prepared.request.id, text, tuple(self._logprobs)))
            self._logprobs.clear()
