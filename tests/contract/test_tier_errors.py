"""Whatever breaks underneath a tier, nothing but TierError leaves it. A tier joins by being registered, and by a way to
break it here."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import lmdb
import pytest
import redis

from store.errors import Rejected, TierError
from store.open import assemble
from store.records.record import Record
from store.residency.eviction import never_held
from store.tiers.lmdb.tier import LmdbTier
from store.tiers.memory import MemoryTier
from store.tiers.protocol import Tier, TierKind, kinds
from store.tiers.redis.tier import RedisTier
from store.types import EntryFilter
from tests.contract.test_tiers import build
from tests.store.redis_server import shared_server
from tests.store.samples import BlobCodec, decoded_of, entry_of, key_of, read, record_of

NOW = 2000.0
ERRORS: list[Exception] = [
    OSError(28, "No space left on device"),
    ConnectionResetError(),
    TimeoutError(),
    ValueError("odd"),
    UnicodeError("label too long"),
    TypeError("got an unexpected keyword argument"),
    KeyError("records"),
    RuntimeError("can't start new thread"),
    RecursionError(),
    MemoryError(),
    ArithmeticError(),
    AssertionError(),
    socket.gaierror(-2, "Name or service not known"),
    ssl.SSLError("certificate verify failed"),
    redis.exceptions.ResponseError("WRONGTYPE Operation against a key"),
    redis.exceptions.ResponseError("unknown command"),
    redis.exceptions.AuthenticationError("WRONGPASS"),
    redis.exceptions.InvalidResponse("Protocol Error"),
    redis.exceptions.OutOfMemoryError("OOM command not allowed"),
    redis.exceptions.DataError("Invalid input"),
    redis.exceptions.RedisClusterException("no node"),
    lmdb.MapFullError("mdb_put"),
    lmdb.DiskError("mdb_txn_commit"),
    lmdb.BadTxnError("mdb_get"),
    lmdb.Error("mdb_get"),
]


class Raises:
    """Stands for anything and raises whatever is done with it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error

    def __len__(self) -> int:
        raise self._error

    def __iter__(self) -> Any:
        raise self._error

    def __getitem__(self, key: object) -> Any:
        raise self._error

    def __setitem__(self, key: object, value: object) -> None:
        raise self._error

    def __contains__(self, key: object) -> bool:
        raise self._error


def break_memory(tier: Tier, error: Exception) -> None:
    assert isinstance(tier, MemoryTier)
    tier._records = Raises(error)  # type: ignore[assignment]
    tier._index = Raises(error)  # type: ignore[assignment]


def break_lmdb(tier: Tier, error: Exception) -> None:
    assert isinstance(tier, LmdbTier)
    opened = tier._environment.open()
    tier._environment._opened = replace(opened, env=Raises(error))


def break_redis(tier: Tier, error: Exception) -> None:
    assert isinstance(tier, RedisTier)
    tier._link._client = Raises(error)
    tier._link._breaker._limit = 1000


BREAKS: dict[str, Callable[[Tier, Exception], None]] = {
    "memory": break_memory,
    "lmdb": break_lmdb,
    "redis": break_redis,
}

CALLS: dict[str, Callable[[Tier, Record], object]] = {
    "get": lambda tier, record: read(tier, record.digest),
    "put": lambda tier, record: tier.put(record_of(2), NOW, never_held),
    "put in place": lambda tier, record: tier.put(record, NOW, never_held, replace=True),
    "delete": lambda tier, record: tier.delete(record.digest, "admin"),
    "contains": lambda tier, record: tier.contains(record.digest),
    "touch": lambda tier, record: tier.touch(record.digest, NOW + 1),
    "row": lambda tier, record: tier.row(record.digest),
    "row of none": lambda tier, record: tier.row(key_of(9).digest),
    "rows": lambda tier, record: list(tier.rows()),
    "stats": lambda tier, record: tier.stats(),
    "problems": lambda tier, record: tier.problems(),
    "flush": lambda tier, record: tier.flush(),
    "compact": lambda tier, record: tier.compact(),
    "close": lambda tier, record: tier.close(),
}


def test_every_call_of_a_tier_is_walked() -> None:
    tier = MagicMock(get=MagicMock(return_value=False))
    for call in CALLS.values():
        call(tier, record_of(1))
    walked = {name for name, _, _ in tier.method_calls}
    assert walked == {name for name in vars(Tier) if not name.startswith("_")} - {"name"}


@pytest.fixture(params=kinds(), ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> TierKind:
    kind: TierKind = request.param
    return kind


@pytest.fixture
def tier(kind: TierKind, tmp_path: Path) -> Iterator[Tier]:
    shared_server().flush()
    tier = build(kind, tmp_path)
    tier.put(record_of(1), NOW, never_held)
    tier.touch(key_of(1).digest, NOW)
    sound = dict(vars(tier))
    environment = dict(vars(tier._environment)) if isinstance(tier, LmdbTier) else {}
    yield tier
    vars(tier).update(sound)
    if isinstance(tier, LmdbTier):
        vars(tier._environment).update(environment)
    if isinstance(tier, RedisTier):
        tier._link._client = None
    tier.close()


@pytest.mark.parametrize(
    "error", ERRORS, ids=lambda error: f"{type(error).__module__}.{type(error).__name__}"
)
def test_f1_nothing_but_tier_errors_leaves_a_tier(kind: TierKind, tier: Tier, error: Exception) -> None:
    record = record_of(1)
    BREAKS[kind.name](tier, error)
    for name, call in CALLS.items():
        try:
            call(tier, record)
        except (TierError, Rejected) as caught:
            assert isinstance(caught, TierError) or name == "get"
            assert caught.reason and " " not in caught.reason, name


@pytest.mark.parametrize("error", ERRORS[::4], ids=lambda error: type(error).__name__)
def test_f1_a_store_over_a_broken_tier_answers_and_an_operator_is_told(
    kind: TierKind, tier: Tier, error: Exception
) -> None:
    BREAKS[kind.name](tier, error)
    store = assemble([tier], BlobCodec(), 1 << 20)
    with store.entries.fetch(key_of(1), lambda: entry_of(1)) as fetched:
        assert fetched.outcome == "miss" and bytes(fetched.entry.data) == decoded_of(1)
    assert store.entries.flush(10)
    assert [info.tiers for info in store.admin.entries(EntryFilter()).entries] == [("decoded",)]
    assert store.admin.pin(key_of(1).hex, None) and store.admin.unpin(key_of(1).hex)
    assert [report.done for report in store.admin.verify()] == [True]
    assert store.admin.compact().keys() == {kind.name}
    assert store.admin.quotas() == ()
    stats = store.admin.stats()
    assert sum(stats.writes_dropped.values()) == 1
    assert store.admin.clear().keys == (key_of(1).hex,)
    assert not store.admin.delete(key_of(1).hex)
    store.entries.close()


@pytest.mark.parametrize(
    "error", [OSError(), ValueError("odd"), MemoryError()], ids=lambda e: type(e).__name__
)
def test_f1_what_a_reader_raises_is_no_fault_that_leaves_a_tier(tier: Tier, error: Exception) -> None:
    class Reader:
        def manifest(self, raw: object) -> Any:
            raise error

        def piece(self, data: object) -> None:
            raise AssertionError

    with pytest.raises(TierError):
        tier.get(key_of(1).digest, Reader())
    assert read(tier, key_of(1).digest) is not None
