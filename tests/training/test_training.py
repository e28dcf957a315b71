"""The training loop itself, for a step or two."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from training.page_reader.__main__ import learning_rate, train


def test_equal_seeds_train_equal_models_that_load_as_they_are(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    for name in ("a", "b"):
        train(tmp_path / name, steps=1, peak=1e-3, seed=3)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second
    model, report = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        tmp_path / "a", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert len(AutoTokenizer.from_pretrained(tmp_path / "a")) <= model.config.text_config.vocab_size


def test_the_learning_rate_warms_up_holds_and_decays() -> None:
    rates = [learning_rate(step, 1000, 1.0) for step in range(1000)]
    assert rates[0] < 0.01
    assert rates[149:500] == [1.0] * 351
    assert rates[500:] == sorted(rates[500:], reverse=True)
    assert rates[-1] == pytest.approx(0.01)
