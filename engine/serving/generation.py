"""The life of one request inside the worker: prepared, prefilled piece by piece, decoded, its memory given back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from engine.answer.explain import explained
from engine.answer.report import Chained, kv_report, usage
from engine.messages import CallDelta, Ended, Finished, TextDelta
from engine.passes.decode import Decoder
from engine.passes.forward import Work
from engine.passes.kv import RequestKV
from engine.passes.refine import Refiner, first_stale
from engine.passes.refresh import Prefill, Prefilled, slots_needed
from engine.passes.witness import Witness
from engine.prompt.layout import ImageSpan
from engine.reports import KvReport, Timings
from engine.serving.answering import Answer
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
    """Exhaust `prefill`, then give `take` the logits of a decoder's step for each answer of `writing`, until `finished`
    is set; `close` at the end, whatever happened."""

    def __init__(
        self,
        runtime: Runtime,
        prepared: Prepared,
        emit: Callable[[TextDelta | CallDelta | Ended], None],
        progress: Callable[[], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._prepared = prepared
        self._emit = emit
        self._answers: list[Answer] = []
        self._refiner: Refiner | None = None
        self._report: KvReport | None = None
        request, layout = prepared.request, prepared.layout
        self._witness = Witness(layout.length) if request.cache.explain else None
        self._chaining = Chaining(
            runtime, request.tenant, prepared.choice, layout, request.images, request.cache
        )
        self._marks = [prepared.submitted]
        self.first_logits: torch.Tensor | None = None
        self.finished: Finished | None = None
        self.work = Work(progress)
        self._entries = Entries(runtime, self.work)

    def prefill(self) -> Iterator[None]:
        """Pieces: some where a chain is read from a tier, one for each image to compute or to read from a tier, one for
        the scoring and refresh pass with the first token. Images that an exact chain holds are neither."""
        self._mark()
        yield from self._chaining.load()
        self._chaining.find_turns()
        features: dict[bytes, torch.Tensor] = {}
        behind = {span.image for span in self._prepared.layout.spans if not self._in_head(span)}
        for index, image in enumerate(self._prepared.request.images):
            if index in behind and image.digest not in features:
                features[image.digest] = self._entries.features(self._prepared, index)
                if self._entries.took_long(image.digest):
                    yield
            self._pin(index)
        self._mark()
        prefilled = self._first_logits(features)
        self._mark()
        self._report = self._make_report(prefilled)
        self._chaining.prefilled(prefilled, self._marks[-1] - self._marks[-2])
        self._release()  # the entries are in the request's own KV now
        self._prepared = self._prepared.without_pixels()
        self.first_logits = prefilled.logits
        self._fork()
        for answer in self._answers:
            self.take(answer, prefilled.logits)

    @property
    def writing(self) -> list[Answer]:
        """The answers that have not ended."""
        return [answer for answer in self._answers if answer.reason is None]

    @property
    def refine_rows(self) -> int:
        """Prompt rows that the next `refine` computes."""
        return 0 if self._refiner is None else min(self._prepared.choice.refine, self._refiner.left)

    def make_room(self) -> None:
        """For the next token of every answer."""
        for answer in self.writing:
            answer.decoder.make_room()

    def refine(self) -> None:
        """What a decode step does before its tokens. The rows are the prompt's, so the same for all answers."""
        if not self.refine_rows or self._refiner is None:
            return
        first, *others = self._answers
        slots = self._refiner.step(first.decoder.kv, self.refine_rows)
        for answer in others:
            answer.decoder.kv.copy(first.decoder.kv, slots)

    def take(self, answer: Answer, logits: torch.Tensor) -> None:
        """The next token of one answer, from `logits` [vocab]."""
        answer.take(logits)
        if answer.reason is None:
            return
        if self.writing:
            ended = (answer.reason, answer.logprobs, answer.index, answer.stop)
            self._emit(Ended(self._prepared.request.id, *ended))
        else:
            self._finish(answer)

    def keep(self) -> None:
        """Leave what is computed so far to the chains."""
        if self._refiner is not None:
            self._chaining.refined(self._refiner.start, self._refiner.refined)
        for answer in self._answers:
            if answer.with_rows or not answer.index:
                self._chaining.keep(answer.decoder.kv, answer.with_rows)

    def write(self) -> None:
        """Have what it has kept written to the store's tiers."""
        for answer in self._answers:
            if answer.with_rows or not answer.index:
                self._chaining.write(answer.with_rows)

    def unfinished(self) -> Unfinished | None:
        """What is left to make exact of what it has kept: behind the first answer, where there are several."""
        return self._chaining.unfinished(self._answers[0].with_rows) if self._answers else None

    def close(self) -> None:
        """Give back leases and KV. Safe at any time, more than once."""
        self._release()
        for answer in self._answers:
            answer.close()
        self._answers.clear()

    def _release(self) -> None:
        self._entries.release()
        self._chaining.release()

    def _mark(self) -> None:
        self._marks.append(time.monotonic())

    def _pin(self, index: int) -> None:
        request = self._prepared.request
        seconds = request.pin_seconds(index)
        if seconds and self._prepared.choice.policy.uses_store:
            self._entries.pin(request, request.images[index], seconds)

    def _in_head(self, span: ImageSpan) -> bool:
        return span.stop <= self._chaining.match.exact

    def _first_logits(self, features: dict[bytes, torch.Tensor]) -> Prefilled:
        runtime, layout, choice = self._runtime, self._prepared.layout, self._prepared.choice
        digests = self._span_digests()
        expected = min(self._prepared.max_tokens, FIRST_ANSWER_SLOTS)
        kv = runtime.pool.take(max(slots_needed(layout), layout.length + expected))
        self._begin_answer(kv)
        found = [features.get(digest) for digest in digests]
        prefill = Prefill(runtime.family, kv, layout, found, self.work, self._chaining.match, self._witness)
        if not choice.policy.uses_store:
            return prefill.full()
        fetched = [self._entries.of(digest) for digest in digests]
        entries = [None if one is None else one.entry for one in fetched]
        prefilled = prefill.reuse(entries, choice.policy, choice.ratio)
        if choice.refine:
            start = min(first_stale(layout, prefilled.exact), *prefilled.turns[:1].tolist(), layout.length)
            self._refiner = Refiner(runtime.family, prefill.prompt_rows, start, self.work)
        return prefilled

    def _begin_answer(self, kv: RequestKV) -> None:
        """An answer that has `kv` from here on."""
        runtime, prepared, layout = self._runtime, self._prepared, self._prepared.layout
        decoder = Decoder(runtime.pool, kv, layout.length, layout.next_position, prepared.slots)
        words = layout.ids[layout.text_slots()].tolist()
        self._answers.append(Answer(runtime, prepared, len(self._answers), decoder, words, self._emit))

    def _fork(self) -> None:
        """The other answers go on from the same prompt, each in a KV of its own."""
        kv, prompt = self._answers[0].decoder.kv, slice(0, self._prepared.layout.length)
        for _ in range(1, self._prepared.request.answers):
            fork = self._runtime.pool.take(kv.capacity)
            self._begin_answer(fork)
            fork.copy(kv, prompt)

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

    def _finish(self, last: Answer) -> None:
        assert self._report is not None and last.reason is not None
        self._mark()
        if self._refiner is not None:
            self._report = replace(self._report, refined=self._refiner.refined)
        submitted, started, images, first, end = self._marks
        request = self._prepared.request
        counts = {"visual_tokens": self._report.visual_tokens, "refreshed": self._report.refreshed}
        record_phases(request.traceparent, PHASES, self._marks, {"request.id": request.id, **counts})
        stores = request.cache.mode in ("auto", "rewrite")
        drawn = sum(answer.tokens for answer in self._answers)
        self.finished = Finished(
            request.id,
            last.reason,
            usage(self._prepared.layout, self._report, drawn, stores),
            self._report,
            Timings(started - submitted, images - started, first - submitted, end - submitted),
            last.logprobs,
            last.index,
            last.stop,
        )
