"""What every family must show on a random checkpoint of its class: it is the library's model, whatever rows are run.

A new family joins by its line in `engine.families.known` and its kind in `benchmarks.random_families`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.random_families import KINDS, Sizes, write_random_family
from engine.chains.held import Computed
from engine.chains.segments import Content, root_of
from engine.chains.tree import Chains
from engine.errors import UnsupportedModel
from engine.families.checkpoint import Checkpoint
from engine.families.known import FAMILIES, REFUSED, family_of
from engine.passes.compile import entry_layout
from engine.passes.decode import Decoder, decode_step
from engine.passes.forward import Work
from engine.passes.kv import KVPool
from engine.passes.refresh import Prefill
from engine.policies.known import make_policy
from engine.prompt.chat import ChatPrompt
from engine.prompt.layout import PromptLayout
from engine.serving.gate import reuse_is_unsound
from store.codecs.protocol import codecs
from tests.engine.conftest import Bench, load_bench, picture, said, user
from tests.engine.plain import run_plainly
from tests.store.tensors import stored

pytestmark = pytest.mark.usefixtures("no_grad")

PICTURES = [picture(1, 130, 70), picture(2, 56, 56), picture(3, 90, 190)]
CONVERSATIONS = {
    "default prompt": ([user(0, "What is K?")], 1),
    "other system prompt": ([said("system", "Read."), user(0, "one, ", 1, 2, "What is K?")], 3),
    "question first": ([user("What is K on the red page?", 0, 1)], 2),
    "two turns": ([user(0, "What is K?"), said("assistant", "four"), user(1, "And L?")], 2),
    "text only": ([user("hello there")], 0),
}


@pytest.fixture(
    params=sorted(FAMILIES), ids=lambda name: name.removesuffix("ForConditionalGeneration"), scope="module"
)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_family(tmp_path_factory.mktemp("family"), request.param)


@pytest.fixture(scope="module")
def family_bench(path: Path) -> Bench:
    return load_bench(path)


@pytest.fixture(params=CONVERSATIONS)
def laid_out(request: pytest.FixtureRequest, family_bench: Bench) -> tuple[PromptLayout, list[np.ndarray]]:
    messages, images = CONVERSATIONS[request.param]
    return family_bench.layout(messages, PICTURES[:images]), PICTURES[:images]


def _several() -> tuple[list, list[np.ndarray]]:
    messages, images = CONVERSATIONS["other system prompt"]
    return messages, PICTURES[:images]


def test_every_family_has_a_random_checkpoint() -> None:
    assert set(KINDS) == set(FAMILIES)


def test_full_prefill_is_the_library_s(
    family_bench: Bench, laid_out: tuple[PromptLayout, list[np.ndarray]]
) -> None:
    layout, pictures = laid_out
    _, ours = family_bench.full(layout, pictures)
    theirs = family_bench.family.stock_logits(layout.ids, [pictures[span.image] for span in layout.spans])
    assert torch.allclose(ours.logits, theirs, atol=2e-4)


def test_promise_3_r_1_is_full_prefill(
    family_bench: Bench, laid_out: tuple[PromptLayout, list[np.ndarray]]
) -> None:
    layout, pictures = laid_out
    full, theirs = family_bench.full(layout, pictures)
    reused, ours = family_bench.reuse(layout, pictures, 1.0)
    assert torch.allclose(ours.logits, theirs.logits, atol=1e-4)
    assert torch.allclose(
        reused.kv.keys[:, :, : layout.length], full.kv.keys[:, :, : layout.length], atol=1e-4
    )
    assert ours.refreshed == tuple(span.tokens for span in layout.spans)


def test_rows_refreshed_alone_are_what_the_plain_formulas_give(family_bench: Bench) -> None:
    """DeepStack levels, text inside spans and norms of keys included: some rows anew, the others as restored."""
    messages, pictures = _several()
    layout = family_bench.layout(messages, pictures)
    fast, _ = family_bench.reuse(layout, pictures, 0.0)
    plain, _ = family_bench.reuse(layout, pictures, 0.0)
    chosen = np.sort(np.concatenate((layout.visual_slots()[::3], layout.text_slots())))
    expected = run_plainly(plain, [chosen] * family_bench.family.shape.layers)
    assert torch.allclose(fast._pass(chosen), expected, atol=1e-4)
    assert torch.allclose(
        fast.kv.values[:, :, : layout.length], plain.kv.values[:, :, : layout.length], atol=1e-4
    )


def test_restored_keys_of_layer_0_equal_fresh_ones_anywhere(family_bench: Bench) -> None:
    messages, pictures = _several()
    layout = family_bench.layout(messages, pictures)
    reused, _ = family_bench.reuse(layout, pictures, 0.0)
    fresh, _ = family_bench.full(layout, pictures)
    slots = torch.as_tensor(layout.restored_slots())
    assert torch.allclose(reused.kv.keys[0][:, slots], fresh.kv.keys[0][:, slots], atol=1e-5)
    # the control: deeper layers do see the context
    assert not torch.allclose(reused.kv.keys[2][:, slots], fresh.kv.keys[2][:, slots], atol=1e-2)


def test_text_of_another_history_is_turned_to_its_new_place(family_bench: Bench) -> None:
    """Layer 0 sees no context, so that its keys are the fresh ones wherever they were computed."""
    turns = [user(0, "What is K?"), said("assistant", "four"), user(1, "And L?"), said("assistant", "five")]
    question = user(2, "M?")
    held, chains = family_bench.layout([*turns, question], PICTURES), Chains(1 << 26)
    first, _ = family_bench.full(held, PICTURES)
    every = np.ones(held.length, dtype=bool)
    root = root_of("", "tenant", b"")
    digests = (b"0" * 32, b"1" * 32, b"2" * 32)
    content = Content(root, "tenant", held.ids, held.spans, digests)
    chains.keep(content, Computed(first.kv.keys, first.kv.values, held.length, every), None, chains.epoch)
    # Text before the first page moves all others; the run behind that page follows the edit.
    asked = family_bench.layout([said("system", "It is Monday, read slowly."), *turns, question], PICTURES)
    content = Content(root, "tenant", asked.ids, asked.spans, digests)
    match = chains.find(content, asked.length - 1, None)
    match = chains.find_turns(match, content, asked.asked, None)
    assert [turn.start for turn in match.turns] == [asked.spans[1].stop]
    full, _ = family_bench.full(asked, PICTURES)
    prefill = family_bench.prefill(asked, PICTURES)
    reused = Prefill(family_bench.family, prefill.kv, asked, prefill.prompt_rows._features, Work(), match)
    reused.restore([family_bench.entry(picture) for picture in PICTURES], make_policy("conduit", {}), 0.1)
    now = slice(match.turns[0].start, match.turns[-1].stop)
    assert torch.allclose(reused.kv.keys[0][:, now], full.kv.keys[0][:, now], atol=1e-5)
    assert torch.allclose(reused.kv.values[0][:, now], full.kv.values[0][:, now], atol=1e-5)
    # the control: deeper layers do see the context
    assert not torch.allclose(reused.kv.keys[2][:, now], full.kv.keys[2][:, now], atol=1e-2)


def test_one_image_behind_the_default_prompt_needs_no_refresh(family_bench: Bench) -> None:
    layout = family_bench.layout([user(0, "What is K?")], PICTURES[:1])
    _, result = family_bench.reuse(layout, PICTURES[:1], 0.1)
    _, full = family_bench.full(layout, PICTURES[:1])
    assert torch.allclose(result.logits, full.logits, atol=1e-4)
    assert result.refreshed == (0,)


@pytest.mark.parametrize("policy", ["conduit", "impact", "cacheblend", "prophetkv"])
def test_policies_choose_visual_rows_only(family_bench: Bench, policy: str) -> None:
    messages, pictures = _several()
    layout = family_bench.layout(messages, pictures)
    _, result = family_bench.reuse(layout, pictures, 0.3, policy=policy)
    assert bool(torch.isfinite(result.logits).all())
    assert 0 < sum(result.refreshed) <= layout.visual_tokens
    own = set(range(layout.length)) - set(layout.visual_slots().tolist()) - set(layout.text_slots().tolist())
    assert own.isdisjoint(layout.candidates().tolist())


def test_greedy_decoding_is_the_library_s(family_bench: Bench) -> None:
    """Positions behind the prompt, by asking the library again with the answer appended."""
    family, pictures = family_bench.family, PICTURES[:2]
    layout = family_bench.layout([user(0, "one and ", 1, "What is K?")], pictures)
    prefill, first = family_bench.full(layout, pictures)
    decoder = Decoder(family_bench.pool, prefill.kv, layout.length, layout.next_position, layout.length + 4)
    logits, ids = first.logits, layout.ids
    for _ in range(3):
        token = int(logits.argmax())
        ids = np.append(ids, token)
        logits = decode_step(family, [decoder], [token], [Work()])[0]
        assert torch.allclose(logits, family.stock_logits(ids, pictures), atol=2e-4)


@pytest.mark.parametrize("codec", sorted(codecs()))
def test_entries_of_any_span_go_through_every_codec(family_bench: Bench, codec: str) -> None:
    entry = family_bench.entry(PICTURES[0])
    shape = family_bench.family.span(130, 70)
    kept = codecs()[codec].roundtrip(entry)
    assert kept.keys.shape == entry.keys.shape and kept.keys.shape[2] == shape.rows
    assert kept.features.shape == entry.features.shape and entry.features.shape[1] == shape.rows
    _, record = stored(codecs()[codec], entry)
    assert codecs()[codec].fits(record.manifest, entry_layout(family_bench.family, shape))
    other = family_bench.family.span(390, 70)
    assert not codecs()[codec].fits(record.manifest, entry_layout(family_bench.family, other))


def test_promise_1_every_setting_that_changes_pixels_is_in_the_processor_s_name(family_bench: Bench) -> None:
    family = family_bench.family
    named = json.loads(family.processor_name[family.processor_name.index("{") :])
    for setting in ("resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"):
        assert named[setting] == json.loads(json.dumps(getattr(family._processor, setting))), setting


def counts_are_right(bench: Bench, shapes: Iterator[tuple[int, int]]) -> None:
    for width, height in shapes:
        features = bench.family.encode(np.zeros((height, width, 3), np.uint8))
        assert features.shape[1] == bench.family.span(width, height).rows, (width, height)


def drawn(count: int, longest: int) -> Iterator[tuple[int, int]]:
    rng = np.random.default_rng(7)
    for _ in range(count):
        width, height = rng.integers(16, longest, 2)
        yield int(width), int(height)


def test_rows_are_counted_as_the_processor_makes_them(family_bench: Bench) -> None:
    counts_are_right(family_bench, drawn(20, 260))


@pytest.mark.slow
def test_rows_of_500_shapes_are_counted_as_the_processor_makes_them(family_bench: Bench) -> None:
    counts_are_right(family_bench, drawn(500, 400))


def test_the_gate_passes_in_bfloat16(path: Path) -> None:
    checkpoint = Checkpoint(path, torch.bfloat16, "cpu")
    family = family_of(checkpoint.config.architectures[0]).load(checkpoint)
    prompt = ChatPrompt(checkpoint.tokenizer, family.image_token)
    assert reuse_is_unsound(family, prompt, KVPool(family.shape, family.dtype, family.device)) is None


@pytest.mark.parametrize(
    "architecture", ["Qwen3VLForConditionalGeneration", "SmolVLMForConditionalGeneration"]
)
def test_head_counts_may_be_odd(architecture: str, tmp_path: Path) -> None:
    sizes = dataclasses.replace(Sizes(), hidden=72, heads=9, kv_heads=3, head_dim=20)
    bench = load_bench(write_random_family(tmp_path, architecture, sizes))
    assert reuse_is_unsound(bench.family, bench.prompt, bench.pool) is None


@pytest.mark.parametrize("architecture", sorted(REFUSED))
def test_what_cannot_be_refreshed_soundly_is_refused_by_name_with_the_reason(architecture: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"a {architecture} cannot be served: ...") as refusal:
        family_of(architecture)
    assert REFUSED[architecture] in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer_types": ["sliding_attention"] * 4}, "only full attention"),
        ({"model_type": "gemma2"}, "a decoder of type gemma2"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "type dynamic"),
    ],
)
def test_a_decoder_that_cannot_be_run_by_rows_is_refused(changes: dict[str, object], reason: str) -> None:
    from engine.families import decoder

    text = type("Text", (), {"model_type": "qwen2", "layer_types": None, "rope_parameters": None, **changes})
    with pytest.raises(UnsupportedModel, match=reason):
        decoder._check(text)
