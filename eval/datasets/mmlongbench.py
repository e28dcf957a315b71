"""The five multi-image sets of CONDUIT's main table, in the layout of the MMLongBench release.

LongDocURL, MMLongBench-Doc and SlideVQA as `documentQA/<set>_K<length>.jsonl`, InfoSeek and ViQuAE as
`vrag/<set>_K<length>_dep<n>.jsonl`; pictures beside them. Source: EdinburghNLP/MMLongBench, `data.py` (prompts, fields)
and `utils.py` (scores by rule, which CONDUIT uses, not the judge model); arXiv 2505.10610.

The release lets the assistant's turn begin with "Answer:". A chat request cannot, so here the user's turn ends with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eval.datasets.base import DATASETS, Picture, Reader, Sample, Score, mean
from eval.datasets.metrics import PREFIX, behind_prefix, document_score, substring_match

SOURCE = "EdinburghNLP/MMLongBench data.py, utils.py (arXiv 2505.10610)"
DOCUMENT_TASK = (
    "You are given a document with text and images, and a question. Answer the question as concisely as you can, using"
    " a single phrase or sentence if possible. If the question cannot be answered based on the information in the"
    " article, write 'Not answerable.' Write your answer in the following format:\nAnswer: [answer]\n\n"
)
ENTITY_TASK = (
    "Use the given documents to write a concise and short answer to the question about the entity shown in the image."
    " Write your answer in the following format:\nAnswer: [answer]\n\n"
)
NAME_LENGTH = 15  # documents are named by their first characters
LENGTHS = ("4", "8", "16", "32", "64", "128")


class _Release:
    """One jsonl file of the release; pictures are named relative to `images`."""

    headline = "score"
    max_tokens = 128

    def __init__(self, name: str, file: Path, images: Path) -> None:
        self.name, self._file, self._images = name, file, images

    def samples(self) -> Iterator[Sample]:
        with self._file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                row = json.loads(line) if line.strip() else None
                if row is not None and self._counts(row):
                    yield self._sample(number, row)

    def summary(self, answered: Sequence[tuple[Sample, str]]) -> Score:
        return {"score": 100 * mean([self.score(sample, output) for sample, output in answered])}

    def score(self, sample: Sample, output: str) -> float:
        raise NotImplementedError

    def _counts(self, row: Mapping[str, Any]) -> bool:
        """Whether the release scores this row."""
        return True

    def _sample(self, number: int, row: Mapping[str, Any]) -> Sample:
        raise NotImplementedError

    def _picture(self, name: str) -> Picture:
        return Picture(self._images / name)


class DocumentSet(_Release):
    """Fields: page_list, doc_name, question, answer, answer_format."""

    def _sample(self, number: int, row: Mapping[str, Any]) -> Sample:
        parts: list[str | Picture] = [DOCUMENT_TASK]
        for place, page in enumerate(row["page_list"]):
            gap = "\n\n" if place else ""
            parts += [f"{gap}Document {page.split('/')[-2][:NAME_LENGTH]}: ", self._picture(page)]
        asked = f"Based on Document {row['doc_name'][:NAME_LENGTH]}, answer the following question. {row['question']}"
        parts.append(f"\n\nQuestion: {asked}\nAnswer:")
        truth = {"answer": row["answer"], "answer_format": row["answer_format"]}
        return Sample(str(row.get("id", number)), tuple(parts), truth)

    def score(self, sample: Sample, output: str) -> float:
        answer = sample.truth["answer"]
        written = answer if isinstance(answer, str) else json.dumps(answer)
        return document_score(written, behind_prefix(output), sample.truth["answer_format"])


class EntitySet(_Release):
    """Fields: ctxs (title, text), image, question, answer. SubEM of the output with or without its "Answer:"."""

    def _counts(self, row: Mapping[str, Any]) -> bool:
        """The release leaves these pictures out: not every file system takes their names."""
        return '"' not in row["image"]

    def _sample(self, number: int, row: Mapping[str, Any]) -> Sample:
        passages = "\n\n".join(f"Document (Title: {c['title']}): {c['text']}" for c in row["ctxs"])
        parts = (
            f"{ENTITY_TASK}{passages}\n\nQuestion: ",
            self._picture(row["image"]),
            f"{row['question']}\nAnswer:",
        )
        return Sample(str(row.get("id", number)), parts, {"answers": _flat(row["answer"])})

    def score(self, sample: Sample, output: str) -> float:
        answers = sample.truth["answers"]
        return max(substring_match(said, answers) for said in (PREFIX + output, behind_prefix(output)))


def _flat(answer: Any) -> list[str]:
    if isinstance(answer, str):
        return [answer]
    return [text for item in answer for text in ([item] if isinstance(item, str) else item)]


def _open(kind: type[_Release], name: str, pattern: str, folder: Path) -> _Release:
    """The release's folder with the shortest length that is there, or a folder with one length only."""
    for length in LENGTHS:
        found = sorted(folder.glob(pattern.format(name=name, length=length)))
        if found:
            images = folder / "mmlb_image"
            return kind(name, found[0], images if images.is_dir() else folder)
    raise FileNotFoundError(
        f"{name}: no file {pattern.format(name=name, length='<length>')} under the folder"
    )


_DOCUMENTS, _ENTITIES = "**/documentQA/{name}_K{length}.jsonl", "**/vrag/{name}_K{length}_dep*.jsonl"
for _name in ("longdocurl", "mmlongdoc", "slidevqa"):
    DATASETS[_name] = Reader(
        partial(_open, DocumentSet, _name, _DOCUMENTS),
        f"documentQA/{_name}_K<length>.jsonl, pictures as its page_list names them (under mmlb_image/)",
        SOURCE,
    )
for _name in ("infoseek", "viquae"):
    DATASETS[_name] = Reader(
        partial(_open, EntitySet, _name, _ENTITIES),
        f"vrag/{_name}_K<length>_dep<n>.jsonl, pictures as its image field names them (under mmlb_image/)",
        SOURCE,
    )
