"""InternVL3: a Qwen2 decoder with one position a row; an image is tiles and a thumbnail, how many depends on its
shape, between two marks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
import torch
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from engine.families.checkpoint import Checkpoint
from engine.families.decoder import Decoder, describe
from engine.families.span import SpanShape, line_span

# The library's processor asks its image processor for tiles, whatever the file of the latter says.
TILED: Final = {"crop_to_patches": True}
PIXEL_SETTINGS: Final = (
    "do_resize",
    "do_normalize",
    "do_rescale",
    "size",
    "resample",
    "image_mean",
    "image_std",
    "rescale_factor",
    "min_patches",
    "max_patches",
)


class InternVL(Decoder):
    """A loaded checkpoint. See `engine.families.base.Family` for what each operation means."""

    library_class = "InternVLForConditionalGeneration"

    def __init__(self, model: Any, processor: GotOcr2ImageProcessorPil, marks: tuple[int, int]) -> None:
        """`marks` open and close an image."""
        super().__init__(model, model.model.language_model, axes=1)
        config = model.config
        edge, patch = (_edge(getattr(config.vision_config, name)) for name in ("image_size", "patch_size"))
        self._tile_tokens = int((edge // patch) ** 2 * config.downsample_ratio**2)
        self._processor, self._marks = processor, marks
        self.processor_name = describe(processor, PIXEL_SETTINGS, tile_tokens=self._tile_tokens, **TILED)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        tokenizer = checkpoint.tokenizer
        marks = tuple(tokenizer.convert_tokens_to_ids(mark) for mark in ("<img>", "</img>"))
        processor = GotOcr2ImageProcessorPil.from_pretrained(checkpoint.folder)
        return cls(checkpoint.model(cls.library_class), processor, marks)

    def span(self, width: int, height: int) -> SpanShape:
        tiles = self._processor.get_number_of_image_patches(height, width, dict(TILED))
        opening, closing = self._marks
        return line_span(
            self.image_token, [opening, *[self.image_token] * (tiles * self._tile_tokens), closing]
        )

    def encode(self, pixels: np.ndarray) -> torch.Tensor:
        features = self._model.model.get_image_features(self._tiles([pixels])).pooler_output
        ids = self.span(pixels.shape[1], pixels.shape[0]).ids
        return self._rows_with_features(ids, features.flatten(0, 1))

    def stock_logits(self, ids: np.ndarray, pictures: Sequence[np.ndarray]) -> torch.Tensor:
        return self._stock(ids, pixel_values=self._tiles(pictures) if pictures else None)

    def _tiles(self, pictures: Sequence[np.ndarray]) -> torch.Tensor:
        """Tiles of pictures uint8 [height, width, 3], one after the other: [tiles, 3, edge, edge]."""
        batch = self._processor(
            images=list(pictures), input_data_format="channels_last", return_tensors="pt", **TILED
        )
        tiles: torch.Tensor = batch["pixel_values"].to(self.device, self.dtype)
        return tiles


def _edge(size: int | Sequence[int]) -> int:
    return size if isinstance(size, int) else int(size[0])
