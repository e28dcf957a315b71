"""Plain reuse, in as few lines as possible: the reference that shows what the trained model loses by it.

Every page is computed alone behind the chat template with the default system prompt. Its keys are kept without
rotation and its values as they are; in a prompt they are put where the page stands, and only the text is computed.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen2_5_VLForConditionalGeneration
from transformers.cache_utils import Cache
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import rotate_half

from training.page_reader.files import PAGE_TOKENS


class _SlotCache(Cache):  # type: ignore[misc]
    """Preallocated [1, heads, L, d] keys and values per layer; new states go to the given slots."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], slots: Tensor) -> None:
        self.keys, self.values, self.slots = keys, values, slots
        self.layers: list[Any] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys[layer_idx][:, :, self.slots] = key_states
        self.values[layer_idx][:, :, self.slots] = value_states
        return self.keys[layer_idx], self.values[layer_idx]


class PlainReuse:
    """Answers prompts from pages computed in isolation. `prefix` holds the ids up to and with vision start."""

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration, prefix: list[int], image_pad: int) -> None:
        self._model, self._image_pad = model, image_pad
        self._decoder = model.model.language_model
        self._prefix = torch.tensor(prefix)

    def _rotate(self, states: Tensor, positions: Tensor, sign: int) -> Tensor:
        """states [1, heads, n, d] at positions [3, 1, n], turned forwards (1) or backwards (-1)."""
        cos, sin = self._decoder.rotary_emb(states, positions)
        turned: Tensor = states * cos[:, None] + rotate_half(states) * sin[:, None] * sign
        return turned

    def _positions(self, ids: Tensor, grid: Tensor) -> Tensor:
        kinds = (ids == self._image_pad).int()
        return self._model.model.get_rope_index(ids, kinds, image_grid_thw=grid)[0]  # type: ignore[no-any-return]

    def _isolated(self, pixels: Tensor, grid: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Unrotated keys and values [1, heads, 36, d] per layer of one page."""
        ids = torch.cat([self._prefix, torch.full((PAGE_TOKENS,), self._image_pad)])[None]
        positions = self._positions(ids, grid)
        cache = DynamicCache(config=self._model.config.text_config)
        kinds = (ids == self._image_pad).int()
        self._model(
            input_ids=ids,
            pixel_values=pixels,
            image_grid_thw=grid,
            mm_token_type_ids=kinds,
            position_ids=positions,
            cache=cache,
        )
        page = slice(len(self._prefix), None)
        return [
            (self._rotate(layer.keys, positions, -1)[:, :, page], layer.values[:, :, page])
            for layer in cache.layers
        ]

    @torch.no_grad()
    def answer(self, ids: Tensor, pixels: Tensor, grids: Tensor, stop: int, limit: int) -> list[int]:
        """Greedy answer to a prompt [1, L] whose pages have pixels [144 each, 384], up to the stop token."""
        visual = (ids[0] == self._image_pad).nonzero()[:, 0]
        text = (ids[0] != self._image_pad).nonzero()[:, 0]
        positions = self._positions(ids, grids)
        pages = [
            self._isolated(part, grid[None])
            for part, grid in zip(pixels.chunk(len(grids)), grids, strict=True)
        ]
        keys, values = [], []
        for layer in zip(*pages, strict=True):
            page_keys = torch.cat([key for key, _ in layer], 2)
            shape = (1, page_keys.shape[1], ids.shape[1], page_keys.shape[3])
            keys.append(
                torch.zeros(shape).index_copy(2, visual, self._rotate(page_keys, positions[:, :, visual], 1))
            )
            values.append(
                torch.zeros(shape).index_copy(2, visual, torch.cat([value for _, value in layer], 2))
            )
        return self._decode(ids, positions, text, keys, values, stop, limit)

    def _decode(
        self,
        ids: Tensor,
        positions: Tensor,
        text: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
        stop: int,
        limit: int,
    ) -> list[int]:
        mask = (torch.arange(ids.shape[1])[None] <= text[:, None])[None, None]
        hidden = self._decoder(
            inputs_embeds=self._decoder.embed_tokens(ids[:, text]),
            position_ids=positions[:, :, text],
            attention_mask={"full_attention": mask},
            cache=_SlotCache(keys, values, text),
        ).last_hidden_state
        cache = DynamicCache(config=self._model.config.text_config)
        for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
            cache.update(key, value, layer)
        answer: list[int] = []
        position = int(positions.max())
        while True:
            answer.append(int(self._model.lm_head(hidden[:, -1]).argmax(-1)))
            if answer[-1] == stop or len(answer) == limit:
                return answer
            position += 1
            hidden = self._decoder(
                inputs_embeds=self._decoder.embed_tokens(torch.tensor([answer[-1:]])),
                position_ids=torch.full((3, 1, 1), position),
                attention_mask={"full_attention": None},
                cache=cache,
            ).last_hidden_state
