"""LLaVA-OneVision: a Qwen2 decoder with one position a row; an image is a small copy and crops of any resolution, with
a learnt row-end embedding behind each row of them.

The library crops only where an image is alone in its prompt. Here every image is laid out as an image alone: an entry
must not depend on what else is asked (promise 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
import torch
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)

from engine.families.checkpoint import Checkpoint
from engine.families.decoder import Decoder, describe
from engine.families.span import SpanShape, line_span

PIXEL_SETTINGS: Final = (
    "do_resize",
    "do_normalize",
    "do_rescale",
    "do_pad",
    "size",
    "resample",
    "image_mean",
    "image_std",
    "rescale_factor",
    "image_grid_pinpoints",
)


class LlavaOnevision(Decoder):
    """A loaded checkpoint. See `engine.families.base.Family` for what each operation means."""

    library_class = "LlavaOnevisionForConditionalGeneration"

    def __init__(self, model: Any, processor: LlavaOnevisionImageProcessorPil) -> None:
        super().__init__(model, model.model.language_model, axes=1)
        config = model.config
        self._processor = processor
        self._edge: int = config.vision_config.image_size
        self._side = self._edge // config.vision_config.patch_size
        self._pinpoints = [tuple(point) for point in config.image_grid_pinpoints]
        self._most_crops = int(config.vision_aspect_ratio.removeprefix("anyres_max_"))
        more = {"aspect_ratio": config.vision_aspect_ratio, "pinpoints": self._pinpoints, "side": self._side}
        self.processor_name = describe(processor, PIXEL_SETTINGS, **more)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        processor = LlavaOnevisionImageProcessorPil.from_pretrained(checkpoint.folder)
        return cls(checkpoint.model(cls.library_class), processor)

    def span(self, width: int, height: int) -> SpanShape:
        rows, columns = self._crop_grid(width, height)
        # The small copy, the crops' tokens, and one row end for each of their rows.
        return line_span(self.image_token, [self.image_token] * (self._side**2 + rows * (columns + 1)))

    def _crop_grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tokens that the crops leave, joined, without padding, and scaled down where they are more
        than the model was trained for (the library's `pack_image_features`)."""
        best_height, best_width = select_best_resolution((height, width), self._pinpoints)
        rows, columns = (edge // self._edge * self._side for edge in (best_height, best_width))
        if width / height > columns / rows:
            rows -= 2 * ((rows - int(round(height * (columns / width), 7))) // 2)
        else:
            columns -= 2 * ((columns - int(round(width * (rows / height), 7))) // 2)
        ratio = math.sqrt(rows * columns / (self._most_crops * self._side**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else (rows, columns)

    def encode(self, pixels: np.ndarray) -> torch.Tensor:
        features: torch.Tensor = self._model.model.get_image_features(**self._crops([pixels])).pooler_output[
            0
        ]
        return features[None]

    def stock_logits(self, ids: np.ndarray, pictures: Sequence[np.ndarray]) -> torch.Tensor:
        return self._stock(ids, **(self._crops(pictures) if pictures else {}))

    def _crops(self, pictures: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
        """What the processor makes of pictures uint8 [height, width, 3], each as if it were alone."""
        batch = self._processor(images=list(pictures), input_data_format="channels_last", return_tensors="pt")
        return {
            "pixel_values": batch["pixel_values"].to(self.device, self.dtype),
            "image_sizes": batch["image_sizes"].to(self.device),
        }
