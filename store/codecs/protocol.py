"""What a codec is: entries to named buffers and back.

A new codec is one file in `store/codecs` that calls `register`; it then joins the contract tests and the
settings.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from store.errors import InvalidSettings
from store.records.header import Manifest
from store.records.record import Encoded

E = TypeVar("E")
R = TypeVar("R", covariant=True)


@dataclass(frozen=True, slots=True)
class Prepared(Generic[E]):
    """`entry`: as a later hit will give it, bit for bit. `pack`: the buffers of the record, raises
    CodecError; the part of the work that may happen off the request path, once or never. `sound`: whether it may be
    kept at all."""

    entry: E
    pack: Callable[[], Encoded]
    sound: bool = True


class Format(Protocol[R]):
    """How a record is read."""

    @property
    def identity(self) -> str:
        """Name and version of the byte format; a record of another identity is outdated."""
        ...

    def fits(self, manifest: Manifest, layout: Any) -> bool:
        """Whether the record is of an entry of that layout, and can be decoded: by what it says, before anything of it
        is used."""
        ...

    def decode(self, manifest: Manifest, payload: memoryview) -> R:
        """The entry of a verified record. It may refer to `payload`, which is then its own. Raises
        CodecError, and Rejected for numbers that no entry may have."""
        ...


class Codec(Format[E], Protocol[E]):
    """Pure and thread-safe. What `prepare` gives as the entry is what `decode` makes of what it packs, so
    that a request that compiles an entry sees what later requests will load (promise 2)."""

    @property
    def name(self) -> str:
        """Goes into the key."""
        ...

    def on(self, device: str) -> Codec[E]:
        """The same codec, decoding on that device: the packed bytes are copied there, not what they become."""
        ...

    def prepare(self, entry: E) -> Prepared[E]:
        """Quantise and dequantise. Raises CodecError. Packing may refer to the entry's memory."""
        ...

    def roundtrip(self, entry: E) -> E:
        """The entry of `prepare`: what a store with this codec would give."""
        ...

    def payload_bytes(self, entry: E) -> int:
        """Size of the encoded payload, without encoding (to within the padding between tensors)."""
        ...


_CODECS: dict[str, Codec[Any]] = {}


def register(codec: Codec[Any]) -> None:
    _CODECS[codec.name] = codec


def codecs() -> dict[str, Codec[Any]]:
    """All codecs that exist, by name."""
    package = importlib.import_module("store.codecs")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"store.codecs.{module.name}")
    return dict(sorted(_CODECS.items()))


def codec_named(name: str) -> Codec[Any]:
    """Raises InvalidSettings for a name that no codec has."""
    known = codecs()
    if name not in known:
        raise InvalidSettings(f"codec is one of {', '.join(known)}, not {name!r}")
    return known[name]
