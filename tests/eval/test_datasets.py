"""Readers and scores of the public sets, on tiny files in the same layout."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from eval.datasets.base import Picture, Sample
from eval.datasets.known import DATASETS
from eval.datasets.metrics import behind_prefix, document_score, substring_match, token_f1
from eval.datasets.vlmevalkit import inferred_choice, yes_or_no


def png(color: tuple[int, int, int] = (255, 0, 0)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (12, 8), color).save(buffer, format="PNG")
    return buffer.getvalue()


def write_lines(file: Path, rows: list[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_table(file: Path, rows: list[dict[str, str]]) -> None:
    columns = list(rows[0])
    lines = ["\t".join(columns), *("\t".join(row.get(c, "") for c in columns) for row in rows)]
    file.write_text("\n".join(lines) + "\n")


def texts(sample: Sample) -> str:
    return "".join("<image>" if isinstance(part, Picture) else part for part in sample.parts)


@pytest.mark.parametrize("name", ["longdocurl", "mmlongdoc", "slidevqa"])
def test_document_sets(tmp_path: Path, name: str) -> None:
    pages = [f"{name}/a-document-with-a-name/page{i}.png" for i in (3, 4)]
    for page in pages:
        (tmp_path / "mmlb_image" / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mmlb_image" / page).write_bytes(png())
    row = {
        "id": "q7",
        "page_list": pages,
        "doc_name": "a-document-with-a-name",
        "question": "How many?",
        "answer": "12",
        "answer_format": "Integer",
    }
    for length in (16, 8):
        write_lines(tmp_path / "documentQA" / f"{name}_K{length}.jsonl", [row] * (length // 8))
    dataset = DATASETS[name].open(tmp_path)
    (sample,) = dataset.samples()
    assert texts(sample).endswith(
        "Answer: [answer]\n\nDocument a-document-with (page 3): <image>\n\nDocument a-document-with (page 4): <image>"
        "\n\nQuestion: Based on Document a-document-with, answer the following question. How many?\nAnswer:"
    )
    pictures = [part for part in sample.parts if isinstance(part, Picture)]
    assert [p.pixels().shape for p in pictures] == [(8, 12, 3)] * 2
    assert dataset.summary([(sample, "Answer: there are 12 of them")]) == {"score": 100.0}
    assert dataset.score(sample, "Answer: 13") == 0.0


@pytest.mark.parametrize("name", ["infoseek", "viquae"])
def test_entity_sets(tmp_path: Path, name: str) -> None:
    (tmp_path / "e.png").write_bytes(png())
    row = {
        "id": 1,
        "ctxs": [{"title": "T1", "text": "first"}, {"title": "T2", "text": "second"}],
        "image": "e.png",
        "question": "Who is it?",
        "answer": [["The Red Baron", "Richthofen"]],
    }
    write_lines(tmp_path / "vrag" / f"{name}_K8_dep3.jsonl", [row])
    dataset = DATASETS[name].open(tmp_path)
    (sample,) = dataset.samples()
    assert texts(sample).endswith(
        "\n\nDocument (Title: T1): first\n\nDocument (Title: T2): second\n\nQuestion: <image>Who is it?\nAnswer:"
    )
    assert dataset.score(sample, "It was red baron, I think") == 1.0
    assert dataset.score(sample, "Nobody") == 0.0


def test_a_set_that_is_not_there_says_what_it_needs(tmp_path: Path) -> None:
    for name, reader in DATASETS.items():
        with pytest.raises(FileNotFoundError, match=name):
            reader.open(tmp_path)
        assert reader.source and reader.layout


@pytest.mark.parametrize(
    ("answer", "output", "kind", "score"),
    [
        ("1,200", "about 1200 people", "Integer", 1.0),
        ("3", "3.5", "Integer", 0.0),
        ("35.4%", "0.354", "Float", 1.0),
        ("35.4", "35.6", "Float", 1.0),
        ("35.4", "37", "Float", 0.0),
        ("the blue whale", "Blue whale", "String", 1.0),
        ("blue whale", "a whale", "String", 2 / 3),
        ("Not answerable", "Not answerable.", "None", 1.0),
        ("https://a.org/x", "see https://a.org/x", "String", 1.0),
        ("2023-05-01", "in May 2023", "String", 0.0),
        ('["red fox", "4"]', "red fox and 4", "List", (token_f1("red fox and 4", "red fox") + 1) / 2),
        ('["7", "8"]', "7", "List", 0.5),
    ],
)
def test_document_score(answer: str, output: str, kind: str, score: float) -> None:
    assert document_score(answer, output, kind) == pytest.approx(score)


def test_prefix_and_substring() -> None:
    assert behind_prefix("Well. Answer: Answer: four") == "four"
    assert behind_prefix("four") == "four"
    assert substring_match("It's the Eiffel Tower!", ["eiffel tower"]) == 1.0


def test_multiple_choice_counts_rotated_copies_as_one(tmp_path: Path) -> None:
    image = base64.b64encode(png()).decode()
    row = {
        "index": "5",
        "image": image,
        "question": "Which?",
        "hint": "look",
        "A": "cat",
        "B": "dog",
        "answer": "A",
    }
    turned = row | {"index": "1000005", "image": "5", "A": "dog", "B": "cat", "answer": "B"}
    other = row | {"index": "6", "answer": "B"}
    write_table(tmp_path / "MMBench_DEV_EN.tsv", [r | {"category": "animals"} for r in (row, turned, other)])
    dataset = DATASETS["mmbench"].open(tmp_path)
    samples = list(dataset.samples())
    assert texts(samples[0]) == (
        "<image>Hint: look\nQuestion: Which?\nOptions:\nA. cat\nB. dog\n"
        "Please select the correct answer from the options above. \n"
    )
    assert [s.parts[0].pixels().shape for s in samples] == [(8, 12, 3)] * 3  # type: ignore[union-attr]
    assert dataset.summary(list(zip(samples, ["A", "B", "B."], strict=True))) == {
        "overall": 100.0,
        "animals": 100.0,
    }
    assert dataset.summary(list(zip(samples, ["A", "A", "B"], strict=True)))["overall"] == 50.0


@pytest.mark.parametrize(
    ("output", "choice"),
    [
        ("B", "B"),
        ("(B) a dog", "B"),
        ("The answer is B.", "B"),
        ("a dog", "B"),
        ("A or B", None),
        ("neither", None),
        ("I can't process this file. B", None),
    ],
)
def test_choice_is_read_from_an_answer(output: str, choice: str | None) -> None:
    assert inferred_choice(output, {"A": "cat", "B": "dog"}) == choice


def test_mmstar_ocrbench_and_pope(tmp_path: Path) -> None:
    image = base64.b64encode(png()).decode()
    base = {"index": "0", "image": image, "question": "?"}
    write_table(tmp_path / "MMStar.tsv", [base | {"A": "x", "B": "y", "answer": "A", "category": "math"}])
    write_table(
        tmp_path / "OCRBench.tsv",
        [
            base | {"answer": "['CENTRE']", "category": "Regular Text Recognition"},
            base | {"answer": "['1 + x']", "category": "Handwritten Mathematical Expression Recognition"},
        ],
    )
    write_table(
        tmp_path / "POPE.tsv",
        [base | {"answer": a, "category": "random"} for a in ("Yes", "Yes", "No", "No")],
    )
    star, ocr, pope = (DATASETS[name].open(tmp_path) for name in ("mmstar", "ocrbench", "pope"))
    assert star.summary([(next(star.samples()), "A")])["overall"] == 100.0
    found = ocr.summary(list(zip(ocr.samples(), ["the centre of it", "1+x"], strict=True)))
    assert (found["final_score"], found["share"]) == (2.0, 100.0)
    assert ocr.score(list(ocr.samples())[1], "1 + X") == 0.0  # formulas keep their case
    found = pope.summary(list(zip(pope.samples(), ["yes", "No.", "Yes, it is", "no"], strict=True)))
    assert found == {"f1": 50.0, "accuracy": 50.0, "precision": 50.0, "recall": 50.0}
    assert yes_or_no("yes and no") == "Unknown"
