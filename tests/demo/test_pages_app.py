"""The demo's pages over HTTP: the picture of the code, enlarged where asked, and nothing for a code that is none."""

import io

import numpy as np
import pypdfium2
import pytest
from fastapi import FastAPI
from PIL import Image
from starlette.testclient import TestClient

from demo.pages import PAGE_PX, draw_pages, encode, render
from demo.pages_app import LARGEST, MOST, router

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


def test_pages_come_as_a_pdf_dot_for_dot(client: TestClient) -> None:
    pages = draw_pages(np.random.default_rng(2), 2)
    answer = client.get(f"/demo/pages/{','.join(map(encode, pages))}.pdf")
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/pdf"
    document = pypdfium2.PdfDocument(answer.content)
    drawn = [page.render(scale=2, rev_byteorder=True).to_numpy() for page in document]
    assert len(drawn) == 2
    assert all(np.array_equal(*pair) for pair in zip(drawn, map(render, pages), strict=True))
    document.close()


@pytest.mark.parametrize("codes", ["no-page", ",", ",".join([encode(PAGE)] * (MOST + 1))])
def test_what_is_no_page_is_no_pdf(client: TestClient, codes: str) -> None:
    assert client.get(f"/demo/pages/{codes}.pdf").status_code == 404
