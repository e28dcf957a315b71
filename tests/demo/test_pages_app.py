"""The demo's pages over HTTP: the picture of the code, enlarged where asked, and nothing for a code that is none."""

import io

import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image
from starlette.testclient import TestClient

from demo.pages import PAGE_PX, draw_pages, encode, render
from demo.pages_app import LARGEST, router

PAGE = draw_pages(np.random.default_rng(1), 1)[0]


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(router)
    return TestClient(app)


def picture(body: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(body)).convert("RGB"))


def test_a_code_is_drawn_as_the_renderer_draws_it(client: TestClient) -> None:
    answer = client.get(f"/demo/pages/{encode(PAGE)}.png")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/png"
    assert "immutable" in answer.headers["cache-control"]
    assert np.array_equal(picture(answer.content), render(PAGE))


def test_an_enlarged_page_shows_every_pixel_as_a_block(client: TestClient) -> None:
    answer = client.get(f"/demo/pages/{encode(PAGE)}.png", params={"edge": 3 * PAGE_PX})
    assert np.array_equal(picture(answer.content), render(PAGE).repeat(3, axis=0).repeat(3, axis=1))


@pytest.mark.parametrize("code", ["red", "red_x", "nothing_1_A01k1", "red_1_A99k1", "..%2F..%2Fetc%2Fpasswd"])
def test_a_code_that_is_no_page_is_not_found(client: TestClient, code: str) -> None:
    assert client.get(f"/demo/pages/{code}.png").status_code == 404


@pytest.mark.parametrize("edge", [PAGE_PX - 1, LARGEST + 1, "large"])
def test_sizes_beyond_the_limits_are_refused(client: TestClient, edge: object) -> None:
    assert client.get(f"/demo/pages/{encode(PAGE)}.png", params={"edge": str(edge)}).status_code == 422
