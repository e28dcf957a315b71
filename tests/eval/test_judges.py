"""The judges' prompts and the quantities of the residual, on tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import eval.published
from engine.families.span import grid_span
from engine.passes.compile import compile_image
from engine.passes.forward import Work
from engine.passes.kv import KVPool
from engine.passes.refresh import Prefill
from engine.policies.known import make_policy
from engine.prompt.layout import PromptLayout, place, positions_of, tail_query
from eval.datasets.mmlongbench import DocumentSet
from eval.page_prompts import PageReader, conversation, draw
from eval.passages import draw_asked
from eval.residual import Residual
from eval.smollm2 import Llama
from eval.trial import Arm, Trial
from tests.engine.conftest import Bench
from tests.eval.test_datasets import png, write_lines


@pytest.fixture(scope="module")
def llama() -> Llama:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        eos_token_id=1,
        initializer_range=0.2,
    )
    return Llama(LlamaForCausalLM(config).eval().requires_grad_(False), 0)


@torch.no_grad()
def test_text_chunks_go_through_the_engine_as_images(llama: Llama) -> None:
    pool = KVPool(llama.shape, llama.dtype, llama.device)
    chunks = [[5, 6, 7, 8], [9, 10, 11, 12, 13]]
    marked = [2, 3, 0, 4, 0, 14, 15]
    ids, spans = place(marked, 0, [(i, grid_span(0, 1, len(chunk))) for i, chunk in enumerate(chunks)])
    positions, following = positions_of(len(ids), spans)
    assert positions[2].tolist() == list(range(len(ids))) and following == len(ids)
    layout = PromptLayout(ids, spans, positions, following, tail_query(ids, positions, spans[-1].stop), ())
    features = [llama.embed(torch.tensor(chunk))[None] for chunk in chunks]
    entries = [
        compile_image(llama, pool, [2], found, grid_span(0, 1, found.shape[1]), Work()) for found in features
    ]
    plain = ids.copy()
    for span, chunk in zip(spans, chunks, strict=True):
        plain[span.start : span.stop] = chunk
    stock = llama.stock_logits(plain, [])
    prefill = Prefill(llama, pool.take(len(ids)), layout, features, Work())
    assert torch.allclose(prefill.full().logits, stock, atol=1e-4)
    everything = prefill.reuse(entries, make_policy("conduit", {}), 1.0)
    assert torch.allclose(everything.logits, stock, atol=1e-4)
    some = prefill.reuse(entries, make_policy("impact", {}), 0.3)
    assert sum(some.refreshed) == 3 and not torch.allclose(some.logits, stock, atol=1e-3)


def test_passages_are_drawn_by_number_and_answerable() -> None:
    for number in range(60):
        asked = draw_asked(number, 1)
        assert asked == draw_asked(number, 1) and len(asked.passages) == 6
        assert any(asked.answer in passage for passage in asked.passages)
        assert len(set(asked.passages)) == 6
    assert draw_asked(1, 1) != draw_asked(1, 2)


def test_examples_are_drawn_alone_as_in_a_row() -> None:
    row = list(draw("two_hop", range(4), 9))
    assert list(draw("two_hop", range(2, 3), 9)) == row[2:3]
    messages = conversation(row[0])
    assert sum(1 for m in messages for p in m.parts if hasattr(p, "index")) == len(row[0].pages)


@torch.no_grad()
def test_residual_is_nothing_when_all_rows_are_exact(bench: Bench) -> None:
    reader = PageReader(bench.family, bench.prompt, bench.pool, "template")
    (example,) = draw("system", range(1), 3, pages=(2, 2))
    trial = Trial(bench.family, bench.pool, reader.prompt(example, "K?"))
    residual = Residual(reader, trial)
    everything = np.arange(len(residual.candidates))
    nothing, half = everything[:0], everything[::2]
    assert residual.transplant(everything) == [0.0, 0.0]
    assert residual.refresh(everything)[1] < 1e-6
    assert min(residual.transplant(half)[1], residual.refresh(half)[1]) > 0
    # With nothing refreshed the first layer that sees context is wrong, in both forms; layer 0 is not.
    for found in (residual.transplant(nothing), residual.refresh(nothing)):
        assert found[0] < 1e-6 < found[1]
    trial.close()


def test_published_sets_on_any_checkpoint(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    for page in (1, 2):
        (tmp_path / "d" / f"page{page}.png").write_bytes(png((90 * page, 10, 10)))
    row: dict[str, Any] = {
        "page_list": ["d/page1.png", "d/page2.png"],
        "doc_name": "d",
        "question": "What?",
        "answer": "a",
        "answer_format": "String",
    }
    write_lines(tmp_path / "documentQA" / "slidevqa_K8.jsonl", [row])
    kept: dict[str, Any] = {}
    monkeypatch.setattr(eval.published, "WORK", tmp_path / "work")
    monkeypatch.setattr(eval.published, "RATIOS", (0.1,))
    monkeypatch.setattr(eval.published, "ARMS", (Arm("conduit", "conduit"),))
    monkeypatch.setattr(DocumentSet, "max_tokens", 3)
    monkeypatch.setattr(eval.published, "shares_of_full", lambda tables: kept.update(tables) or {"x": 1.0})
    monkeypatch.setattr(eval.published, "write_result", lambda *found: "written")
    command = ["--model", str(tiny_path), "--data", str(tmp_path), "--sets", "slidevqa", "--dtype", "float32"]
    assert eval.published.main(command) == 0
    assert kept["slidevqa"]["n"] == 1
    assert {"full.r100", "reuse.r0", "conduit.r10"} <= kept["slidevqa"]["cells"].keys()
    assert eval.published.main([*command[:-3], "pope"]) == 1  # not in the folder
