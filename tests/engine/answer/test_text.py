"""From tokens to text: characters that arrive in pieces, stop strings."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, ByteLevel, Fuse, Replace, Sequence, Strip
from tokenizers.models import BPE
from transformers.convert_slow_tokenizer import bytes_to_unicode

from engine.answer.detokenizer import UNDECIDED, Detokenizer
from engine.answer.stops import StopStrings

SPECIAL = 256


def byte_tokenizer() -> Tokenizer:
    """One token a byte, its id the byte, and a special one."""
    tokenizer = Tokenizer(BPE({spelled: byte for byte, spelled in bytes_to_unicode().items()}, []))
    tokenizer.decoder = ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>"])
    assert tokenizer.token_to_id("<|im_end|>") == SPECIAL
    return tokenizer


def word_tokenizer() -> Tokenizer:
    """Words with the blank before them, and a token for each byte of what is no word, as SentencePiece makes them: a
    first blank is left out, and a run of bytes is shown as U+FFFD until all of it is whole."""
    words = {"\u2581the": THE, "\u2581fox": FOX}
    tokenizer = Tokenizer(BPE({**{f"<0x{b:02X}>": b for b in range(256)}, **words}, [], byte_fallback=True))
    tokenizer.decoder = Sequence([Replace("\u2581", " "), ByteFallback(), Fuse(), Strip(" ", 1, 0)])
    return tokenizer


THE, FOX = 256, 257
BYTES = byte_tokenizer()
WORDS = word_tokenizer()


def detokenize(tokens: Iterable[int], tokenizer: Tokenizer = BYTES) -> list[str]:
    stream = Detokenizer(tokenizer)
    return [*(stream.add(token) for token in tokens), stream.flush()]


@given(st.text().filter(lambda text: not text.endswith("\ufffd")))
def test_pieces_add_up_to_the_text_and_never_split_a_character(text: str) -> None:
    pieces = detokenize(text.encode())
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


def test_text_is_shown_as_soon_as_it_is_whole() -> None:
    assert detokenize("a\u00e9b".encode()) == ["a", "", "\u00e9", "b", ""]


def test_bytes_that_never_become_a_character_do_not_hold_the_stream() -> None:
    pieces = detokenize([0xC3] * 20)
    assert pieces == [""] * UNDECIDED + ["\ufffd"] * (20 - UNDECIDED) + [""]


def test_special_tokens_are_no_text() -> None:
    assert "".join(detokenize([*b"ab", SPECIAL, *b"c"])) == "abc"


@pytest.mark.parametrize("text", ["ab\U0001f600", "한국", "e\u0301"])
def test_f1_a_character_cut_off_by_max_tokens_leaves_no_replacement(text: str) -> None:
    assert "\ufffd" not in "".join(detokenize(text.encode()[:-1]))


@given(st.binary(max_size=12))
def test_pieces_of_any_bytes_equal_decoding_them_at_once(data: bytes) -> None:
    whole = data.decode(errors="replace")
    cut = min(UNDECIDED, len(whole) - len(whole.rstrip("\ufffd")))
    assert "".join(detokenize(data)) == whole[: len(whole) - cut]


def test_a_word_keeps_the_blank_before_it() -> None:
    assert detokenize([THE, FOX, THE], WORDS) == ["the", " fox", " the", ""]


@given(st.lists(st.sampled_from([THE, FOX]) | st.characters(exclude_characters="\ufffd \u2581"), max_size=6))
def test_characters_of_a_token_a_byte_are_shown_when_they_are_whole(parts: list[int | str]) -> None:
    tokens = [token for part in parts for token in ([part] if isinstance(part, int) else part.encode())]
    pieces = detokenize(tokens, WORDS)
    assert "".join(pieces) == WORDS.decode(tokens) and not any("\ufffd" in piece for piece in pieces)
    assert "".join(detokenize([*tokens, 0xE4, 0xBD], WORDS)) == WORDS.decode(tokens)


def test_characters_of_a_token_a_byte_are_shown_at_their_last_one() -> None:
    assert detokenize("\u4f60\u597d\U0001f600".encode(), WORDS) == [
        *["", "", "\u4f60"],
        *["", "", "\u597d"],
        *["", "", "", "\U0001f600"],
        "",
    ]


def test_a_good_character_behind_bad_bytes_is_not_lost() -> None:
    assert "".join(detokenize(b"\xf0\x9f\xe4\xbd\xa0!")) == "\ufffd\u4f60!"


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["own fox"], ["the br", "own", " fox", " ran"], "the br"),
        (["fox", "brown fox"], ["the brown", " fox"], "the "),
        (["abc"], ["abc"], ""),
        (["abc"], ["ab", "ab", "c!"], "ab"),
        (["aab"], ["a", "a", "a", "b"], "a"),
        (["end"], ["the en"], "the en"),
        (["\n\n"], ["one\n", "\ntwo"], "one"),
    ],
)
def test_f2_stop_strings_cut_exactly(stops: list[str], pieces: list[str], expected: str) -> None:
    stream = StopStrings(stops)
    shown = ""
    for piece in pieces:
        shown += stream.add(piece)
        if stream.found:
            break
    assert (shown if stream.found else shown + stream.flush()) == expected


@given(
    st.text(alphabet="ab", max_size=20), st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)
)
def test_stop_strings_equal_cutting_the_whole_text(text: str, stops: list[str]) -> None:
    stream = StopStrings(stops)
    shown = ""
    for character in text:
        shown += stream.add(character)
        if stream.found:
            break
    if not stream.found:
        shown += stream.flush()
    # The stop that is complete first ends the answer, which is what a reader of a stream would see.
    ends = [i for i in range(len(text) + 1) if any(text[:i].endswith(stop) for stop in stops)]
    whole = text if not ends else text[: ends[0]]
    cut = max((len(stop) for stop in stops if whole.endswith(stop)), default=0) if ends else 0
    assert shown == whole[: len(whole) - cut]
