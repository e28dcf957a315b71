"""M2, M3 and H1 at once and at size: strangers and two tenants do all they can to hold the service up, and another
tenant is served."""

from __future__ import annotations

import json
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo.asking import ask
from demo.random_model import TINY, write_random_model
from tests.service.http.wire import HEAD, connect, post, statuses
from tests.serving.crowd import CONTEXT, Service, endless, metric, questions, running, until

pytestmark = pytest.mark.slow

HALF_HEADS = 1500
STALLED = 64
CONNECTIONS = 200
ROUNDS = 3
# What the other tenant waits for an answer at most, on a machine that others use as well.
PATIENCE = 30.0
ALICE, BOB, CAROL, OPERATOR = "sk-alice-1", "sk-bob-12", "sk-carol-1", "sk-operator"
SETTINGS = {
    "api_keys": f"alice:{ALICE},bob:{BOB},carol:{CAROL}",
    "admin_key": OPERATOR,
    "max_concurrent": str(2 * STALLED),  # of which a tenant that is alone gets half
    "max_queue": str(2 * STALLED),
    "send_timeout": "2",
    "threads": "1",
    "chain_bytes": "0",
}


def test_half_heads_stalled_readers_and_200_connections_of_one_tenant_keep_no_other_waiting(
    tmp_path: Path,
) -> None:
    model = write_random_model(tmp_path / "model", replace(TINY, context=CONTEXT))
    with (
        descriptors(HALF_HEADS + STALLED + CONNECTIONS + 200),
        Service(tmp_path, model=str(model), **SETTINGS) as service,
        client(service, BOB) as bob,
        client(service, OPERATOR) as operator,
        ExitStack() as stack,
    ):
        asked = questions(service.url, 4, seed=9)
        expected = [ask(bob, body).text for body in asked]
        stalled = [stack.enter_context(never_reads(service, CAROL, asked[0])) for _ in range(STALLED)]
        until(lambda: running(operator) > 0, "their answers begin")
        for _ in range(HALF_HEADS):
            stack.enter_context(connect(bob)).sendall(HEAD)
        seen: Counter[int] = Counter()
        waits: list[float] = []
        for _ in range(ROUNDS):
            with many_ask(bob, ALICE, asked[1]) as crowd:
                answers = [ask(bob, body) for body in asked]
                assert [answer.text for answer in answers] == expected
                waits += [answer.total for answer in answers]
                assert operator.get("/livez").status_code == 200
                seen.update(status for connection in crowd for status in statuses(connection, 1))
        assert set(seen) == {200, 429} and seen.total() == ROUNDS * CONNECTIONS
        until(lambda: running(operator) == metric(operator, "conduit_num_requests_waiting") == 0, "all end")
        ends = [what_is_left(connection) for connection in stalled]
        assert all(end.startswith(b"HTTP/1.1 200 ") and b"[DONE]" not in end for end in ends)
        with client(service, CAROL) as carol:
            assert ask(carol, asked[0]).text == expected[0]
    print(
        f"the other tenant waited {max(waits):.2f} s at most; the one with {CONNECTIONS} connections had {dict(seen)}"
    )


@contextmanager
def descriptors(wanted: int) -> Iterator[None]:
    """As many for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), max(hard, wanted)))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def client(service: Service, key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=service.url, headers=headers, timeout=PATIENCE, trust_env=False)


def request(key: str, asked: dict[str, Any]) -> bytes:
    return post(b"authorization: Bearer %s\r\n" % key.encode(), body=json.dumps(asked).encode())


@contextmanager
def never_reads(service: Service, key: str, asked: dict[str, Any]) -> Iterator[socket.socket]:
    """Somebody who asks for a long stream and takes nothing of it: his system has room for little."""
    host, port = service.url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect((host, int(port)))
        wordy = {"stream": True, "logprobs": True, "top_logprobs": 20}
        connection.sendall(request(key, {**endless(asked), **wordy}))
        yield connection


@contextmanager
def many_ask(api: httpx.Client, key: str, asked: dict[str, Any]) -> Iterator[list[socket.socket]]:
    """`CONNECTIONS` of one tenant, each with a question on its way."""
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(api)) for _ in range(CONNECTIONS)]
        for connection in crowd:
            connection.settimeout(2 * PATIENCE)
            connection.sendall(request(key, asked))
        yield crowd


def what_is_left(connection: socket.socket) -> bytes:
    """All that the system has of an answer that was broken off."""
    received = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received
