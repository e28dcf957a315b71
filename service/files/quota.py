"""How much a tenant may upload, and what its uploads under way have taken of that."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from service.errors import RequestError
from service.files.index import FileIndex


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Bytes of one file; bytes and number of a tenant's; seconds that one stays which says nothing, 0 for ever."""

    file_bytes: int
    tenant_bytes: int
    tenant_files: int
    seconds: int


class Quota:
    """Counts what is kept and what is on its way, so that many uploads at once do not get past it."""

    def __init__(self, limits: FileLimits, kept: FileIndex) -> None:
        self._limits = limits
        self._kept = kept
        self._files: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    @contextlib.contextmanager
    def upload(self, tenant: str) -> Iterator[Share]:
        """Count one file of `tenant` until the end of the context. Raises `RequestError` where there are too many."""
        if self._kept.count(tenant) + self._files[tenant] >= self._limits.tenant_files:
            raise _exceeded(f"more than {self._limits.tenant_files} files")
        share = Share(self, tenant)
        self._files[tenant] += 1
        try:
            yield share
        finally:
            share.close()

    def give_back(self, tenant: str, nbytes: int) -> None:
        self._files[tenant] -= 1
        self._bytes[tenant] -= nbytes

    def grow(self, tenant: str, nbytes: int) -> None:
        held = self._kept.bytes(tenant) + self._bytes[tenant]
        if held + nbytes > self._limits.tenant_bytes:
            raise _exceeded(f"more than {self._limits.tenant_bytes} bytes of files")
        self._bytes[tenant] += nbytes

    @property
    def file_bytes(self) -> int:
        return self._limits.file_bytes


class Share:
    """What one upload has taken."""

    def __init__(self, quota: Quota, tenant: str) -> None:
        self._quota = quota
        self._tenant = tenant
        self.nbytes = 0
        self._open = True

    def close(self) -> None:
        """It is over, or the file is counted with those that are kept."""
        if self._open:
            self._open = False
            self._quota.give_back(self._tenant, self.nbytes)

    @property
    def most(self) -> int:
        return self._quota.file_bytes

    def grow(self, nbytes: int) -> None:
        """Raises `RequestError` where the file, or all of the tenant's, become too large."""
        if self.nbytes + nbytes > self.most:
            raise too_large(self.most)
        self._quota.grow(self._tenant, nbytes)
        self.nbytes += nbytes


def too_large(most: int) -> RequestError:
    return RequestError("file_too_large", f"The file is larger than {most} bytes.", param="file")


def _exceeded(what: str) -> RequestError:
    message = f"With it you would hold {what}: delete some that you need no more."
    return RequestError("file_quota_exceeded", message, param="file")
