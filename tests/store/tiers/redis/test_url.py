"""URLs that cannot work stop the start and say what to change."""

from __future__ import annotations

import pytest

from store.errors import InvalidSettings
from store.open import open_store
from store.settings import StoreSettings
from store.tiers.redis.url import check

WRONG = {
    "127.0.0.1:6379": "redis://host:port",
    "valkey:6379": "redis://host:port",
    "valkey://valkey:6379": "also for Valkey",
    "REDIS://valkey": "redis://host:port",
    "http://valkey:6379": "redis://host:port",
    "redis:/valkey": "redis://host:port",
    "redis://h:abc/0": "host and port",
    "redis://h:70000/0": "host and port",
    "redis://h:-1/0": "host and port",
    "redis://h:0/0": "port 0",
    "redis://h:6379/first": "number of the database",
    "redis://h:6379/0/1": "number of the database",
    "redis://h:6379/-1": "number of the database",
    "redis://h:6379/٣": "number of the database",
    "redis://[::1/0": "host and port",
    "redis://a..b": "host name",
    "redis://" + "a" * 64: "host name",
    "redis://a b": "spaces",
    "redis://h\n": "spaces",
    "redis://user:pa#ss@h:6379": "%23",
    "redis://user:pa/ss@h:6379": "percent-encoded",
    "redis://h/0#x": "%23",
    "redis://h?socket_timeout=100": "'socket_timeout'",
    "redis://h?decode_responses=True": "'decode_responses'",
    "redis://h?protocol=3": "'protocol'",
    "redis://h?nonsense": "'nonsense'",
    "redis://h?db=one": "'db'",
    "redis://h?ssl_cert_reqs=none": "'ssl_cert_reqs'",
    "rediss://h?ssl_nonsense=1": "ssl_nonsense",
    "rediss://h?ssl_cert_reqs=perhaps": "perhaps",
    "unix://": "unix:///path",
    "unix://host/path": "unix:///path",
}
RIGHT = [
    "redis://valkey:6379/0",
    "redis://valkey",
    "redis://127.0.0.1:6379",
    "redis://[::1]:6379/3",
    "redis://:secret@valkey:6379/0",
    "redis://user:p%40ss%23@my_host.example:6380/15",
    "redis://h?db=2&client_name=conduit",
    "rediss://h:6379/0?ssl_cert_reqs=none&ssl_check_hostname=false",
    "unix:///run/valkey.sock?db=1",
]


@pytest.mark.parametrize(("url", "what"), WRONG.items())
def test_f1_a_url_that_cannot_work_is_refused_at_the_start_by_name(url: str, what: str) -> None:
    with pytest.raises(InvalidSettings, match=r"^redis_url: ") as caught:
        open_store(StoreSettings(redis_url=url))
    assert what in str(caught.value)


@pytest.mark.parametrize("url", RIGHT)
def test_a_url_that_may_work_is_taken(url: str) -> None:
    open_store(StoreSettings(redis_url=url)).entries.close()


@pytest.mark.parametrize("empty", ["", " ", "\n", None])
def test_f1_empty_counts_as_unset(empty: str | None) -> None:
    store = open_store(StoreSettings(redis_url=empty))
    assert store.admin.stats().tiers == ()
    store.entries.close()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("redis://h/1", "database 0"),
        ("redis://h?db=1", "database 0"),
        ("unix:///run/valkey.sock", "socket file"),
    ],
)
def test_f1_what_a_cluster_cannot_do_is_refused_too(url: str, what: str) -> None:
    with pytest.raises(InvalidSettings, match=what):
        open_store(StoreSettings(redis_url=url, redis_cluster=True))
    check("redis://h/0", cluster=True)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_f1_a_time_out_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidSettings, match="redis_timeout"):
        StoreSettings(redis_timeout=timeout)


@pytest.mark.parametrize("url", ["redis://user:hunter2#x@h", "hunter2@h:6379", "redis://u:hunter2@h:port/0"])
def test_a_refusal_does_not_show_the_password(url: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        open_store(StoreSettings(redis_url=url))
    assert "hunter2" not in str(caught.value)
