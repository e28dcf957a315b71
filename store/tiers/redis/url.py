"""Which address of a server can work at all. What cannot is found at the start, not by the first request."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.connection import Connection, parse_url

from store.errors import InvalidSettings

_SCHEMES = ("redis", "rediss", "unix")
_OPTIONS = ("db", "username", "password", "client_name")


def check(url: str, cluster: bool) -> None:
    """Raises InvalidSettings, which says what to change and shows nothing of the URL: it may hold a password."""
    try:
        problem = _problem(urlsplit(url), url, cluster) or _refusal(url)
    except ValueError:
        problem = "host and port cannot be read; special characters in a password are percent-encoded"
    if problem:
        raise InvalidSettings(f"redis_url: {problem}")


def _problem(parts: SplitResult, url: str, cluster: bool) -> str:
    """What is wrong, "" if nothing is. Raises ValueError for a port that is none."""
    if not url.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES)):
        return "expected redis://host:port/number, rediss:// for TLS or unix:// (also for Valkey)"
    if any(character.isspace() or not character.isprintable() for character in url):
        return "spaces and control characters are percent-encoded"
    if parts.fragment:
        return "a # is written %23"
    unknown = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if not _taken(name, parts)]
    if unknown:
        return f"the option {unknown[0]!r} is not taken"
    if parts.scheme == "unix":
        return "a cluster is not reached through a socket file" if cluster else _socket_problem(parts)
    return _host_problem(parts) or _number_problem(parts, cluster)


def _taken(option: str, parts: SplitResult) -> bool:
    """Time-outs and the like are settings of ours; in the URL they would undo them."""
    return option in _OPTIONS or (parts.scheme == "rediss" and option.startswith("ssl_"))


def _socket_problem(parts: SplitResult) -> str:
    return "" if parts.path.strip("/") and not parts.hostname else "expected unix:///path/of/the/socket"


def _host_problem(parts: SplitResult) -> str:
    if parts.port == 0:
        return "there is no port 0"
    try:
        unquote(parts.hostname or "").encode("idna")
    except UnicodeError:
        return "this is no host name"
    return ""


def _number_problem(parts: SplitResult, cluster: bool) -> str:
    number = parts.path.removeprefix("/")
    if number and not (number.isascii() and number.isdigit()):
        return "what follows the host is the number of the database, as in redis://host:6379/0"
    named = [value for name, value in parse_qsl(parts.query) if name == "db"]
    if cluster and any(int(value) for value in [number or "0", *named]):
        return "a cluster has database 0 only"
    return ""


def _refusal(url: str) -> str:
    """What the driver says of it, without connecting."""
    try:
        options = parse_url(url)  # type: ignore[no-untyped-call]
        options.pop("connection_class", Connection)(**options)
    except Exception as error:
        return str(error)
    return ""
