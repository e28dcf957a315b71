"""The single-image sets, in VLMEvalKit's layout: one TSV with the pictures inside, base64.

MMBench (circular evaluation), OCRBench, POPE, MMStar. Source: open-compass/VLMEvalKit, `utils/matching_util.py`,
`dataset/image_mcq.py`, `dataset/utils/multiple_choice.py`, `dataset/image_vqa.py` (OCRBench), `dataset/utils/yorn.py`
and `smp/misc.py` (POPE), as of 2026-04, when CONDUIT took its copy. Answers are matched by rule (`exact_matching`); the
kit's second chance, a judge model that reads what the rules cannot, is left out: such answers are wrong.
"""

from __future__ import annotations

import ast
import base64
import csv
import re
import string
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from eval.datasets.base import DATASETS, Picture, Reader, Sample, Score, mean

SOURCE = "open-compass/VLMEvalKit: image_mcq.py, multiple_choice.py, matching_util.py, image_vqa.py, yorn.py"
# MMBench numbers the rotated copies of a question by adding multiples of this to its index.
ROTATION = 1_000_000
FORMULA = "Handwritten Mathematical Expression Recognition"
# What OCRBench counts as one figure; its other categories are figures of their own.
TEXT_RECOGNITION = (
    "Regular Text Recognition",
    "Irregular Text Recognition",
    "Artistic Text Recognition",
    "Handwriting Recognition",
    "Digit String Recognition",
    "Non-Semantic Text Recognition",
)
# Longer than this is a picture; shorter is the index of the row that has it.
LONGEST_INDEX = 64
# A letter counts where it stands among so many last words.
LAST_WORDS = 4
YES_NO_SIGNS = ';/[]"{}()=+\\_-><@`,?!'
REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)


class _Table:
    """A TSV with the columns index, image (base64, or the index of the row that has it), question, answer, ..."""

    headline = "overall"
    max_tokens = 2048

    def __init__(self, name: str, file: Path) -> None:
        self.name, self._file = name, file

    def score(self, sample: Sample, output: str) -> float:
        raise NotImplementedError

    def summary(self, answered: Sequence[tuple[Sample, str]]) -> Score:
        raise NotImplementedError

    def samples(self) -> Iterator[Sample]:
        csv.field_size_limit(sys.maxsize)
        with self._file.open(newline="", encoding="utf-8") as lines:
            rows = [row for row in csv.DictReader(lines, delimiter="\t") if row["image"]]
        # A row may stand before the one whose picture it shares.
        pictures = {row["index"]: row["image"] for row in rows if len(row["image"]) > LONGEST_INDEX}
        for row in rows:
            yield self._sample(row, Picture(base64.b64decode(pictures.get(row["image"], row["image"]))))

    def _sample(self, row: Mapping[str, str], picture: Picture) -> Sample:
        return Sample(row["index"], (picture, row["question"]), dict(row) | {"image": ""})


class ChoiceSet(_Table):
    """Multiple choice; an index and its rotated copies count as one, right where all are (CircularEval)."""

    def _sample(self, row: Mapping[str, str], picture: Picture) -> Sample:
        choices = {c: row[c] for c in string.ascii_uppercase if row.get(c)}
        hint = f"Hint: {row['hint']}\n" if row.get("hint") else ""
        listed = "".join(f"{letter}. {text}\n" for letter, text in choices.items())
        prompt = f"{hint}Question: {row['question']}\nOptions:\n{listed}"
        prompt += "Please select the correct answer from the options above. \n"
        groups = [row[column] for column in ("l2-category", "category") if row.get(column)]
        truth = {"answer": row["answer"], "choices": choices, "groups": groups}
        return Sample(row["index"], (picture, prompt), truth)

    def score(self, sample: Sample, output: str) -> float:
        return float(inferred_choice(output, sample.truth["choices"]) == sample.truth["answer"])

    def summary(self, answered: Sequence[tuple[Sample, str]]) -> Score:
        hits: dict[int, list[float]] = defaultdict(list)
        groups: dict[int, list[str]] = {}
        for sample, output in answered:
            question = int(sample.id) % ROTATION
            hits[question].append(self.score(sample, output))
            groups[question] = sample.truth["groups"]
        whole = {question: float(all(found)) for question, found in hits.items()}
        found = {"overall": 100 * mean(list(whole.values()))}
        for name in sorted({name for names in groups.values() for name in names}):
            found[name] = 100 * mean([hit for question, hit in whole.items() if name in groups[question]])
        return found


class OCRBench(_Table):
    """The number of answers that hold a reference, of 1,000."""

    headline = "final_score"

    def score(self, sample: Sample, output: str) -> float:
        answers = ast.literal_eval(sample.truth["answer"])
        said = output.strip().replace("\n", " ")
        if sample.truth["category"] == FORMULA:
            return float(
                any(a.strip().replace("\n", " ").replace(" ", "") in said.replace(" ", "") for a in answers)
            )
        return float(any(a.lower().strip().replace("\n", " ") in said.lower() for a in answers))

    def summary(self, answered: Sequence[tuple[Sample, str]]) -> Score:
        found: dict[str, float] = defaultdict(float)
        for sample, output in answered:
            category = sample.truth["category"]
            name = "Text Recognition" if category in TEXT_RECOGNITION else category
            found[name] += self.score(sample, output)
        total = sum(found.values())
        return {"final_score": total, "share": 100 * total / len(answered), **dict(sorted(found.items()))}


class POPE(_Table):
    """Is there such a thing in the picture? F1 of "yes" is what VLMEvalKit calls overall.

    Adversarial, popular and random questions overlap: `category` lists where a question belongs, and in all figures it
    counts once for each.
    """

    headline = "f1"

    def score(self, sample: Sample, output: str) -> float:
        return float(yes_or_no(output) == sample.truth["answer"])

    def summary(self, answered: Sequence[tuple[Sample, str]]) -> Score:
        by_category: dict[str, list[tuple[bool, str]]] = defaultdict(list)
        for sample, output in answered:
            for category in sample.truth["category"].split(","):
                by_category[category].append((sample.truth["answer"] == "Yes", yes_or_no(output)))
        every = [pair for pairs in by_category.values() for pair in pairs]
        found = _yes_figures(every)
        return found | {
            f"f1 {name}": _yes_figures(pairs)["f1"] for name, pairs in sorted(by_category.items())
        }


def _yes_figures(pairs: Sequence[tuple[bool, str]]) -> dict[str, float]:
    """`pairs`: whether yes is right, and what was said. What is neither yes nor no is no "yes", and wrong."""
    both = sum(truth and said == "Yes" for truth, said in pairs)
    precision = both / max(1, sum(said == "Yes" for _, said in pairs))
    recall = both / max(1, sum(truth for truth, _ in pairs))
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    accuracy = mean([said == ("Yes" if truth else "No") for truth, said in pairs])
    figures = {"f1": f1, "accuracy": accuracy, "precision": precision, "recall": recall}
    return {name: 100 * figure for name, figure in figures.items()}


def inferred_choice(output: str, choices: Mapping[str, str]) -> str | None:
    """The option that an answer names: the only letter that stands alone in it, if near its end, else the only option
    text it holds. A lone Z declines all options."""
    if any(refusal in output for refusal in REFUSALS):
        return None
    words = re.sub(r"[.()\[\],:;!*#{}]", " ", output).split()
    letters = [letter for letter in choices if letter in words]
    if len(letters) == 1 and words.index(letters[0]) >= len(words) - LAST_WORDS:
        return letters[0]
    if not letters and "Z" in words:
        return None
    said = output.lower()
    if len(said) > 2 * sum(len(text) for text in choices.values()):
        return None
    texts = [letter for letter, text in choices.items() if text.lower() in said]
    return texts[0] if len(texts) == 1 else None


def yes_or_no(output: str) -> str:
    """Which of the two words stands in the output. The kit takes signs out as the VQA score does: one with a space at
    either side of it anywhere in the output vanishes, another becomes a space; signs that it does not list (such as *
    and :) stay part of the word."""
    said = bare = output.lower()
    thousands = re.search(r"\d,\d", said) is not None
    for sign in YES_NO_SIGNS:
        vanishes = thousands or f"{sign} " in said or f" {sign}" in said
        bare = bare.replace(sign, "" if vanishes else " ")
    words = re.sub(r"(?<!\d)\.(?!\d)", "", bare).split()
    if ("yes" in words) == ("no" in words):
        return "Unknown"
    return "Yes" if "yes" in words else "No"


def _open(kind: type[_Table], name: str, files: Sequence[str], folder: Path) -> _Table:
    for file in files:
        if (folder / file).is_file():
            return kind(name, folder / file)
    raise FileNotFoundError(f"{name}: no file {' or '.join(files)} in the folder")


# Exact names: the kit keeps other sets beside these whose names begin alike (OCRBench_v2, MMBench_DEV_CN, ...).
for _name, _kind, _files in (
    ("mmbench", ChoiceSet, ("MMBench_DEV_EN_V11.tsv", "MMBench_DEV_EN.tsv")),
    ("mmstar", ChoiceSet, ("MMStar.tsv",)),
    ("ocrbench", OCRBench, ("OCRBench.tsv",)),
    ("pope", POPE, ("POPE.tsv",)),
):
    DATASETS[_name] = Reader(
        partial(_open, _kind, _name, _files), f"{' or '.join(_files)}, pictures inside", SOURCE, "one"
    )
