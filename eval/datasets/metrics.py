"""Scores of free answers, by the definitions of the sets that use them.

Source: EdinburghNLP/MMLongBench, `utils.py` (SubEM, token F1, rule-based document score; its normalisation is SQuAD's
by way of DensePhrases).
"""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

UNITS = (
    "kg",
    "meters",
    "acres",
    "minutes",
    "miles",
    "mile",
    "feet",
    "million",
    "thousand",
    "billion",
    "mm",
    "m",
)
PREFIX = "Answer:"
NUMBER = re.compile(r"-?\d+(?:\.\d*)?|-?\.\d+")
# References that only a literal match satisfies: links, files, pages, phone numbers, times, dates, addresses.
LITERAL = tuple(
    re.compile(pattern)
    for pattern in (
        r"https://",
        r".*\.(py|ipynb)$",
        r"^page",
        r"^\d+(-\d+|\s\d+)?$",
        r"(a\.m\.|p\.m\.)",
        r"^\d{4}[-/\s]\d{1,2}[-/\s]\d{1,2}$",
        r"^\d{1,2}[-/\s]\d{1,2}[-/\s]\d{2,4}$",
        r"^\d{4}[-/\s]\d{1,2}$",
        r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$",
    )
)


def normalize(text: str) -> str:
    """Lower case, without punctuation and articles, single spaces."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def behind_prefix(output: str) -> str:
    """The output without an "Answer:" at its start. One further on stays: the release has the answer begin with the
    prefix and reads all that follows the first one, which is its own."""
    return re.sub(f"^{PREFIX}", "", output.strip(), flags=re.IGNORECASE).strip()


def substring_match(output: str, answers: Sequence[str]) -> float:
    """SubEM: 1 where any reference, normalised, stands in the normalised output."""
    said = normalize(output)
    return float(any(normalize(answer) in said for answer in answers))


def token_f1(output: str, answer: str) -> float:
    said, wanted = normalize(output).split(), normalize(answer).split()
    common = sum((Counter(said) & Counter(wanted)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(said), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def document_score(answer: str, output: str, kind: str) -> float:
    """MMLongBench's rule-based score of document questions; `kind` is the set's `answer_format`.

    Whole and real numbers: 1 where any number of the output is it (reals within 1 %, also as a share or per cent).
    Text: token F1, or literal containment for links, dates and the like. Lists: mean over the items, texts merged.
    """
    if kind == "Integer":
        wanted = float(_bare(answer))
        return float(any(number == wanted for number in _numbers(_bare(output)) if number == int(number)))
    if kind == "Float":
        real = float(_bare(answer))
        forms = (real / 100, real, real * 100)
        numbers = _numbers(_bare(output))
        return float(any(math.isclose(form, number, rel_tol=0.01) for form in forms for number in numbers))
    if kind in ("String", "None"):
        return float(answer in output) if _is_literal(answer) else token_f1(output, answer)
    if kind == "List":
        return _list_score(json.loads(answer), output)
    raise ValueError(f"unknown answer format {kind!r}")


def _list_score(items: list[Any], output: str) -> float:
    merged = [
        item
        for item in items
        if isinstance(item, str) and _kind_of(item) == "String" and not _is_literal(item)
    ]
    others = [item for item in items if item not in merged]
    joined = " ".join(merged).strip()
    wanted: list[Any] = [joined, *others] if joined else items
    scores = [document_score(str(item), output, _kind_of(item)) for item in wanted]
    return sum(scores) / len(scores)


def _kind_of(item: Any) -> str:
    if isinstance(item, int):
        return "Integer"
    if isinstance(item, float):
        return "Float"
    try:
        number = float(_bare(item))
        whole = number == int(number)
    except (ValueError, OverflowError):  # "nan" and "infinity" are words here, though they parse
        return "String"
    return "Integer" if whole and "%" not in item else "Float"


def _is_literal(text: str) -> bool:
    return any(pattern.search(text) for pattern in LITERAL)


def _bare(text: str) -> str:
    """Without thousands separators, a unit at the end, quotes and currency or per cent signs around."""
    bare = text.lower().strip().replace(",", "")
    for unit in UNITS:
        bare = re.sub(re.escape(unit) + r"$", "", bare).strip()
    bare = re.sub(r"^['\"]|['\"]$", "", bare).strip()
    for sign in "$£%":
        bare = bare.strip().strip(sign).strip()
    return bare


def _numbers(text: str) -> list[float]:
    found = [float(match) for match in NUMBER.findall(text.replace(",", "")) if match not in ("-", ".")]
    return [number for number in found if math.isfinite(number)]
