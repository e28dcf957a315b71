"""Speed of the store's tiers and codecs, each as a ratio to the plainest way of moving the same bytes, in one
run.

    python -m benchmarks.store                      entries of 36 MiB (1,000 tokens of a 3B model)
    python -m benchmarks.store --help               sizes, rounds, where on disk

Reads are whole: into reused host memory, every piece verified. A cold read comes after the page cache was
told to drop the file, and is reported only if it did. Writes include syncing to disk, on both sides. Arms run
in turn and ratios are of medians. Writes `benchmarks/results/store.json`; exits non-zero, and writes nothing,
where it could not measure.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.in_turn import in_turn, seconds
from benchmarks.page_cache import drop
from benchmarks.result import NotMeasured, write_result
from benchmarks.store_entries import key_of, make_entry
from store.codecs.protocol import Codec, codecs
from store.records.buffers import BufferPool
from store.records.entry import ImageKV
from store.records.header import RecordInfo
from store.records.record import Record, RecordReader, build
from store.residency.eviction import never_held
from store.tiers.lmdb.file import DATA
from store.tiers.lmdb.tier import LmdbTier
from store.tiers.protocol import Tier
from store.tiers.redis.tier import RedisTier

MIB = 1 << 20
GB = 1e9


def main() -> int:
    arguments = read_arguments()
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="store-benchmark-", dir=arguments.directory) as folder:
            bench = Bench(Path(folder), arguments)
            for measure in (bench.codecs, bench.disk, bench.cold, bench.redis, bench.counts, bench.churn):
                found, figure = measure()
                ratios |= found
                figures[measure.__name__] = figure
                print(f"{measure.__name__}: {found or figure}", flush=True)
        path = write_result(Path(__file__), vars(arguments), ratios, figures)
    except NotMeasured as error:
        print(f"store: could not measure: {error}", file=sys.stderr)
        return 1
    print(f"\n{path}")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.store", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--tokens", type=int, default=1000, help="of an entry; 36 KiB each as raw bf16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--counts", type=int, nargs="+", default=[10, 100, 1000], help="entries in the store")
    parser.add_argument("--count-mib", type=int, default=4, help="size of those entries")
    parser.add_argument("--churn", type=int, default=500, help="entries of 2 to 48 MiB under 768 MiB")
    parser.add_argument(
        "--directory", help="on the disk to be measured (default: the system's temporary one)"
    )
    return parser.parse_args()


class Bench:
    """One measurement a method: ratios, and figures beside them."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._folder = folder
        self._arguments = arguments
        self._buffers = BufferPool(256 * MIB)
        self._entry = make_entry(arguments.tokens)
        self._record = self._make_record(codecs()["raw"], self._entry, 0)
        self._plain = memoryview(bytearray(self._record.payload))
        self._target = memoryview(bytearray(self._record.payload.nbytes))

    def codecs(self) -> tuple[dict[str, float], dict[str, Any]]:
        """GB/s of the entry's tensors, one thread."""
        figures = {}
        for name, codec in codecs().items():
            record = self._make_record(codec, self._entry, 0)
            writable = memoryview(bytearray(record.payload))

            def encode(codec: Codec[Any] = codec) -> float:
                return seconds(lambda: self._make_record(codec, self._entry, 0))

            def decode(
                codec: Codec[Any] = codec, record: Record = record, writable: memoryview = writable
            ) -> float:
                return seconds(lambda: codec.decode(record.manifest, writable))

            spent = in_turn(max(3, self._arguments.rounds // 2), encode=encode, decode=decode)
            figures[name] = {
                "record_bytes": record.nbytes,
                "encode_gb_s": self._entry.nbytes / spent["encode"] / GB,
                "decode_gb_s": self._entry.nbytes / spent["decode"] / GB,
            }
        return {}, figures

    def disk(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Warm reads against memcpy, synced writes against a synced file."""
        with closing(LmdbTier(self._folder / "disk", 1024 * MIB)) as tier:
            tier.put(self._record, 1.0, never_held)
            spent = in_turn(
                self._arguments.rounds,
                memcpy=self._memcpy,
                read=lambda: self._read(tier, 0),
                file=lambda: self._write_file(self._folder / "plain"),
                write=lambda: self._write_synced(tier),
            )
        return (
            {
                "lmdb_read_warm_vs_memcpy": spent["memcpy"] / spent["read"],
                "lmdb_write_vs_raw_fsync": spent["file"] / spent["write"],
            },
            self._rates(spent),
        )

    def cold(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Reads from the disk itself, of the tier's file and of a plain one."""
        directory, plain = self._folder / "cold", self._folder / "plain"
        self._write_file(plain)
        with closing(LmdbTier(directory, 1024 * MIB)) as tier:
            tier.put(self._record, 1.0, never_held)
        shares = []

        def read_tier() -> float:
            with closing(LmdbTier(directory, 1024 * MIB)) as tier:
                tier.contains(key_of(0).digest)
                # Opening walks the tree, and the system reads far ahead. Pages of the tree stay, as they are
                # mapped.
                shares.append(drop(directory / DATA))
                return self._read(tier, 0)

        def read_plain() -> float:
            shares.append(drop(plain))
            with plain.open("rb", buffering=0) as stream:
                return seconds(lambda: _read_into(stream.fileno(), self._target))

        spent = in_turn(self._arguments.rounds, raw=read_plain, read=read_tier)
        if max(shares) > 0.05:
            raise NotMeasured(f"the page cache kept {max(shares):.0%} of a file")
        return {"lmdb_read_cold_vs_raw": spent["raw"] / spent["read"]}, self._rates(spent)

    def redis(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Over the loopback, with a server of its own."""
        with _server() as url, closing(RedisTier(url, timeout=10.0)) as tier:
            tier.put(self._record, 1.0, never_held)
            spent = in_turn(
                self._arguments.rounds,
                memcpy=self._memcpy,
                read=lambda: self._read(tier, 0),
                write=lambda: seconds(lambda: tier.put(self._record, 1.0, never_held, replace=True)),
            )
        return {"redis_read_vs_memcpy": spent["memcpy"] / spent["read"]}, self._rates(spent)

    def counts(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Warm reads of random entries with few and many in the store."""
        size = self._arguments.count_mib * MIB
        tokens = size // (self._entry.nbytes // self._arguments.tokens)
        small = make_entry(tokens)
        figures = {}
        for count in self._arguments.counts:
            with closing(LmdbTier(self._folder / f"count{count}", 2 * count * size + 64 * MIB)) as tier:
                writes = [seconds(lambda n=n: self._put(tier, small, n)) for n in range(count)]  # type: ignore[misc]
                chance = random.Random(1)
                reads = [self._read(tier, chance.randrange(count)) for _ in range(max(100, count // 4))]
            figures[str(count)] = {
                "read_gb_s": small.nbytes / statistics.median(reads) / GB,
                "read_p99_ms": 1e3 * statistics.quantiles(reads, n=100)[-1],
                "write_gb_s": small.nbytes / statistics.median(writes) / GB,
            }
        return {}, figures

    def churn(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Entries of 2 to 48 MiB come, and go by eviction and at random, under 768 MiB."""
        budget = 768 * MIB
        chance = random.Random(1)
        per_token = self._entry.nbytes // self._arguments.tokens
        entries = {size: make_entry(size * MIB // per_token) for size in (2, 5, 11, 23, 48)}
        largest, puts, live = 0, [], []
        with closing(LmdbTier(self._folder / "churn", budget)) as tier:
            for number in range(self._arguments.churn):
                entry = entries[chance.choice(list(entries))]
                puts.append(seconds(lambda e=entry, n=number: self._put(tier, e, n)))  # type: ignore[misc]
                live.append(key_of(number).digest)
                if chance.random() < 0.3:
                    tier.delete(live.pop(chance.randrange(len(live))))
                largest = max(largest, tier.stats().bytes_physical)
            evictions = dict(tier.stats().evictions)
        figures = {"evictions": evictions, "put_p99_ms": 1e3 * statistics.quantiles(puts, n=100)[-1]}
        return {"churn_file_vs_budget": largest / budget}, figures

    def _make_record(self, codec: Codec[Any], entry: ImageKV, number: int) -> Record:
        info = RecordInfo.of(key_of(number), entry.tokens, 0.0, 0.0)
        packed = codec.prepare(entry).pack()
        return build(key_of(number).digest, codec.identity, packed, info, self._buffers)

    def _put(self, tier: Tier, entry: ImageKV, number: int) -> None:
        tier.put(self._make_record(codecs()["raw"], entry, number), float(number), never_held)

    def _read(self, tier: Tier, number: int) -> float:
        reader = RecordReader(key_of(number).digest, "raw/1", self._buffers)
        spent = seconds(lambda: tier.get(key_of(number).digest, reader))
        reader.record()
        return spent

    def _memcpy(self) -> float:
        def copy() -> None:
            self._target[:] = self._plain

        return seconds(copy)

    def _write_synced(self, tier: LmdbTier) -> float:
        def write() -> None:
            tier.put(self._record, 1.0, never_held, replace=True)
            tier.sync()

        return seconds(write)

    def _write_file(self, path: Path) -> float:
        def write() -> None:
            with path.open("wb", buffering=0) as stream:
                stream.write(self._plain)
                os.fsync(stream.fileno())

        return seconds(write)

    def _rates(self, spent: dict[str, float]) -> dict[str, float]:
        return {f"{name}_gb_s": self._record.payload.nbytes / taken / GB for name, taken in spent.items()}


def _read_into(descriptor: int, target: memoryview) -> None:
    filled = 0
    while filled < len(target):
        filled += os.readv(descriptor, [target[filled:]])


@contextmanager
def closing(tier: Any) -> Iterator[Any]:
    try:
        yield tier
    finally:
        tier.close()


@contextmanager
def _server() -> Iterator[str]:
    """A Valkey server on a free port. Raises NotMeasured without one."""
    try:
        from tests.store.redis_server import Server
    except ImportError as error:
        raise NotMeasured(f"no server to measure with: {error}") from error
    with Server() as server:
        yield server.url


if __name__ == "__main__":
    sys.exit(main())
