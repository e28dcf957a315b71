"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: one tower and processor each, one way to lay an image out.

Qwen3-VL adds vision features of several levels to the hidden states behind its first layers (DeepStack): they are the
further levels of an image's features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from engine.errors import InvalidImage, UnsupportedModel
from engine.families.checkpoint import Checkpoint
from engine.families.decoder import Decoder, describe
from engine.families.span import SpanShape, grid_span

PIXEL_SETTINGS = (
    "do_normalize",
    "do_rescale",
    "patch_size",
    "merge_size",
    "temporal_patch_size",
    "resample",
    "image_mean",
    "image_std",
    "rescale_factor",
)


class QwenVL(Decoder):
    """A loaded checkpoint. See `engine.families.base.Family` for what each operation means."""

    library_class: ClassVar[str]

    def __init__(self, model: Any, processor: Qwen2VLImageProcessorPil) -> None:
        super().__init__(model, model.model.language_model, axes=3)
        if not processor.do_resize:
            raise UnsupportedModel(
                "a processor that does not resize: visual tokens could not be counted ahead"
            )
        self._vision = model.model.visual
        self.levels = 1 + len(getattr(model.config.vision_config, "deepstack_visual_indexes", ()))
        self._processor = processor
        edges = {name: processor.size[name] for name in ("shortest_edge", "longest_edge")}
        self.processor_name = describe(processor, PIXEL_SETTINGS, **edges)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        return cls(
            checkpoint.model(cls.library_class), Qwen2VLImageProcessorPil.from_pretrained(checkpoint.folder)
        )

    def span(self, width: int, height: int) -> SpanShape:
        factor = self._processor.patch_size * self._processor.merge_size
        size = self._processor.size
        try:
            rows, columns = smart_resize(height, width, factor, size["shortest_edge"], size["longest_edge"])
        except ValueError as error:
            raise InvalidImage(
                f"it is {width} x {height} pixels; the longer side may be at most 200 times the shorter."
            ) from error
        return grid_span(self.image_token, rows // factor, columns // factor)

    def encode(self, pixels: np.ndarray) -> torch.Tensor:
        batch = self._patches([pixels])
        output = self._vision(batch["pixel_values"], grid_thw=batch["image_grid_thw"])
        return torch.stack([output.pooler_output, *getattr(output, "deepstack_features", ())])

    def stock_logits(self, ids: np.ndarray, pictures: Sequence[np.ndarray]) -> torch.Tensor:
        is_image = (torch.as_tensor(ids, device=self.device)[None] == self.image_token).int()
        return self._stock(ids, mm_token_type_ids=is_image, **self._patches(pictures))

    def _patches(self, pictures: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
        """What the processor makes of pictures uint8 [height, width, 3], on the model's device; nothing of none."""
        if not pictures:
            return {}
        batch = self._processor(images=list(pictures), input_data_format="channels_last", return_tensors="pt")
        return {
            "pixel_values": batch["pixel_values"].to(self.device, self.dtype),
            "image_grid_thw": batch["image_grid_thw"].to(self.device),
        }


class Qwen2VL(QwenVL):
    library_class = "Qwen2VLForConditionalGeneration"


class Qwen25VL(QwenVL):
    library_class = "Qwen2_5_VLForConditionalGeneration"


class Qwen3VL(QwenVL):
    library_class = "Qwen3VLForConditionalGeneration"


class Qwen3VLMoe(QwenVL):
    library_class = "Qwen3VLMoeForConditionalGeneration"
