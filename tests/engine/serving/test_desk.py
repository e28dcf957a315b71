"""The worker's end of admin calls: it answers the names that it knows, and nothing else reaches the store."""

from __future__ import annotations

import pytest

from engine.chains.tree import Chains
from engine.errors import InternalError
from engine.serving.admin import AdminDesk


class Store:
    """Notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> object:
        def call(*_: object) -> str:
            self.asked.append(name)
            return name

        return call


@pytest.mark.parametrize("name", ["close", "__init__", "flush", "verify", "_calls", ""])
def test_a_name_from_outside_reaches_nothing_that_is_not_listed(name: str) -> None:
    store = Store()
    desk = AdminDesk(store, lambda *_: "0" * 64, Chains(0))
    with pytest.raises(InternalError):
        desk.answer(name, ())
    assert store.asked == []


def test_an_image_is_looked_up_by_the_name_of_its_entry() -> None:
    named: list[tuple[object, ...]] = []

    def name(*image: object) -> str:
        named.append(image)
        return "ab" * 32

    class Looking(Store):
        def entry(self, key: str) -> str:
            return key

    assert AdminDesk(Looking(), name, Chains(0)).answer("lookup", ("t", b"d", 3, 4)) == "ab" * 32
    assert named == [("t", b"d", 3, 4)]
