"""F15: more than is allowed is refused at once, with the time to come back."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from service.errors import UnavailableError
from service.http.admission import Admission
from service.settings import Settings
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.serving import eventually
from tests.service.test_chat_refusals import refused
from tests.service.test_disconnect import open_request


def refusal(admission: Admission, tenant: str = "a") -> UnavailableError:
    with pytest.raises(UnavailableError) as caught, admission.admit(tenant):
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


def test_place_comes_back_after_an_error() -> None:
    admission = Admission(Settings(max_concurrent=1))
    with pytest.raises(KeyError), admission.admit("a"):
        raise KeyError
    assert admission.running == 0


def test_rate_is_a_bucket_that_fills_evenly() -> None:
    now = [0.0]
    admission = Admission(Settings(rate_limit=6), clock=lambda: now[0])

    def ask(tenant: str = "a") -> None:
        with admission.admit(tenant):
            pass

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
