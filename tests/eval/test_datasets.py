"""Readers and scores of the public sets, on tiny files in the same layout."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from eval.datasets.base import Dataset, Picture, Sample
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
        "Answer: [answer]\n\nDocument a-document-with: <image>\n\nDocument a-document-with: <image>"
        "\n\nQuestion: Based on Document a-document-with, answer the following question. How many?\nAnswer:"
    )
    pictures = [part for part in sample.parts if isinstance(part, Picture)]
    assert [p.pixels().shape for p in pictures] == [(8, 12, 3)] * 2
    assert dataset.summary([(sample, "Answer: there are 12 of them")]) == {"score": 100.0}
    assert dataset.score(sample, "Answer: 13") == 0.0
    # the release reads all of an answer, not only what stands behind an "Answer:" in it
    assert dataset.score(sample, "I count 12. Answer: 13") == 1.0


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
    left_out = row | {"image": 'The "Red" Baron.png'}
    write_lines(tmp_path / "vrag" / f"{name}_K8_dep3.jsonl", [left_out, row])
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
        ('["Infinity", "4"]', "infinity war and 4", "List", (0.4 + 1) / 2),
        ('["nan", "4"]', "nan 4", "List", (2 / 3 + 1) / 2),
        ('["", "4"]', "4", "List", 0.5),
    ],
)
def test_document_score(answer: str, output: str, kind: str, score: float) -> None:
    assert document_score(answer, output, kind) == pytest.approx(score)


def test_prefix_and_substring() -> None:
    assert behind_prefix(" answer: four") == "four"
    assert behind_prefix("Well. Answer: four") == "Well. Answer: four"
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
    other = row | {"index": "6", "image": "7", "answer": "B"}  # the row that it points to stands behind it
    third = row | {"index": "7", "category": "plants"}
    rows = [{"category": "animals", "l2-category": "LR"} | r for r in (row, turned, other, third)]
    write_table(tmp_path / "MMBench_DEV_EN_V11.tsv", rows)
    write_table(tmp_path / "MMBench_DEV_CN.tsv", rows[:1])  # the kit's folder holds its other sets too
    write_table(tmp_path / "MMBench_DEV_EN.tsv", rows[:1])
    dataset = DATASETS["mmbench"].open(tmp_path)
    samples = list(dataset.samples())
    assert texts(samples[0]) == (
        "<image>Hint: look\nQuestion: Which?\nOptions:\nA. cat\nB. dog\n"
        "Please select the correct answer from the options above. \n"
    )
    assert [s.parts[0].pixels().shape for s in samples] == [(8, 12, 3)] * 4  # type: ignore[union-attr]
    found = dataset.summary(list(zip(samples, ["A", "B", "B.", "B"], strict=True)))
    assert found == {
        "overall": pytest.approx(200 / 3),
        "LR": pytest.approx(200 / 3),
        "animals": 100,
        "plants": 0,
    }
    found = dataset.summary(list(zip(samples, ["A", "A", "B", "A"], strict=True)))
    assert found == {
        "overall": pytest.approx(200 / 3),
        "LR": pytest.approx(200 / 3),
        "animals": 50,
        "plants": 100,
    }


@pytest.mark.parametrize(
    ("output", "choice"),
    [
        ("B", "B"),
        ("(B) a dog", "B"),
        ("The answer is B.", "B"),
        ("a dog", "B"),
        ("A or B", None),
        ("neither", None),
        ("Of all these B is the one that fits", None),
        ("Of all these it is B that fits best", "B"),
        ("B, since one can see the tail of a dog", None),
        ("Z a dog", None),
        ("I can't process this file. B", None),
    ],
)
def test_choice_is_read_from_an_answer(output: str, choice: str | None) -> None:
    assert inferred_choice(output, {"A": "cat", "B": "dog"}) == choice


def opened(tmp_path: Path, name: str, rows: list[dict[str, str]]) -> tuple[Dataset, list[Sample]]:
    """A set of these rows; whole files of sets whose names begin alike lie beside it."""
    base = {"index": "0", "image": base64.b64encode(png()).decode(), "question": "?"}
    write_table(tmp_path / f"{name}.tsv", [base | row for row in rows])
    for other in (f"{name}_MINI.tsv", f"{name}_v2.tsv"):
        write_table(tmp_path / other, [base])
    dataset = DATASETS[name.lower()].open(tmp_path)
    return dataset, list(dataset.samples())


def test_mmstar(tmp_path: Path) -> None:
    star, samples = opened(tmp_path, "MMStar", [{"A": "x", "B": "y", "answer": "A", "category": "math"}])
    assert star.summary([(samples[0], "A")]) == {"overall": 100.0, "math": 100.0}


def test_ocrbench_counts_answers_and_joins_its_text_recognition_sets(tmp_path: Path) -> None:
    ocr, samples = opened(
        tmp_path,
        "OCRBench",
        [
            {"answer": "['CENTRE']", "category": "Regular Text Recognition"},
            {"answer": "['12', '21']", "category": "Digit String Recognition"},
            {"answer": "['1 + x']", "category": "Handwritten Mathematical Expression Recognition"},
            {"answer": "['$5']", "category": "Doc-oriented VQA"},
        ],
    )
    assert ocr.summary(list(zip(samples, ["the\ncentre of it", "21", "1+x", "five"], strict=True))) == {
        "final_score": 3.0,
        "share": 75.0,
        "Text Recognition": 2.0,
        "Handwritten Mathematical Expression Recognition": 1.0,
        "Doc-oriented VQA": 0.0,
    }
    assert ocr.score(samples[2], "1 + X") == 0.0  # formulas keep their case


def test_pope_counts_a_question_in_each_of_its_categories(tmp_path: Path) -> None:
    pope, samples = opened(
        tmp_path,
        "POPE",
        [
            {"answer": "Yes", "category": "adversarial,popular,random"},
            {"answer": "Yes", "category": "random"},
            {"answer": "No", "category": "popular"},
            {"answer": "No", "category": "random"},
        ],
    )
    found = pope.summary(list(zip(samples, ["yes", "No.", "Yes, it is", "cannot say"], strict=True)))
    assert found == {
        "f1": pytest.approx(75),
        "accuracy": pytest.approx(50),
        "precision": pytest.approx(75),
        "recall": pytest.approx(75),
        "f1 adversarial": 100,
        "f1 popular": pytest.approx(200 / 3),
        "f1 random": pytest.approx(200 / 3),
    }


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("Yes.", "Yes"),
        ("No, there is not", "No"),
        ("(yes)", "Yes"),
        ("yes and no", "Unknown"),
        ("**Yes**", "Unknown"),
        ("Answer: yes:", "Unknown"),
        ("Yes,there is, indeed", "Unknown"),
        ("no-one", "No"),
        ("it is - no-one", "Unknown"),
        ("yes/1,000", "Unknown"),
    ],
)
def test_yes_and_no_are_read_as_the_kit_reads_them(output: str, said: str) -> None:
    assert yes_or_no(output) == said
