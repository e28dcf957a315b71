"""F15: more than is allowed is refused at once, with the time to come back."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from service.errors import UnavailableError
from service.http.admission import Admission
from service.settings import Settings
from tests.service.asking import open_request, refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.serving import eventually

SEVERAL = "a:sk-alice-1,b:sk-bob-12,c:sk-carol-1"


def refusal(admission: Admission, tenant: str = "a") -> UnavailableError:
    with pytest.raises(UnavailableError) as caught:
        admission.arrive(tenant)
        with admission.admit(tenant):
            pass
    assert caught.value.retry_after
    return caught.value


def test_places_are_limited_and_come_back() -> None:
    admission = Admission(Settings(max_concurrent=2))
    with ExitStack() as stack:
        stack.enter_context(admission.admit("a"))
        with admission.admit("b"):
            assert admission.full
            assert refusal(admission).code == "queue_full"
        stack.enter_context(admission.admit("a"))
    assert admission.running == 0


def test_one_tenant_cannot_take_every_place() -> None:
    admission = Admission(Settings(max_concurrent=4, max_concurrent_per_tenant=1))
    with admission.admit("a"), admission.admit("b"):
        assert refusal(admission, "a").code == "queue_full"


def taken_by(admission: Admission, stack: ExitStack, tenant: str) -> int:
    """How many places `tenant` can take when it takes what it can get."""
    for number in range(1000):
        try:
            stack.enter_context(admission.admit(tenant))
        except UnavailableError as error:
            assert error.code == "queue_full"
            return number
    raise AssertionError("there is no end of places")


def test_m3_a_tenant_never_takes_the_last_places_of_the_others() -> None:
    admission = Admission(Settings(max_concurrent=64, api_keys=SEVERAL))
    with ExitStack() as stack:
        assert [taken_by(admission, stack, tenant) for tenant in ("a", "b", "c")] == [32, 16, 8]
        assert not admission.full
    with ExitStack() as stack:
        assert taken_by(admission, stack, "b") == 32
    assert admission.running == 0


def test_a_tenant_alone_may_take_every_place() -> None:
    for keys in ((), "a:sk-alice-1"):
        admission = Admission(Settings(max_concurrent=64, api_keys=keys))
        with ExitStack() as stack:
            assert taken_by(admission, stack, "a") == 64
            assert admission.full


def test_several_tenants_get_the_only_place_too() -> None:
    admission = Admission(Settings(max_concurrent=1, api_keys=SEVERAL))
    with ExitStack() as stack:
        assert [taken_by(admission, stack, tenant) for tenant in ("a", "b")] == [1, 0]


def test_m3_slow_bodies_take_no_place_and_only_their_tenants_part_of_what_is_read() -> None:
    admission = Admission(Settings(max_concurrent=2, api_keys=SEVERAL))
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(admission.body("a"))
        with pytest.raises(UnavailableError), admission.body("a"):
            pass
        with admission.body("b"):
            assert admission.running == 0


def test_the_memory_of_all_bodies_is_bounded_and_each_tenant_has_its_part() -> None:
    mib = 2**20
    admission = Admission(Settings(max_body_bytes=64 * mib, api_keys=SEVERAL))
    with admission.body("b") as other:
        with admission.body("a") as first, admission.body("a") as second:
            first.grow(200 * mib)
            second.grow(56 * mib)
            with pytest.raises(UnavailableError) as caught:
                second.grow(1)
            assert (caught.value.code, caught.value.retry_after) == ("queue_full", 1.0)
            other.grow(128 * mib)
        with admission.body("a") as again:
            again.grow(192 * mib)


def test_the_memory_of_bodies_has_room_for_many_where_each_may_be_small_only() -> None:
    admission = Admission(Settings(max_body_bytes=1024))
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(admission.body("a")).grow(1024)


def test_place_comes_back_after_an_error() -> None:
    admission = Admission(Settings(max_concurrent=1))
    with pytest.raises(KeyError), admission.admit("a"):
        raise KeyError
    assert admission.running == 0


def test_rate_is_a_bucket_that_fills_evenly() -> None:
    now = [0.0]
    admission = Admission(Settings(rate_limit=6), clock=lambda: now[0])

    def ask(tenant: str = "a") -> None:
        admission.arrive(tenant)

    for _ in range(6):
        ask()
    error = refusal(admission)
    assert error.code == "rate_limited"
    assert error.retry_after == pytest.approx(10)
    ask("b")
    now[0] = 10.0
    ask()
    assert refusal(admission).code == "rate_limited"
    now[0] = 1000.0
    for _ in range(6):
        ask()
    assert refusal(admission).code == "rate_limited"


def test_who_is_refused_gains_nothing_by_asking_again() -> None:
    now = [0.0]
    admission = Admission(Settings(rate_limit=6), clock=lambda: now[0])
    for _ in range(6):
        admission.arrive("a")
    for now[0] in (5.0, 7.0, 9.9):
        assert refusal(admission).retry_after == pytest.approx(10 - now[0])
    now[0] = 10.0
    admission.arrive("a")


def test_f15_flood_is_refused_with_retry_after(start: Start, engine: FakeEngine) -> None:
    api = start(max_concurrent=4)
    engine.script = lambda request: [3600.0]
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(open_request(api))
        eventually(lambda: engine.open == 4, "four are worked on")
        for _ in range(16):
            response = api.post("/v1/chat", json={"prompt": "x"})
            refused(response, 429, "queue_full")
            assert int(response.headers["retry-after"]) >= 1
        assert len(engine.requests) == 4
        assert api.get("/readyz").status_code == 503
        assert api.get("/livez").status_code == 200
    eventually(lambda: engine.open == 0, "the four end with their clients")
    assert api.get("/readyz").status_code == 200


def test_draining_refuses_new_requests_only() -> None:
    admission = Admission(Settings())
    with admission.admit("a"):
        admission.draining = True
        assert refusal(admission).code == "draining"
        assert admission.running == 1
