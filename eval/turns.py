"""What reused text costs behind an edit of the history, in whole answers of the shipped model: `python -m eval.turns`.

A conversation about pages is held as full prefill computed it; then its history is edited (the oldest page dropped, a
page inserted, two swapped, another system prompt) and a question is asked behind it, with the text of the turns
computed and with it reused. Counted are questions that full prefill of the edited conversation answers. Writes
`results/turns.json`; `ratios` are accuracy among these (1 is full prefill).
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.result import NotMeasured, write_result
from demo.pages import Page, draw_pages
from demo.questions import PLAIN_SYSTEMS, ask_follow_up, ask_value
from engine.chains.held import Computed, Match
from engine.chains.segments import Content
from engine.chains.tree import Chains
from engine.messages import ImagePart, Message, TextPart
from engine.passes.forward import Work
from engine.passes.kv import RequestKV
from engine.passes.refresh import Prefill
from engine.serving.heap import keep_large_blocks_apart
from engine.serving.load import weights_fingerprint
from eval.arms import cell
from eval.forced import would_say
from eval.page_prompts import SHIPPED, PageReader
from eval.recording import WORK, Recording
from eval.statistics import mean_interval, share_interval
from eval.status import exit_status
from eval.trial import Arm, Prompt

SEED = 2063
PROMPTS = 960
LAYOUTS = ("pages first", "a page a turn")
EDITS = ("drop", "insert", "swap", "system")
CELLS = tuple((layout, edit) for layout in LAYOUTS for edit in EDITS)
FULL = Arm("full", "full")
RULES = (
    Arm("conduit", "conduit"),
    Arm("impact_shift", "impact", (("correction", "shift"),)),
)
RATIOS = (0.10, 0.20)
TURNS = "_turns"
REUSED = "reused"
NAMES = (
    cell(FULL.name, 1.0),
    *(cell(arm.name + use, ratio) for arm in RULES for ratio in RATIOS for use in ("", TURNS)),
)
COLUMNS = ("layout", "edit", REUSED, *NAMES)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Pages in prompt order and what is said of them: `turns` of (question, answer), then `question`."""

    layout: str
    pages: tuple[Page, ...]
    system: str
    turns: tuple[tuple[str, str], ...]
    question: str

    def messages(self) -> list[Message]:
        """With the pages first, or with one before each question as long as there are any."""
        found = [Message("system", (TextPart(self.system),))]
        asked = [text for text, _ in self.turns] + [self.question]
        left = list(range(len(self.pages)))
        for place, text in enumerate(asked):
            count = len(left) if self.layout == LAYOUTS[0] or place == len(asked) - 1 else 1
            shown, left = left[:count], left[count:]
            found.append(Message("user", (*map(ImagePart, shown), TextPart(text))))
            if place < len(self.turns):
                found.append(Message("assistant", (TextPart(self.turns[place][1]),)))
        return found


@dataclass(frozen=True, slots=True)
class Edited:
    """A conversation as it was held, as it is asked about, and the answer to that."""

    before: Conversation
    after: Conversation
    answer: str


def draw(layout: str, edit: str, number: int) -> Edited:
    """Three to five pages. The turns are about pages that both conversations have, one or two of them where the pages
    come first (what the model was trained on), else one a page; the last question goes on from the last turn half of
    the time."""
    rng = np.random.default_rng([SEED, LAYOUTS.index(layout), EDITS.index(edit), number])
    pages = draw_pages(rng, int(rng.integers(4, 7)), shared_keys=True)
    extra, pages = pages[0], pages[1:]
    kept, before = list(pages), list(pages)
    systems = [PLAIN_SYSTEMS[i] for i in rng.permutation(len(PLAIN_SYSTEMS))[:2].tolist()]
    if edit == "drop":
        before.insert(0, extra)
    elif edit == "insert":
        kept.insert(1, extra)
    elif edit == "swap":
        before[0], before[1] = before[1], before[0]
    turns, page, key = [], 0, ""
    for _ in range(len(pages) if layout != LAYOUTS[0] else int(rng.integers(1, 3))):
        page, key = int(rng.integers(len(kept))), _key(rng, kept, "")
        asked = ask_value(rng, kept, {}, page, key)
        turns.append((asked.text, asked.answer))
    if rng.random() < 0.5:
        question = ask_follow_up(rng, kept, {}, page, _key(rng, kept, key))
    else:
        question = ask_value(rng, kept, {}, int(rng.integers(len(kept))), _key(rng, kept, ""))
    others = 1 if edit == "system" else 0
    said = tuple(turns)
    then = Conversation(layout, tuple(before), systems[others], said, question.text)
    return Edited(then, Conversation(layout, tuple(kept), systems[0], said, question.text), question.answer)


def _key(rng: np.random.Generator, pages: Sequence[Page], but: str) -> str:
    """One that all pages have."""
    keys = [cell.key for cell in pages[0].cells if cell.key != but]
    return keys[int(rng.integers(len(keys)))]


class Answers:
    """Prompt number i is of cell i modulo the number of cells."""

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader

    @torch.inference_mode()
    def row(self, number: int, missing: Collection[str]) -> dict[str, Any]:
        """{"layout", "edit", "reused": text tokens held for the edited conversation, "<arm>.r<percent>": right or
        not}."""
        layout, edit = CELLS[number % len(CELLS)]
        edited = draw(layout, edit, number)
        prompt = self._prompt(edited.after)
        answer = self._reader.answer_tokens(edited.answer)
        chained = self._chained(edited, prompt)
        computing = Match(chained.head)
        kv = self._reader.pool.take(prompt.slots + len(answer))
        right: dict[str, Any] = {}
        try:
            for arm, ratio in ((FULL, 1.0), *((arm, ratio) for arm in RULES for ratio in RATIOS)):
                for use, match in (("", computing), (TURNS, chained)):
                    name = cell(arm.name + use, ratio)
                    if name in missing:
                        right[name] = self._right(prompt, kv, answer, arm, ratio, match)
        finally:
            self._reader.pool.give_back(kv)
        return {"layout": layout, "edit": edit, REUSED: sum(turn.tokens for turn in chained.turns)} | right

    def _prompt(self, conversation: Conversation) -> Prompt:
        return self._reader.ask(conversation.messages(), conversation.pages, conversation.question)

    def _chained(self, edited: Edited, prompt: Prompt) -> Match:
        """What the edited conversation finds where the other is held, as full prefill left it."""
        held, chains, family = self._prompt(edited.before), Chains(1 << 30), self._reader.family
        kv = self._reader.pool.take(held.slots)
        try:
            Prefill(family, kv, held.layout, held.features, Work()).full()
            length = held.layout.length
            computed = Computed(kv.keys, kv.values, length, np.ones(length, dtype=bool))
            chains.keep(_content(edited.before, held), computed, None, chains.epoch)
        finally:
            self._reader.pool.give_back(kv)
        asked = _content(edited.after, prompt)
        match = chains.find(asked, prompt.layout.length - 1, None)
        return chains.find_turns(match, asked, prompt.layout.asked, None)

    def _right(
        self, prompt: Prompt, kv: RequestKV, answer: Sequence[int], arm: Arm, ratio: float, match: Match
    ) -> int:
        family, layout, policy = self._reader.family, prompt.layout, arm.make(0)
        prefill = Prefill(family, kv, layout, prompt.features, Work(), match)
        found = prefill.reuse(prompt.entries, policy, ratio) if policy.uses_store else prefill.full()
        return int(would_say(family, kv, found.logits, layout.length, layout.next_position, answer))


def _content(conversation: Conversation, prompt: Prompt) -> Content:
    digests = tuple(repr(conversation.pages[span.image]).encode() for span in prompt.layout.spans)
    return Content(b"", "tenant", prompt.layout.ids, prompt.layout.spans, digests)


def figures_of(rows: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Of every arm: accuracy among the counted, with and without the prompts that had no text to reuse, by layout and
    edit, and the paired difference that reused text makes."""
    full = cell(FULL.name, 1.0)
    counted = [row for row in rows.values() if row[full]]
    touched = [row for row in counted if row[REUSED]]
    if not touched:
        raise NotMeasured("full prefill answers nothing that has text to reuse")
    found: dict[str, Any] = {
        "n": len(rows),
        "counted": len(counted),
        "with_text_to_reuse": len(touched),
        "text_tokens_to_reuse": round(float(np.mean([row[REUSED] for row in touched])), 1),
        "full_accuracy": share_interval(_column(rows.values(), full)).as_list(),
    }
    for name in NAMES[1:]:
        cells = {
            f"{layout}, {edit}": [r for r in touched if (r["layout"], r["edit"]) == (layout, edit)]
            for layout, edit in CELLS
        }
        found[name] = {
            "accuracy": share_interval(_column(touched, name)).as_list(),
            "by_cell": {
                title: [len(some), round(float(_column(some, name).mean()), 4)]
                for title, some in cells.items()
                if some
            },
        }
        if TURNS in name:
            computing = name.replace(TURNS, "")
            difference = mean_interval(_column(touched, name) - _column(touched, computing))
            found[name]["minus_computed"] = difference.as_list()
    return found


def _column(rows: Collection[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.asarray([row[name] for row in rows], dtype=np.float64)


@exit_status()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    options = parser.parse_args(arguments)
    keep_large_blocks_apart()
    torch.set_num_threads(1)
    drawn = {"weights": weights_fingerprint(SHIPPED), "seed": SEED, "layouts": LAYOUTS, "edits": EDITS}
    recording = Recording(WORK / "turns" / "answers.jsonl", drawn)
    answers = Answers(PageReader.load())
    figures = figures_of(recording.complete(range(options.prompts), COLUMNS, answers.row, "answers"))
    ratios = {f"whole.{name}": figures[name]["accuracy"][0] for name in NAMES[1:]}
    print(write_result(__file__, drawn | {"prompts": options.prompts}, ratios, figures))


if __name__ == "__main__":
    raise SystemExit(main())
