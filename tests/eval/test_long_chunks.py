"""Longer chunks: nothing of the passages is lost, and a question's own are all there."""

from __future__ import annotations

from eval.long_chunks import CHUNKS, FILLING, SEED, long_asked
from eval.passages import draw_asked
from eval.sweep import Table


def test_chunks_hold_the_question_s_passages_and_those_of_others() -> None:
    for number in range(6):
        asked, own = long_asked(number), draw_asked(number, SEED)
        others = draw_asked(FILLING + number, SEED)
        assert len(asked.passages) == CHUNKS
        text = " ".join(asked.passages)
        assert all(passage in text for passage in (*own.passages, *others.passages))
        assert (asked.question, asked.answer, asked.lead) == (own.question, own.answer, own.lead)
        assert text.startswith(own.passages[0]) == bool(number % 2)


def test_table_compares_two_cells_prompt_by_prompt() -> None:
    rows = {n: {"full": 1, "a.r10": [1, 1, 0.2 + n], "b.r10": [1, 1, 0.1 + n]} for n in range(5)}
    assert Table.of(rows).kl_difference("a.r10", "b.r10").as_list() == [0.1, 0.1, 0.1]
