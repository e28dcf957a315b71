"""The single-image sets, in VLMEvalKit's layout: one TSV with the pictures inside, base64.

MMBench (circular evaluation), OCRBench, POPE, MMStar. Source: open-compass/VLMEvalKit, `utils/matching_util.py`,
`dataset/utils/multiple_choice.py`, `dataset/image_vqa.py` (OCRBench), `dataset/utils/yorn.py` (POPE). Answers are
matched by rule; the kit's second chance, a judge model that reads what the rules cannot, is left out: such answers are
wrong.
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

SOURCE = "open-compass/VLMEvalKit: multiple_choice.py, matching_util.py, image_vqa.py, yorn.py"
# MMBench numbers the rotated copies of a question by adding multiples of this to its index.
ROTATION = 1_000_000
FORMULA = "Handwritten Mathematical Expression Recognition"
REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)


class _Table:
    """A TSV with the columns index, image (base64, or the index of the row that has it), question, answer, ..."""

    headline = "overall"
    max_tokens = 128

    def __init__(self, name: str, file: Path) -> None:
        self.name, self._file = name, file

    def score(self, sample: Sample, output: str) -> float:
        raise NotImplementedError

    def summary(self, answered: Sequence[tuple[Sample, str]]) -> Score:
        raise NotImplementedError

    def samples(self) -> Iterator[Sample]:
        csv.field_size_limit(sys.maxsize)
        pictures: dict[str, bytes] = {}
        with self._file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines, delimiter="\t"):
                image = row["image"]
                # A short entry names the row whose picture it shares.
                found = pictures[image] if len(image) <= 64 and image in pictures else base64.b64decode(image)
                pictures[row["index"]] = found
                yield self._sample(row, Picture(found))

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
        truth = {"answer": row["answer"], "choices": choices, "category": row.get("category", "")}
        return Sample(row["index"], (picture, prompt), truth)

    def score(self, sample: Sample, output: str) -> float:
        return float(inferred_choice(output.strip(), sample.truth["choices"]) == sample.truth["answer"])

    def summary(self, answered: Sequence[tuple[Sample, str]]) -> Score:
        hits: dict[int, list[float]] = defaultdict(list)
        category: dict[int, str] = {}
        for sample, output in answered:
            question = int(sample.id) % ROTATION
            hits[question].append(self.score(sample, output))
            category[question] = sample.truth["category"]
        whole = {question: float(all(found)) for question, found in hits.items()}
        found = {"overall": 100 * mean(list(whole.values()))}
        for name in sorted(set(category.values()) - {""}):
            found[name] = 100 * mean([hit for question, hit in whole.items() if category[question] == name])
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
        scores = [(sample.truth["category"], self.score(sample, output)) for sample, output in answered]
        found = {
            name: sum(s for category, s in scores if category == name) for name in {c for c, _ in scores}
        }
        total = sum(score for _, score in scores)
        return {"final_score": total, "share": 100 * total / len(scores), **dict(sorted(found.items()))}


class POPE(_Table):
    """Is there such a thing in the picture? F1 of "yes" is what VLMEvalKit calls overall."""

    headline = "f1"

    def score(self, sample: Sample, output: str) -> float:
        return float(yes_or_no(output) == sample.truth["answer"])

    def summary(self, answered: Sequence[tuple[Sample, str]]) -> Score:
        pairs = [(sample.truth["answer"] == "Yes", yes_or_no(output) == "Yes") for sample, output in answered]
        both = sum(truth and said for truth, said in pairs)
        precision = both / max(1, sum(said for _, said in pairs))
        recall = both / max(1, sum(truth for truth, _ in pairs))
        f1 = 2 * precision * recall / (precision + recall) if both else 0.0
        accuracy = mean([self.score(sample, output) for sample, output in answered])
        return {
            "f1": 100 * f1,
            "accuracy": 100 * accuracy,
            "precision": 100 * precision,
            "recall": 100 * recall,
        }


def inferred_choice(output: str, choices: Mapping[str, str]) -> str | None:
    """The option that an answer names: the only letter that stands alone in it, else the only option text it holds."""
    if any(refusal in output for refusal in REFUSALS):
        return None
    words = re.sub(r"[.()\[\],:;!*#{}]", " ", output).split()
    letters = [letter for letter in choices if letter in words]
    if len(letters) == 1:
        return letters[0]
    said = output.lower()
    if len(said) > 2 * sum(len(text) for text in choices.values()):
        return None
    texts = [letter for letter, text in choices.items() if text.lower() in said]
    return texts[0] if len(texts) == 1 else None


def yes_or_no(output: str) -> str:
    words = re.sub(r"[^\w\s']", " ", output.lower()).split()
    if ("yes" in words) == ("no" in words):
        return "Unknown"
    return "Yes" if "yes" in words else "No"


def _open(kind: type[_Table], name: str, pattern: str, folder: Path) -> _Table:
    found = sorted(folder.glob(pattern))
    if not found:
        raise FileNotFoundError(f"{name}: no file {pattern} in the folder")
    return kind(name, found[0])


for _name, _kind, _pattern in (
    ("mmbench", ChoiceSet, "MMBench*.tsv"),
    ("mmstar", ChoiceSet, "MMStar*.tsv"),
    ("ocrbench", OCRBench, "OCRBench*.tsv"),
    ("pope", POPE, "POPE*.tsv"),
):
    DATASETS[_name] = Reader(
        partial(_open, _kind, _name, _pattern), f"{_pattern}, pictures inside", SOURCE, "one"
    )
