"""What training minimises: the answers, and beside them what each token must know on the way to them.

The auxiliary read-outs are thrown away afterwards. Where they name a word (a key, a tint, an ordinal, a value) they
are tied to the embedding of that word, so that questions and pages come to speak about it in the same direction.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.pages import INKS, KEYS, TINTS
from training.page_reader.batches import Batch
from training.page_reader.network import Network
from training.page_reader.prompts import Codec

# Weights of the loss terms; the answers count 1. Each watched head adds `look`.
WEIGHTS: Final = {
    "ocr": 0.25,
    "value0": 0.5,
    "value2": 0.5,
    "question": 0.5,
    "place": 0.5,
    "previous": 0.25,
    "look": 0.25,
}
_TINTS: Final = len(TINTS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step: total loss, its terms, and for each skill (right, asked) answers under teacher forcing."""

    loss: Tensor
    terms: dict[str, float]
    right: dict[str, tuple[int, int]]


class Objective(nn.Module):
    """Losses of a batch. Owns the read-outs that are not words and remembers hidden states of layers 0 to 2."""

    def __init__(self, network: Network, codec: Codec) -> None:
        super().__init__()
        self._network, self._codec = network, codec
        hidden = network.decoder.config.hidden_size
        self.heads = nn.ModuleDict(
            {
                "key": nn.Linear(hidden, 1),  # blank
                "value": nn.Linear(hidden, 2),  # block, blank
                "ink": nn.Linear(hidden, len(INKS) + 1),
                "block": nn.Linear(hidden, _TINTS + 1),
                "previous": nn.Linear(hidden, len(KEYS) + 1),  # or none
            }
        )
        self._after: dict[int, Tensor] = {}
        for layer in range(3):
            network.decoder.layers[layer].register_forward_hook(self._remember(layer))

    def _remember(self, layer: int) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            self._after[layer] = output

        return hook

    def _words(self, states: Tensor, tokens: list[int]) -> Tensor:
        """Scores [n, len(tokens)] of normalised states against the embeddings of words."""
        return F.linear(states, self._network.decoder.embed_tokens.weight[tokens])

    def _at(self, layer: int, rows: Tensor) -> Tensor:
        """Normalised hidden states after a layer at (prompt, row, ...) rows."""
        return self._network.decoder.norm(self._after[layer][rows[:, 0], rows[:, 1]])  # type: ignore[no-any-return]

    def forward(self, batch: Batch) -> Outcome:
        """All losses of one batch."""
        features, hidden, looks = self._network.forward(batch, self._codec.image_pad)
        answer, right = self._answers(batch, hidden)
        terms = {
            "ocr": self._ocr(batch, features),
            **self._cell_values(batch),
            "question": self._questions(batch),
            "place": self._places(batch),
            "previous": self._previous(batch),
            "look": torch.stack(list(looks.values())).sum(),
        }
        loss = answer + sum(WEIGHTS[name] * term for name, term in terms.items())
        shown = {"answer": answer, **terms, **looks}
        return Outcome(loss, {name: float(term.detach()) for name, term in shown.items()}, right)

    def _answers(self, batch: Batch, hidden: Tensor) -> tuple[Tensor, dict[str, tuple[int, int]]]:
        prompt, row, target, unit = batch.answers.unbind(1)
        logits = self._network.model.lm_head(hidden[prompt, row])
        losses = F.cross_entropy(logits, target, reduction="none")
        loss = (losses * batch.answer_weights).sum() / batch.answer_weights.sum()
        wrong = (logits.argmax(-1) != target) & (batch.answer_weights == 1)
        failed = np.bincount(unit.numpy(), weights=wrong.numpy(), minlength=len(batch.units)) > 0
        right: dict[str, tuple[int, int]] = {}
        for skill, fail in zip(batch.units, failed.tolist(), strict=True):
            good, asked = right.get(skill, (0, 0))
            right[skill] = (good + (not fail), asked + 1)
        return loss, right

    def _cell_values(self, batch: Batch) -> dict[str, Tensor]:
        """A cell must know the value it is read as: after layer 0 if it shows a digit, after layer 2 in any case."""
        plain = batch.cells[batch.cells[:, 6] == 1]
        return {
            name: F.cross_entropy(self._words(self._at(layer, rows), self._codec.values), rows[:, 3])
            for name, layer, rows in (("value0", 0, plain), ("value2", 2, batch.cells))
        }

    def _questions(self, batch: Batch) -> Tensor:
        """Once a question has named key and page, its tokens must know both after layer 0."""
        rows = batch.questions
        states = self._at(0, rows)
        page = F.cross_entropy(self._words(states, self._codec.references), rows[:, 3])
        keyed = rows[:, 2] >= 0
        return page + F.cross_entropy(self._words(states[keyed], self._codec.keys), rows[keyed, 2])

    def _places(self, batch: Batch) -> Tensor:
        """Which page of the prompt: vision start knows after layer 1, cells and vision end after layer 2."""
        ordinals, tints = self._codec.references[_TINTS:], self._codec.references[:_TINTS]
        return (
            F.cross_entropy(self._words(self._at(1, batch.marks), ordinals), batch.marks[:, 2])
            + F.cross_entropy(self._words(self._at(2, batch.cells), ordinals), batch.cells[:, 5])
            + F.cross_entropy(self._words(self._at(2, batch.ends), ordinals), batch.ends[:, 3])
            + F.cross_entropy(self._words(self._at(1, batch.ends), tints), batch.ends[:, 2])
        )

    def _previous(self, batch: Batch) -> Tensor:
        """Cells and vision end know the key before them on the page after layer 2, so that a list can go on."""
        rows = torch.cat([batch.cells[:, [0, 1, 7]], batch.ends[:, [0, 1, 4]]])
        return F.cross_entropy(self.heads["previous"](self._at(2, rows)), rows[:, 2])

    def _ocr(self, batch: Batch, features: Tensor) -> Tensor:
        """What is drawn, from the visual embeddings alone. Blank cells are many and easy, so they count less."""
        states = F.rms_norm(features, features.shape[-1:])
        codec, heads = self._codec, self.heads
        scores = {
            "key": torch.cat([self._words(states, codec.keys), heads["key"](states)], -1),
            "value": torch.cat([self._words(states, codec.values), heads["value"](states)], -1),
            "tint": self._words(states, codec.references[:_TINTS]),
            "ink": heads["ink"](states),
            "block": heads["block"](states),
        }
        weight = torch.where(batch.ocr["key"] == len(codec.keys), 0.2, 1.0)
        losses = [F.cross_entropy(score, batch.ocr[name], reduction="none") for name, score in scores.items()]
        return (torch.stack(losses).sum(0) * weight).mean()
