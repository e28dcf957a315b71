"""What the pixels of all requests in work hold, bounded."""

from __future__ import annotations

from collections import Counter

from engine.messages import ImageInput
from service.errors import UnavailableError
from service.http.admission import Shared


class PictureMemory:
    """`shared` is in bytes. A picture that several requests have from the same index is there once, and counts once."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._users: Counter[int] = Counter()

    def take(self, account: str, image: ImageInput) -> None:
        """Count `image`, which is kept until it is given back. Raises `UnavailableError` where there is no room."""
        key, nbytes = id(image.pixels), len(image.pixels)
        if not self._users[key]:
            if not self._shared.fits(account, nbytes):
                del self._users[key]
                why = "The pictures that are being worked on take all the memory there is for them. Try again later."
                raise UnavailableError("queue_full", why, retry_after=1.0)
            self._shared.taken[account] += nbytes
        self._users[key] += 1

    def give_back(self, account: str, image: ImageInput) -> None:
        key = id(image.pixels)
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self._shared.give_back(account, len(image.pixels))
