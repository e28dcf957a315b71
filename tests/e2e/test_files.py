"""A PDF is uploaded once and asked about ten times: the real worker, the real store, the real server."""

from __future__ import annotations

from typing import Any

import numpy as np
from openai import OpenAI

from demo.documents import pdf_of
from demo.pages import draw_pages, to_image
from demo.questions import ask_value
from tests.e2e.conftest import Start
from tests.e2e.live import Live, page_url

PAGES = draw_pages(np.random.default_rng(4), 3, filled=(6, 8))
PDF = pdf_of([to_image(page) for page in PAGES])


def uploaded(live: Live, **fields: str) -> dict[str, Any]:
    answer = live.api.post(
        "/v1/files", files={"file": ("pages.pdf", PDF)}, data={"purpose": "user_data", **fields}
    )
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def asked(live: Live, name: str, question: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "file", "file": {"file_id": name}}, {"type": "text", "text": question}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 10, **more}
    found: dict[str, Any] = live.api.post("/v1/chat", json=body).raise_for_status().json()
    return found


def questions(count: int) -> list[str]:
    rng = np.random.default_rng(5)
    pages = [rng.integers(len(PAGES)) for _ in range(count)]
    keys = [rng.choice([cell.key for cell in PAGES[page].cells]) for page in pages]
    asked = zip(pages, keys, strict=True)
    return [ask_value(rng, PAGES, {}, int(page), str(key)).text for page, key in asked]


def test_ten_questions_about_a_pdf_compute_its_pages_once(live: Live) -> None:
    file = uploaded(live, warm="true")
    assert (file["kind"], file["pages"], file["warm"]) == ("pdf", 3, {"pages": 3, "failed": None})
    for question in questions(10):
        report = asked(live, file["id"], question, cache={"chain": "off"})["kv_report"]
        assert report["compiled_tokens"] == 0
        assert [image["outcome"] for image in report["images"]] == ["hit"] * 3


def test_a_page_of_a_pdf_is_the_entry_of_the_same_picture(start: Start) -> None:
    live = start()
    pages = [page_url(live.url, page) for page in PAGES]
    live.api.post("/v1/cache/warm", json={"images": pages}).raise_for_status()
    live.flush()
    keys = live.entry_keys()
    asked(live, uploaded(live, warm="true")["id"], "x")
    live.flush()
    assert live.entry_keys() == keys and len(keys) == 3


def test_files_and_their_entries_survive_a_restart(start: Start) -> None:
    live = start()
    file = uploaded(live, warm="true")
    live.flush()
    live.restart()
    assert [found["id"] for found in live.api.get("/v1/files").json()["data"]] == [file["id"]]
    report = asked(live, file["id"], "What is it?")["kv_report"]
    assert {(image["outcome"], image["tier"]) for image in report["images"]} == {("hit", "lmdb")}
    assert live.api.get(f"/v1/files/{file['id']}/content").content == PDF


def test_the_stock_client_asks_about_a_pdf(live: Live) -> None:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none") as sdk:
        file = sdk.files.create(file=("pages.pdf", PDF), purpose="user_data")
        answer = sdk.chat.completions.create(
            model=sdk.models.list().data[0].id,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "file", "file": {"file_id": file.id}},
                        {"type": "text", "text": "What is it?"},
                    ],
                }
            ],
            max_tokens=4,
        )
        assert answer.model_extra is not None
        assert len(answer.model_extra["kv_report"]["images"]) == 3
        sdk.files.delete(file.id)
