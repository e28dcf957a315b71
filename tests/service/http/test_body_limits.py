"""A body that is received without a server: whose it is, what it may take, and where exactly that ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.requests import Request

from service.errors import RequestError, UnavailableError
from service.http.admission import Admission
from service.http.body import BodyLimits, read_body
from service.http.disconnect import ClientGone
from service.http.json_reader import JsonLimits
from service.http.wire import WireModel
from service.settings import Settings
from tests.service.http.reading import fault, read

BODY = json.dumps({"text": "x" * 100}).encode()


class Said(WireModel):
    text: str


def received(pieces: Iterable[bytes], limits: BodyLimits, declared: int | None = None) -> Said:
    """What `read_body` makes of `pieces`, one after the other."""
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return messages.pop(0)

    length = [] if declared is None else [(b"content-length", str(declared).encode())]
    headers = [(b"content-type", b"application/json"), *length]
    scope = {"type": "http", "headers": headers, "state": {"tenant": "alice"}}
    return asyncio.run(read_body(Request(scope, receive), Said, limits))


def limits(max_bytes: int = 1000, admission: Admission | None = None) -> BodyLimits:
    return BodyLimits(max_bytes, 10.0, admission or Admission(Settings()))


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_may_be_as_long_as_the_limit_and_no_longer(declared: bool) -> None:
    length = len(BODY) if declared else None
    assert received([BODY], limits(len(BODY)), length).text == "x" * 100
    with pytest.raises(RequestError, match=f"larger than {len(BODY) - 1} bytes"):
        received([BODY], limits(len(BODY) - 1), length)


def test_a_body_that_says_how_much_too_long_it_is_is_not_read() -> None:
    with pytest.raises(RequestError, match="larger than 1000 bytes"):
        received([b"{", b"no JSON"], limits(), declared=1001)


def test_bytes_are_counted_for_the_tenant_while_they_come_and_given_back() -> None:
    admission = Admission(Settings())
    admission._bytes.limit = len(BODY)
    assert received([BODY[:40], BODY[40:]], limits(admission=admission)).text
    assert admission._bytes.total == admission._bodies.total == 0
    with pytest.raises(UnavailableError, match="all the memory"):
        received([BODY, b" "], limits(admission=admission))
    assert admission._bytes.total == admission._bodies.total == 0


def test_a_body_is_its_tenant_s() -> None:
    admission = Admission(Settings())
    taken: list[dict[str, int]] = []
    shared = admission.body

    def watched(tenant: str) -> Any:
        taken.append({tenant: 1})
        return shared(tenant)

    admission.body = watched  # type: ignore[method-assign]
    received([BODY], limits(admission=admission))
    assert taken == [{"alice": 1}]


def test_who_leaves_in_the_middle_of_a_body_is_gone() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "headers": [(b"content-type", b"application/json")], "state": {"tenant": "a"}}
    with pytest.raises(ClientGone):
        asyncio.run(read_body(Request(scope, receive), Said, limits()))


def test_what_stands_between_the_strings_and_the_fields_of_an_object_are_bounded() -> None:
    """Whatever the limits of depth, items and texts let through."""
    much = JsonLimits(items=10**6)
    blanks = fault(b"[" + b" " * (8 * 2**20), limits=much)
    assert (blanks.code, "outside of its long strings" in blanks.message) == ("request_too_large", True)
    fields = [b'"%d":1' % number for number in range(2049)]
    assert len(read(b"{" + b",".join(fields[1:]) + b"}", limits=much)) == 2048
    error = fault(b"{" + b",".join(fields) + b"}", limits=much)
    assert (error.code, "more than 2048 fields" in error.message) == ("invalid_request", True)
