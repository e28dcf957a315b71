from __future__ import annotations

import pytest

from service.errors import RequestError
from service.files.pages import chosen_pages


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        (None, (1, 2, 3, 4, 5)),
        ("2", (2,)),
        ("1-3", (1, 2, 3)),
        ("4-", (4, 5)),
        ("5, 1-2,5", (5, 1, 2, 5)),
        ("3-3", (3,)),
    ],
)
def test_pages_come_in_the_order_in_which_they_are_named(text: str | None, pages: tuple[int, ...]) -> None:
    assert chosen_pages(text, 5, 100, "pages") == pages


@pytest.mark.parametrize(
    "text", ["", "0", "6", "2-1", "1-6", "-3", "a", "1;2", "1--2", "٣", "9" * 10, "1,,2"]
)
def test_what_names_no_page_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        chosen_pages(text, 5, 100, "file.pages")
    assert (caught.value.code, caught.value.param) == ("invalid_request", "file.pages")


def test_no_more_are_counted_than_anybody_wants() -> None:
    assert chosen_pages("1-,1-,1-", 10**9, 3, "pages") == (1, 2, 3)
