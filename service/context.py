"""What the routes of one app share. Made by `create_app`, handed to each router; there are no globals."""

from __future__ import annotations

from dataclasses import dataclass

from engine.client import EngineClient
from service.files.library import FileLibrary
from service.http.admission import Admission
from service.http.body import BodyLimits
from service.http.disconnect import LastOrders
from service.images.loader import ImageLoader
from service.observability.metrics import Metrics
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    client: EngineClient
    metrics: Metrics
    images: ImageLoader
    files: FileLibrary
    admission: Admission
    last_orders: LastOrders

    @property
    def body_limits(self) -> BodyLimits:
        return BodyLimits(self.settings.max_body_bytes, self.settings.body_timeout, self.admission)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names a request may call the model by, the one we answer with first."""
        model = self.client.info.model
        named = self.settings.model_name
        short = model.rstrip("/").rsplit("/", 1)[-1]
        return tuple(
            dict.fromkeys(name for name in (named, short if named is None else None, model, short) if name)
        )
