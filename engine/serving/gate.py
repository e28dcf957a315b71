"""The start-up gate: before a loaded model may reuse KV, it must show on one synthetic picture that reuse is sound."""

from __future__ import annotations

import numpy as np
import torch

from engine.answer.sampling import are_sound
from engine.errors import NotFinite, UnsupportedModel
from engine.families.base import Family
from engine.messages import ImagePart, Message, TextPart
from engine.passes.attention import by_order
from engine.passes.compile import compile_image
from engine.passes.forward import Work, run_rows
from engine.passes.kv import KVPool
from engine.passes.refresh import Prefill, slots_needed
from engine.policies.known import make_policy
from engine.prompt.chat import ChatPrompt
from engine.prompt.layout import PromptLayout
from store.records.entry import ImageKV

# Largest difference of logits, as a share of the largest logit, by how finely a dtype rounds.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}
EDGE = 112


def reuse_is_unsound(family: Family, prompt: ChatPrompt, pool: KVPool) -> str | None:
    """None where reuse may be trusted on this model, else the reason why not. Raises `UnsupportedModel` where the
    model itself gives no numbers: then there is nothing to answer with.

    Four comparisons on a picture of noise: our full prefill against the library's own; the restored picture behind a
    shifted prefix (r = 0), row by row at the first layer, which sees no context, against full prefill; a pass by
    sequence order over stale KV, all rows refreshed (r = 1 by the refresh path), there, against full prefill; and the
    restored picture behind its canonical prefix (r = 0) against full prefill.
    """
    check = _Check(family, prompt, pool)
    shifted = check.layout("Look closely.")
    canonical = check.layout(None)
    stock = family.stock_logits(shifted.ids, [check.picture])
    if not are_sound(stock):
        raise UnsupportedModel(
            "the model's own numbers for a picture are not finite on this device with this dtype; "
            "another CONDUIT_DTYPE may help"
        )
    full = check.prefill(shifted).full().logits
    if not check.close(full, stock):
        return "full prefill differs from the library's own"
    try:
        check.compile()
    except NotFinite:
        return "what would be stored of an image is not finite"
    if not check.close(check.first_layer_restored(shifted), check.first_layer_computed(shifted)):
        return "restored keys differ from fresh ones where nothing but their place does"
    if not check.close(check.refresh_all(shifted), full):
        return "refreshing every row differs from full prefill"
    if not check.close(check.reuse(canonical), check.prefill(canonical).full().logits):
        return "an image restored behind its canonical prefix differs from full prefill"
    return None


class _Check:
    def __init__(self, family: Family, prompt: ChatPrompt, pool: KVPool) -> None:
        self._family, self._prompt, self._pool = family, prompt, pool
        self.picture = np.random.default_rng(0).integers(0, 256, (EDGE, EDGE, 3), dtype=np.uint8)
        self._span = family.span(EDGE, EDGE)
        self._features = family.encode(self.picture)
        self._entries: list[ImageKV] = []

    def compile(self) -> None:
        """The picture's entry, which the checks of reuse need."""
        prefix = self._prompt.prefix_ids
        entry = compile_image(self._family, self._pool, prefix, self._features, self._span, Work())
        self._entries = [entry]

    def layout(self, system: str | None) -> PromptLayout:
        messages = [Message("user", (ImagePart(0), TextPart("What is this?")))]
        if system is not None:
            messages.insert(0, Message("system", (TextPart(system),)))
        return self._prompt.layout(messages, [self._span])

    def prefill(self, layout: PromptLayout) -> Prefill:
        kv = self._pool.take(slots_needed(layout))
        self._pool.give_back(kv)  # one check at a time: nobody else takes it meanwhile
        return Prefill(self._family, kv, layout, [self._features], Work())

    def reuse(self, layout: PromptLayout) -> torch.Tensor:
        return self.prefill(layout).reuse(self._entries, make_policy("reuse", {}), 0.0).logits

    def first_layer_restored(self, layout: PromptLayout) -> torch.Tensor:
        """The picture's keys of layer 0 as they are restored: [kv_heads, rows, head_dim]."""
        prefill = self.prefill(layout)
        prefill.restore(self._entries, make_policy("reuse", {}), 0.0)
        return self._first_layer(prefill)

    def first_layer_computed(self, layout: PromptLayout) -> torch.Tensor:
        prefill = self.prefill(layout)
        prefill.full()
        return self._first_layer(prefill)

    def _first_layer(self, prefill: Prefill) -> torch.Tensor:
        return prefill.kv.keys[0][:, torch.as_tensor(prefill.layout.restored_slots())].clone()

    def refresh_all(self, layout: PromptLayout) -> torch.Tensor:
        """Every row through the path of scattered rows, which the r = 1 of a request does not take."""
        prefill = self.prefill(layout)
        prefill.reuse(self._entries, make_policy("reuse", {}), 0.0)
        rows = prefill.rows(np.arange(layout.length))
        attention = by_order(rows.slots, self._family.shape.group)
        return self._family.logits(run_rows(self._family, prefill.kv, rows, attention, Work()))[0]

    def close(self, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        """`theirs` are finite; a difference that is no number is never small."""
        allowed = TOLERANCE.get(self._family.dtype, 1e-3) * float(theirs.abs().max())
        return float((ours - theirs).abs().max()) <= allowed
