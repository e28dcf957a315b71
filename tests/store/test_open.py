"""A store of real tensors from settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from store.codecs.protocol import codec_named
from store.errors import InvalidSettings
from store.open import open_store
from store.records.entry import ImageKV
from store.settings import StoreSettings
from store.types import EntryFilter
from tests.store.samples import key_of
from tests.store.tensors import entry_of, same

MIB = 1 << 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_tensors_come_back_bit_for_bit_from_every_place(tmp_path: Path, dtype: torch.dtype) -> None:
    settings = StoreSettings(
        path=tmp_path / "store", memory_bytes=MIB, disk_bytes=16 * MIB, decoded_bytes=MIB
    )
    key, entry = key_of(1, codec="raw"), entry_of(1, tokens=90, dtype=dtype)

    def unused() -> ImageKV:
        raise AssertionError("compiled although it was stored")

    store = open_store(settings)
    store.entries.fetch(key, lambda: entry).release()
    store.entries.flush(10)
    store.admin.evict(EntryFilter(tier="decoded"))
    with store.entries.fetch(key, unused) as fetched:
        assert fetched.tier == "memory"
        assert same(fetched.entry, entry)
    store.entries.close()
    store = open_store(settings)
    with store.entries.fetch(key, unused) as fetched:
        assert fetched.tier == "lmdb"
        assert same(fetched.entry, entry)
        held = fetched.entry
    store.entries.close()
    assert same(held, entry)


def test_budgets_of_zero_leave_tiers_out(tmp_path: Path) -> None:
    store = open_store(StoreSettings())
    assert store.admin.stats().tiers == ()
    with store.entries.fetch(key_of(1, codec="raw"), lambda: entry_of(1)) as fetched:
        assert fetched.outcome == "miss"
    with store.entries.fetch(key_of(1, codec="raw"), lambda: entry_of(1)) as fetched:
        assert (fetched.outcome, fetched.tier) == ("hit", "decoded")
    store.entries.close()


@pytest.mark.parametrize(
    "wrong", [{"codec": "zip"}, {"eviction": "mru"}, {"disk_bytes": -1}, {"persist_on": "third"}]
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        open_store(StoreSettings(**wrong))


def test_lossy_codecs_decode_on_the_device_of_the_settings() -> None:
    """A device without numbers shows that keys and values go there, and nothing else does."""
    entry = entry_of(1, tokens=70)
    for name in ("int8", "int4"):
        there = codec_named(name).on("meta").prepare(entry).entry
        assert (there.keys.device.type, there.values.device.type) == ("meta", "meta")
        assert there.keys.shape == entry.keys.shape and there.features.device.type == "cpu"
    assert codec_named("raw").on("meta").prepare(entry).entry is entry


def test_the_byte_side_does_not_load_torch() -> None:
    program = """
import sys
import store.care.admin, store.records.header, store.records.keys, store.tiers.protocol, store.tiered, store.types
store.tiers.protocol.kinds()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
