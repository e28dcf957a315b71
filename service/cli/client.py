"""The service as the terminal client talks to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx


class CommandFailed(Exception):
    """The service refused, or could not be reached; the message says why."""


class Service:
    """The service at `url` as the commands use it."""

    def __init__(self, url: str, key: str | None, transport: httpx.BaseTransport | None = None) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        # Pings come every 15 s: a stream that is silent for longer than that is dead.
        timeout = httpx.Timeout(60.0, connect=10.0)
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def call(self, method: str, path: str, **request: Any) -> Any:
        """The JSON answer (None where there is none). Raises `CommandFailed`."""
        try:
            response = self._client.request(method, path, **request)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        _check(response)
        return response.json() if response.content else None

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer. Raises `CommandFailed`, also for a failure within the stream."""
        try:
            with self._client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    response.read()
                _check(response)
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield _chunk(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            raise _unreachable(error) from error


def _chunk(text: str) -> dict[str, Any]:
    chunk: dict[str, Any] = json.loads(text)
    if "error" in chunk:
        raise CommandFailed(chunk["error"]["message"])
    return chunk


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        error = response.json()["error"]
        raise CommandFailed(f"{error['message']} ({error['code']})")
    except (ValueError, KeyError, TypeError):
        raise CommandFailed(f"The server answered with status {response.status_code}.") from None


def _unreachable(error: httpx.HTTPError) -> CommandFailed:
    return CommandFailed(f"No answer from the service: {error or type(error).__name__}.")
