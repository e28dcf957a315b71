"""The stock `openai` client uploads, lists, reads, asks and deletes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.images.pdfs import plain_pdf
from tests.service.images.pictures import plain

KEYS = {"alice": "sk-alice-1", "bob": "sk-bob-12"}


@pytest.fixture
def clients(start: Start) -> Iterator[dict[str, OpenAI]]:
    url = str(start(api_keys="alice:sk-alice-1,bob:sk-bob-12").base_url).rstrip("/")
    found = {name: OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) for name, key in KEYS.items()}
    yield found
    for client in found.values():
        client.close()


@pytest.fixture
def sdk(clients: dict[str, OpenAI]) -> OpenAI:
    return clients["alice"]


def test_a_file_from_upload_to_deletion(sdk: OpenAI) -> None:
    before = int(time.time())
    file = sdk.files.create(file=("pagé.png", plain()), purpose="vision")
    assert (file.object, file.bytes, file.filename, file.purpose, file.status) == (
        *("file", len(plain()), "pagé.png", "vision", "processed"),
    )
    assert before <= file.created_at <= time.time() and file.expires_at == file.created_at + 2_592_000
    assert sdk.files.retrieve(file.id).model_extra == {"kind": "png", "pages": 1}
    assert sdk.files.content(file.id).read() == plain()
    assert sdk.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        sdk.files.content(file.id)
    assert sdk.files.list().data == []


def test_expiry_is_the_caller_s_wish(sdk: OpenAI) -> None:
    file = sdk.files.create(
        file=plain(), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.files.create(
            file=plain(), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 60}
        )
    assert caught.value.param == "expires_after[seconds]"


def test_lists_come_in_pages_newest_first(sdk: OpenAI) -> None:
    made = [sdk.files.create(file=plain((i, 0, 0)), purpose="vision").id for i in range(4)]
    made.append(sdk.files.create(file=plain_pdf((0, 0, 0)), purpose="user_data").id)
    assert [file.id for file in sdk.files.list()] == made[::-1]
    assert [file.id for file in sdk.files.list(order="asc", limit=2)] == made  # the client goes on by itself
    page = sdk.files.list(limit=2, after=made[3])
    assert [file.id for file in page.data] == [made[2], made[1]] and page.has_more
    assert [file.id for file in sdk.files.list(purpose="user_data")] == [made[4]]
    assert [file.id for file in sdk.files.list(purpose="batch")] == []


def test_a_chat_names_files_where_images_may_stand(sdk: OpenAI, engine: FakeEngine) -> None:
    picture = sdk.files.create(file=plain((9, 9, 9), size=(5, 4)), purpose="vision")
    document = sdk.files.create(file=plain_pdf((1, 1, 1), (2, 2, 2), (3, 3, 3)), purpose="user_data")
    sdk.chat.completions.create(
        model="test-reader",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "file", "file": {"file_id": document.id}},
                    {"type": "image_url", "image_url": {"url": picture.id}},
                    {"type": "text", "text": "What is the total?"},
                ],
            }
        ],
    )
    first_dots = [image.pixels[0] for image in engine.requests[-1].images]
    assert first_dots == [1, 2, 3, 9]


def test_a_file_of_somebody_else_is_none(clients: dict[str, OpenAI], engine: FakeEngine) -> None:
    file = clients["alice"].files.create(file=plain(), purpose="vision")
    bob = clients["bob"]
    assert bob.files.list().data == []
    for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)
    with pytest.raises(openai.NotFoundError) as caught:
        bob.chat.completions.create(
            model="test-reader",
            messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": file.id}}]}],
        )
    assert (caught.value.code, caught.value.param) == (
        *("file_not_found", "messages[0].content[0].file.file_id"),
    )
    assert engine.submitted == 0
    assert clients["alice"].files.retrieve(file.id).id == file.id
