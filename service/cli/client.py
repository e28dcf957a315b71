"""The service as the command talks to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

DEFAULT_URL: Final = "http://127.0.0.1:8000"


class CommandFailed(Exception):
    """The service refused, could not be reached, or an argument is of no use; `message` says why, `code` is the
    service's own or ours."""

    def __init__(self, message: str, code: str = "invalid_argument") -> None:
        super().__init__(message)
        self.message, self.code = message, code


class Service:
    """The service at `url` as the commands use it. Raises `CommandFailed` for an address or key that cannot be one."""

    def __init__(self, url: str, key: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = address(url)
        # Pings come every 15 s: a stream that is silent for longer than that is dead.
        timeout = httpx.Timeout(60.0, connect=10.0)
        try:
            self._client = httpx.Client(
                base_url=self.url, headers=_headers(key), timeout=timeout, transport=transport
            )
        except (ValueError, httpx.InvalidURL) as error:
            raise CommandFailed(f"A proxy of the environment cannot be used: {error}.") from None

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def call(self, method: str, path: str, *, accept: tuple[int, ...] = (), **request: Any) -> Any:
        """The JSON answer (None where there is none), also of the statuses to `accept`. Raises `CommandFailed`."""
        try:
            response = self._client.request(method, path, **request)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.status_code not in accept:
            self._check(response)
        return self._parsed(response.text) if response.content else None

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer. Raises `CommandFailed`, also for a failure within the stream."""
        try:
            with self._client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    response.read()
                self._check(response)
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise self._foreign()
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield self._event(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _event(self, text: str) -> dict[str, Any]:
        event: dict[str, Any] = self._parsed(text)
        if "error" in event:
            raise CommandFailed(event["error"]["message"], event["error"]["code"])
        return event

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise self._foreign() from None

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        try:
            error = response.json()["error"]
            raise CommandFailed(f"{error['message']} ({error['code']})", error["code"])
        except (ValueError, KeyError, TypeError):
            message = f"{self.url} answered with status {response.status_code}, not as Conduit does."
            raise CommandFailed(message, "not_conduit") from None

    def _foreign(self) -> CommandFailed:
        return CommandFailed(f"What {self.url} answered is not from Conduit.", "not_conduit")

    def _unreachable(self, error: httpx.HTTPError) -> CommandFailed:
        reason = str(error) or type(error).__name__
        return CommandFailed(f"No answer from {self.url}: {reason}.", "no_answer")


def address(text: str) -> str:
    """Scheme, host and port of what a person gives as the service's address: `localhost:8000`, a URL, one with /v1
    behind. Raises `CommandFailed`."""
    text = text.strip() or DEFAULT_URL
    whole = text if "://" in text else f"http://{text}"
    try:
        url = httpx.URL(whole)
        parts = urlsplit(whole)  # raises for a port that cannot be one
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query
    except (httpx.InvalidURL, UnicodeError, ValueError):
        sound = False
    if not sound:
        raise CommandFailed(f"{text!r} is no address of a service; one looks like {DEFAULT_URL}.")
    return str(url).rstrip("/").removesuffix("/v1").rstrip("/")


def _headers(key: str) -> dict[str, str]:
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise CommandFailed("The key holds signs that no key has: it is printable ASCII without blanks.")
    return {"authorization": f"Bearer {key}"}
