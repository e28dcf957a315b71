"""The engine against transformers' own forward: promise 3, and what reuse rests on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from engine.passes.decode import Decoder, decode_step
from engine.passes.forward import Work
from engine.passes.rotation import rotate
from engine.prompt.layout import PromptLayout
from tests.engine.conftest import PICTURES, SHIFTED, Bench, picture, said, stock_inputs, user

CONVERSATIONS = {
    "images first": ([user(0, 1, 2, "What is K?")], 3),
    "other system prompt": (SHIFTED, 3),
    "question first": ([user("What is K on the red page?", 0, 1)], 2),
    "adjacent images, image last": ([said("system", "x"), user(0, 1, 2)], 3),
    "two turns": ([user(0, "What is K?"), said("assistant", "four"), user(1, "And L?")], 2),
    "text only": ([user("hello there")], 0),
    "one-token question": ([user(0, "K")], 1),
}


@pytest.fixture(params=CONVERSATIONS, scope="module")
def laid_out(request: pytest.FixtureRequest, bench: Bench) -> tuple[PromptLayout, list[np.ndarray]]:
    messages, images = CONVERSATIONS[request.param]
    return bench.layout(messages, PICTURES[:images]), PICTURES[:images]


@torch.no_grad()
def test_full_prefill_equals_stock_logits_and_kv(
    bench: Bench, stock: Qwen2_5_VLForConditionalGeneration, laid_out: tuple[PromptLayout, list[np.ndarray]]
) -> None:
    layout, pictures = laid_out
    theirs = stock(**stock_inputs(bench, layout, pictures), use_cache=True)
    prefill, ours = bench.full(layout, pictures)
    assert torch.allclose(ours.logits, theirs.logits[0, -1], atol=1e-4)
    for index, layer in enumerate(theirs.cache.layers):
        assert torch.allclose(prefill.kv.keys[index, :, : layout.length], layer.keys[0], atol=1e-4)
        assert torch.allclose(prefill.kv.values[index, :, : layout.length], layer.values[0], atol=1e-4)


@torch.no_grad()
def test_promise_3_r_1_is_full_prefill(
    bench: Bench, stock: Qwen2_5_VLForConditionalGeneration, laid_out: tuple[PromptLayout, list[np.ndarray]]
) -> None:
    layout, pictures = laid_out
    theirs = stock(**stock_inputs(bench, layout, pictures), use_cache=True)
    prefill, ours = bench.reuse(layout, pictures, 1.0)
    assert torch.allclose(ours.logits, theirs.logits[0, -1], atol=1e-4)
    assert ours.refreshed == tuple(span.tokens for span in layout.spans)
    for index, layer in enumerate(theirs.cache.layers):
        assert torch.allclose(prefill.kv.keys[index, :, : layout.length], layer.keys[0], atol=1e-4)


@torch.no_grad()
def test_positions_equal_the_library_s(bench: Bench, stock: Qwen2_5_VLForConditionalGeneration) -> None:
    for messages, images in CONVERSATIONS.values():
        layout = bench.layout(messages, PICTURES[:images])
        inputs = stock_inputs(bench, layout, PICTURES[:images])
        theirs, delta = stock.model.get_rope_index(
            inputs["input_ids"], inputs["mm_token_type_ids"], inputs.get("image_grid_thw")
        )
        assert np.array_equal(layout.positions, theirs[:, 0].numpy())
        assert layout.next_position == layout.length + int(delta)


@torch.no_grad()
def test_decode_after_full_prefill_equals_generate(
    bench: Bench, stock: Qwen2_5_VLForConditionalGeneration, laid_out: tuple[PromptLayout, list[np.ndarray]]
) -> None:
    layout, pictures = laid_out
    inputs = stock_inputs(bench, layout, pictures)
    theirs = stock.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    generated = theirs[0, layout.length :].tolist()
    prefill, first = bench.full(layout, pictures)
    decoder = Decoder(bench.pool, prefill.kv, layout.length, layout.next_position, layout.length + 8)
    logits, ours = first.logits, []
    for _ in range(8):
        # `min_new_tokens` bans the end of the answer, so that all eight tokens are compared.
        logits[list(bench.family.stop_tokens)] = float("-inf")
        ours.append(int(logits.argmax()))
        logits = decode_step(bench.family, [decoder], [ours[-1]], [Work()])[0]
    assert ours == generated


@torch.no_grad()
def test_r_0_equals_a_text_only_pass_over_restored_kv(
    bench: Bench, stock: Qwen2_5_VLForConditionalGeneration
) -> None:
    """T2, with the library's own decoder over the restored visual KV and a plain mask."""
    layout = bench.layout(SHIFTED, PICTURES)
    prefill, ours = bench.reuse(layout, PICTURES, 0.0)
    text = torch.as_tensor(layout.text_slots())
    cache = _SlotCache(prefill.kv.keys.clone(), prefill.kv.values.clone(), text)
    embeds = stock.model.language_model.embed_tokens(torch.as_tensor(layout.ids)[text])[None]
    positions = torch.as_tensor(layout.positions)[:, None, text]
    later = text[:, None] < torch.arange(prefill.kv.capacity)[None]
    mask = torch.zeros(later.shape).masked_fill(later, float("-inf"))[None, None]
    hidden = stock.model.language_model(
        inputs_embeds=embeds, position_ids=positions, attention_mask={"full_attention": mask}, cache=cache
    ).last_hidden_state
    assert torch.allclose(stock.lm_head(hidden)[0, -1], ours.logits, atol=1e-4)


class _SlotCache:
    """A stock cache that writes rows to given slots of given tensors."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        self.keys, self.values, self.slots = keys, values, slots

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, **_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[layer][:, self.slots] = keys[0]
        self.values[layer][:, self.slots] = values[0]
        return self.keys[layer][None], self.values[layer][None]

    def get_seq_length(self, *_: object) -> int:
        return 0


@torch.no_grad()
@pytest.mark.parametrize(
    "pictures", [PICTURES, [picture(seed) for seed in (1, 2, 3)]], ids=["of three sizes", "of one size"]
)
def test_restored_keys_of_layer_0_equal_fresh_ones_anywhere(bench: Bench, pictures: list[np.ndarray]) -> None:
    """T7: layer 0 sees no context, so there re-rotation is all that could differ. T13: images of one size, whose KV
    fits in one another's slots, do not change places."""
    layout = bench.layout(SHIFTED, pictures)
    reused, _ = bench.reuse(layout, pictures, 0.0)
    fresh, _ = bench.full(layout, pictures)
    slots = torch.as_tensor(layout.visual_slots())
    assert torch.allclose(reused.kv.keys[0][:, slots], fresh.kv.keys[0][:, slots], atol=1e-5)
    assert torch.allclose(reused.kv.values[0][:, slots], fresh.kv.values[0][:, slots], atol=1e-5)
    # the control: deeper layers do see the context
    assert not torch.allclose(reused.kv.keys[2][:, slots], fresh.kv.keys[2][:, slots], atol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5])
def test_canonical_first_image_is_exact_and_never_selected(bench: Bench, ratio: float) -> None:
    """T9: behind the default system prompt the first image equals full prefill, and others take the whole budget."""
    layout = bench.layout([user(0, 1, "What is K?")], PICTURES[:2])
    reused, result = bench.reuse(layout, PICTURES[:2], ratio)
    fresh, _ = bench.full(layout, PICTURES[:2])
    first = slice(layout.spans[0].start, layout.spans[0].stop)
    assert torch.allclose(reused.kv.keys[:, :, first], fresh.kv.keys[:, :, first], atol=1e-5)
    assert torch.allclose(reused.kv.values[:, :, first], fresh.kv.values[:, :, first], atol=1e-5)
    assert result.exact == (True, False)
    assert result.refreshed == (0, int(np.ceil(ratio * layout.spans[1].tokens)))


@torch.no_grad()
def test_single_image_behind_the_default_prompt_needs_no_refresh(bench: Bench) -> None:
    layout = bench.layout([user(0, "What is K?")], PICTURES[:1])
    _, result = bench.reuse(layout, PICTURES[:1], 0.1)
    _, full = bench.full(layout, PICTURES[:1])
    assert torch.allclose(result.logits, full.logits, atol=1e-5)
    assert result.refreshed == (0,)


def test_rotation_equals_the_plain_formula(bench: Bench) -> None:
    layout = bench.layout(SHIFTED, PICTURES)
    rope = bench.family.rope(torch.as_tensor(layout.positions))
    x = torch.randn(3, 2, layout.length, bench.family.shape.head_dim)
    half = x.shape[-1] // 2
    plain = x * rope.cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * rope.sin
    assert torch.allclose(rotate(x, rope), plain, atol=1e-6)


def test_moving_an_image_is_one_rotation_by_a_single_angle(bench: Bench) -> None:
    """T7 for M-RoPE: all three coordinates of every token of an image shift alike."""
    near = bench.layout([user(0, "K")], PICTURES[:1])
    far = bench.layout([said("system", "one two three four five"), user("six seven", 0, "K")], PICTURES[:1])
    at = [layout.positions[:, layout.visual_slots()] for layout in (near, far)]
    shift = at[1] - at[0]
    assert shift.min() == shift.max() > 0
    x = torch.randn(1, near.spans[0].tokens, bench.family.shape.head_dim)
    once = rotate(x, bench.family.rope(torch.as_tensor(at[1])))
    delta = bench.family.rope(torch.as_tensor(shift))
    assert torch.allclose(
        rotate(rotate(x, bench.family.rope(torch.as_tensor(at[0]))), delta), once, atol=1e-5
    )


@torch.no_grad()
def test_a_long_question_scores_in_pieces_with_the_same_result(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = bench.layout([said("system", "x"), user(0, 1, "What is K on the red page? " * 8)], PICTURES[:2])
    results = [bench.reuse(layout, PICTURES[:2], 0.3, preset=preset)[1] for preset in ("ours", "paper")]
    monkeypatch.setattr("engine.passes.score.WEIGHT_ROWS", 7)
    for preset, whole in zip(("ours", "paper"), results, strict=True):
        _, pieces = bench.reuse(layout, PICTURES[:2], 0.3, preset=preset)
        assert pieces.refreshed == whole.refreshed
        assert torch.allclose(pieces.logits, whole.logits, atol=1e-5)


def test_picture_too_narrow_is_named(bench: Bench) -> None:
    from engine.errors import InvalidImage

    with pytest.raises(InvalidImage, match="3000 x 2"):
        bench.layout([user(0)], [picture(0, 3000, 2)])
