"""What goes over the pipe between the HTTP process and a worker process: frozen values, pickled by both ends of the
same program (never by anybody else)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import EngineInfo, EngineStatus, Event, GenerateRequest
from engine.settings import Limits, ModelSettings
from engine.transport.pictures import PictureKey
from store.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class Launch:
    """The first message to a worker: what to load."""

    model: ModelSettings
    store: StoreSettings
    limits: Limits
    shadow_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Submit:
    """Images that the worker keeps come without their pixels (`engine.transport.pictures`)."""

    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Forget:
    """Pictures that the worker need not keep any more."""

    pictures: tuple[PictureKey, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    request: str


@dataclass(frozen=True, slots=True)
class Call:
    """An admin call on the store; answered by a `Reply` of the same number."""

    number: int
    method: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    drain_seconds: float


ToWorker = Launch | Submit | Forget | Abort | Call | Stop


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded."""

    info: EngineInfo


@dataclass(frozen=True, slots=True)
class CannotStart:
    message: str


@dataclass(frozen=True, slots=True)
class Happened:
    """Events of one step of the worker, of any requests."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    status: EngineStatus


@dataclass(frozen=True, slots=True)
class Reply:
    """`error` is what the call raised, if it did."""

    number: int
    value: object
    error: Exception | None


FromWorker = Ready | CannotStart | Happened | Heartbeat | Reply
