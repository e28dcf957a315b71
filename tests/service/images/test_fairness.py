"""M3: what one tenant's hosts, name servers and pictures hold up is its own work, whatever its salts."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from engine.messages import ImageInput
from service.errors import ImageError
from service.http.admission import Shared
from service.http.tenancy import namespace
from service.images.addresses import HostPolicy, SystemResolver
from service.images.decoder import Decoder
from service.images.decoder_pool import DecoderPool
from service.images.fetch import Fetcher
from service.images.known_images import UploadIndex, UrlIndex
from service.images.loader import ImageLoader, Known, LoadLimits, Sources
from service.images.local import LocalFolders
from service.images.picture_memory import PictureMemory
from service.images.reference import ImageReference, PlacedImage
from tests.service.conftest import Start
from tests.service.files.keeping import no_files
from tests.service.images.decoding import PIXELS, decoded
from tests.service.images.fetching import Names
from tests.service.images.pictures import data_url, plain
from tests.service.images.test_decoder import RULES
from tests.service.images.watching import Watching
from tests.service.serving import PATIENCE, Host, eventually

KEYS = "alice:sk-alice-1,bob:sk-bob-12,carol:sk-carol-1"


class Service:
    """Loads pictures of several tenants; `stuck` is called with every file in place of decoding it."""

    def __init__(self, names: Any, stuck: Callable[[bytes], None] = lambda _: None) -> None:
        policy = HostPolicy((), ("127.0.0.1", "pictures.test"), names)
        context = ssl.create_default_context()
        fetcher = Fetcher(policy, 100_000, PATIENCE, context, Shared(4, several=True))
        self.decoder = Decoder(RULES, Shared(4, several=True))

        def decode(data: bytes, left: int) -> Any:
            stuck(data)
            return decoded(data)

        self.decoder.decode = decode  # type: ignore[method-assign]
        known = Known(UrlIndex(10_000), UploadIndex(10_000))
        memory = PictureMemory(Shared(10_000_000, several=True))
        limits = LoadLimits(100_000, PIXELS)
        self.loader = ImageLoader(
            Sources(fetcher, self.decoder, no_files(), LocalFolders((), 0)), known, memory, Watching(), limits
        )

    def ask(self, tenant: str, *texts: str) -> asyncio.Task[Any]:
        places = [PlacedImage(ImageReference(text), "x") for text in texts]
        return asyncio.create_task(self._load(places, tenant))

    async def _load(self, places: list[PlacedImage], tenant: str) -> tuple[ImageInput, ...]:
        async with self.loader.loaded(places, tenant) as images:
            return images


async def ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(int(PATIENCE / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"never happened: {what}")


def test_m3_hosts_that_hang_take_their_own_tenants_share(host: Host) -> None:
    """Whatever salt is said and however many hosts they are."""
    png = host.serves("/a.png", plain())
    slow = [host.hangs(f"/slow{n}") for n in range(12)]

    async def work() -> None:
        service = Service(SystemResolver())
        held = [
            service.ask(namespace("a", salt), *(url.replace("127.0.0.1", name) for url in slow))
            for salt, name in ((None, "127.0.0.1"), ("x", "127.0.0.1"), ("y", "127.0.0.1"))
        ]
        await until(lambda: len(host.heads) >= 1, "slow hosts are asked")
        for tenant in ("b", namespace("c", "z")):
            assert len(await asyncio.wait_for(service.ask(tenant, png), PATIENCE)) == 1
        assert sum("/slow" in head for head in host.heads) <= 2, "half of the places"
        await ended(*held)
        service.decoder.close()

    asyncio.run(work())


def test_m3_the_same_host_hangs_for_one_and_answers_another(host: Host) -> None:
    png, slow = host.serves("/a.png", plain()), host.hangs("/slow")

    async def work() -> None:
        service = Service(SystemResolver())
        held = service.ask("a", *(f"{slow}?{n}" for n in range(9)))
        await until(lambda: bool(host.heads), "it hangs")
        assert len(await asyncio.wait_for(service.ask("b", png), PATIENCE)) == 1
        await ended(held)
        service.decoder.close()

    for n in range(9):
        host.routes[f"/slow?{n}"] = host.routes["/slow"]
    asyncio.run(work())


class StuckNames(Names):
    """Look-ups of names that begin with `slow` hang in a thread, as the system's would."""

    def __init__(self) -> None:
        super().__init__({"pictures.test": ["127.0.0.1"]})
        self.going_on = threading.Event()
        self.stuck = 0
        self.threads = SystemResolver(4)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        if host.startswith("slow"):
            self.stuck += 1
            await asyncio.get_running_loop().run_in_executor(self.threads._pool, self.going_on.wait)
        else:
            await asyncio.get_running_loop().run_in_executor(self.threads._pool, lambda: None)
        return await super().resolve(host, port)


def test_m3_name_servers_that_hang_take_their_own_tenants_share(host: Host) -> None:
    """Also when nobody waits for them any more: the thread that does is not free."""
    png = host.serves("/a.png", plain()).replace("127.0.0.1", "pictures.test")

    async def work() -> None:
        names = StuckNames()
        service = Service(names)
        for n in range(8):
            held = service.ask("a", *(f"http://slow{n}-{m}.test/" for m in range(4)))
            await until(lambda: names.stuck >= 2, "its share of look-ups hangs")
            await asyncio.sleep(0.01)
            await ended(held)
        assert names.stuck == 2
        assert len(await asyncio.wait_for(service.ask("b", png), PATIENCE)) == 1
        names.going_on.set()
        service.decoder.close()
        names.threads.close()

    asyncio.run(work())


def test_m3_slow_pictures_take_their_own_tenants_share() -> None:
    going_on = threading.Event()
    stuck: list[bytes] = []
    slow = [data_url(plain((n, 0, 0))) for n in range(9)]
    slow_files = {plain((n, 0, 0)) for n in range(9)}

    def wait(data: bytes) -> None:
        if data in slow_files:
            stuck.append(data)
            going_on.wait(PATIENCE)

    async def work() -> None:
        service = Service(Names(), wait)
        held = [service.ask(namespace("a", salt), *slow) for salt in (None, "x", "y")]
        await until(lambda: len(stuck) >= 2, "its share is at work")
        for tenant in ("b", "c"):
            quick = service.ask(tenant, data_url(plain((0, 99, 0))))
            assert len(await asyncio.wait_for(quick, PATIENCE)) == 1
        assert len(stuck) == 2
        await ended(*held)
        again = service.ask("a", slow[0])
        await asyncio.sleep(0.02)
        assert len(stuck) == 2, "who left has not made room as long as the work goes on"
        going_on.set()
        await asyncio.wait_for(again, PATIENCE)
        service.decoder.close()

    asyncio.run(work())


HOSTS = tuple(f"host{n}.test" for n in range(8))
ALL_HERE = Names({name: ["127.0.0.1"] for name in HOSTS})


def test_m3_over_http_a_tenant_is_served_beside_hanging_hosts(start: Start, host: Host) -> None:
    limits = {"fetch_concurrency": 2, "fetch_timeout": PATIENCE, "allowed_private_hosts": HOSTS}
    api = start(resolver=ALL_HERE, api_keys=KEYS, **limits)
    slow = [host.hangs("/slow").replace("127.0.0.1", name) for name in HOSTS]
    png = host.serves("/a.png", plain()).replace("127.0.0.1", HOSTS[0])

    def ask(key: str, *urls: str) -> httpx.Response:
        body = {"prompt": "x", "images": list(urls)}
        return api.post("/v1/chat", json=body, headers={"authorization": f"Bearer {key}"})

    threads = [threading.Thread(target=ask, args=("sk-alice-1", *slow[n : n + 4])) for n in (0, 4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(host.heads) >= 2, "alice's hosts hang")
    for key in ("sk-bob-12", "sk-carol-1"):
        assert ask(key, png).status_code == 200
    host.stopping.set()
    for thread in threads:
        thread.join()


def test_m3_the_only_tenant_has_all_places(start: Start, host: Host) -> None:
    api = start(resolver=ALL_HERE, fetch_concurrency=4, allowed_private_hosts=HOSTS)
    slow = [host.hangs("/slow").replace("127.0.0.1", name) for name in HOSTS[:4]]
    asked = threading.Thread(target=lambda: api.post("/v1/chat", json={"prompt": "x", "images": slow}))
    asked.start()
    try:
        eventually(lambda: len(host.heads) == 4, "all four are asked at once")
    finally:
        host.stopping.set()
        asked.join()


@pytest.mark.parametrize("error", [ImageError("invalid_image", "x."), ValueError("a fault of ours")])
def test_a_failed_picture_gives_its_place_back(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(DecoderPool, "decode", fail)

    async def work() -> None:
        decoder = Decoder(RULES, Shared(1, several=False))
        for _ in range(3):
            with pytest.raises(ImageError):
                await asyncio.wait_for(decoder.run("a", lambda: decoder.decode(b"", 1)), PATIENCE)
        decoder.close()

    asyncio.run(work())
