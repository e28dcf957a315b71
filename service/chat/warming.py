"""An image is computed and stored before anybody asks about it."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import Final

from engine.messages import (
    CacheOptions,
    Finished,
    GenerateRequest,
    ImageInput,
    ImagePart,
    Message,
    Sampling,
    TextPart,
)
from engine.reports import ImageReport
from service.chat.generation import Generation
from service.chat.schemas import LAST_PRIORITY
from service.context import Services

_WARM_PRIORITY: Final = LAST_PRIORITY + 1
"""Behind every request that somebody waits for."""


async def warmed(services: Services, image: ImageInput, tenant: str, param: str) -> ImageReport:
    """Ask for one token about the image, which stores it as a side effect. Raises `ServiceError`."""
    request = GenerateRequest(
        id=f"warm-{uuid.uuid4().hex}",
        tenant=tenant,
        messages=(Message("user", (ImagePart(0), TextPart("."))),),
        images=(image,),
        sampling=Sampling(max_tokens=1),
        # Whatever the default policy is: `full` would store nothing.
        cache=CacheOptions(policy="reuse", chain="off"),
        priority=_WARM_PRIORITY,
    )
    deadline = asyncio.get_running_loop().time() + services.settings.request_timeout
    async with Generation(services.client, request, deadline, [param]) as generation:
        await generation.accepted()
        async with aclosing(generation.output()) as output:
            ends = [piece async for piece in output if isinstance(piece, Finished)]
    return ends[0].report.images[0]
