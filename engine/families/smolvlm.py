"""SmolVLM and Idefics3: a Llama decoder with one position a row; an image is rows of tiles, each behind a mark that
says its row and column, and a small copy of the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import (
    SmolVLMImageProcessorPil,
    get_resize_output_image_size,
)
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from engine.families.checkpoint import Checkpoint
from engine.families.decoder import Decoder, describe
from engine.families.span import SpanShape, line_span

FAKE: Final = "<fake_token_around_image>"
GLOBAL: Final = "<global-img>"
IMAGE: Final = "<image>"
PIXEL_SETTINGS: Final = (
    "do_resize",
    "do_normalize",
    "do_rescale",
    "do_pad",
    "do_image_splitting",
    "size",
    "max_image_size",
    "resample",
    "image_mean",
    "image_std",
    "rescale_factor",
)


class SmolVLM(Decoder):
    """A loaded checkpoint. See `engine.families.base.Family` for what each operation means."""

    library_class: ClassVar[str] = "SmolVLMForConditionalGeneration"
    processor_class: ClassVar[Any] = SmolVLMImageProcessorPil

    def __init__(self, model: Any, processor: Any, tokenizer: Any) -> None:
        super().__init__(model, model.model.text_model, axes=1)
        vision, scale = model.config.vision_config, model.config.scale_factor
        self._tile_tokens = int((vision.image_size // vision.patch_size) ** 2 / scale**2)
        self._processor, self._tokenizer = processor, tokenizer
        self.processor_name = describe(processor, PIXEL_SETTINGS, tile_tokens=self._tile_tokens)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        processor = cls.processor_class.from_pretrained(checkpoint.folder)
        return cls(checkpoint.model(cls.library_class), processor, checkpoint.tokenizer)

    def span(self, width: int, height: int) -> SpanShape:
        rows, columns = self._tiles(width, height)
        text = get_image_prompt_string(rows, columns, self._tile_tokens, FAKE, IMAGE, GLOBAL)
        return line_span(self.image_token, self._tokenizer.encode(text, add_special_tokens=False))

    def encode(self, pixels: np.ndarray) -> torch.Tensor:
        (features,) = self._model.model.get_image_features(**self._padded([pixels])).pooler_output
        return self._rows_with_features(self.span(pixels.shape[1], pixels.shape[0]).ids, features)

    def stock_logits(self, ids: np.ndarray, pictures: Sequence[np.ndarray]) -> torch.Tensor:
        return self._stock(ids, **(self._padded(pictures) if pictures else {}))

    def _tiles(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles; none where the small copy is all there is. What the processor does to the picture,
        not what its own count says: that one rounds the shorter edge up without scaling it along."""
        processor = self._processor
        if not processor.do_image_splitting:
            return 0, 0
        if processor.do_resize:
            edge = processor.size["longest_edge"]
            height, width = get_resize_output_image_size(np.empty((3, height, width), dtype=bool), edge)
        tile = processor.max_image_size["longest_edge"]
        ratio = width / height
        if width >= height:
            columns = math.ceil(width / tile)
            rows = math.ceil(int(columns * tile / ratio) / tile)
        else:
            rows = math.ceil(height / tile)
            columns = math.ceil(int(rows * tile * ratio) / tile)
        return (rows, columns) if max(rows, columns) > 1 else (0, 0)

    def _padded(self, pictures: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
        """What the processor makes of pictures uint8 [height, width, 3] of one prompt."""
        batch = self._processor(
            images=[list(pictures)], input_data_format="channels_last", return_tensors="pt"
        )
        inputs = {"pixel_values": batch["pixel_values"].to(self.device, self.dtype)}
        if "pixel_attention_mask" in batch:
            inputs["pixel_attention_mask"] = batch["pixel_attention_mask"].to(self.device)
        return inputs


class Idefics3(SmolVLM):
    library_class = "Idefics3ForConditionalGeneration"
    processor_class = Idefics3ImageProcessorPil
