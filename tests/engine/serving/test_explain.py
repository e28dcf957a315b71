"""`cache.explain`: token by token where the KV is from, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.chains.tree import Chains
from engine.messages import CacheOptions, Failed
from engine.policies.known import POLICIES
from engine.reports import TOKEN_STATES, Explanation, ImageReport
from engine.serving.runtime import Runtime
from engine.serving.worker import Worker
from tests.engine.asking import Client, ask
from tests.engine.conftest import said, user

SHIFTED = (said("system", "Slowly."), user(0, 1, "What is K?"))
ASKED = CacheOptions(explain=True)


@pytest.fixture
def chained(runtime: Runtime) -> Iterator[Client]:
    """A client of a worker that keeps chains."""
    worker = Worker(replace(runtime, chains=Chains(1 << 24)))
    worker.start()
    yield Client(worker)
    worker.stop(0)


def explained(
    client: Client, name: str, cache: CacheOptions = ASKED, messages: object = SHIFTED
) -> list[ImageReport]:
    _, end = client.answer(ask(name, messages, cache=cache))  # type: ignore[arg-type]
    return list(end.report.images)


def told(image: ImageReport) -> Explanation:
    assert image.explained is not None
    return image.explained


def states(image: ImageReport) -> Counter[str]:
    return Counter(TOKEN_STATES[state] for state in told(image).states)


def test_only_who_asks_is_told(client: Client) -> None:
    assert [image.explained for image in explained(client, "not", CacheOptions())] == [None, None]


def test_tokens_add_up_to_the_report_cold_and_warm(client: Client) -> None:
    for name, kept in (("cold", "compiled"), ("warm", "reused")):
        for image in explained(client, name):
            grid = told(image).grid
            assert grid is not None and grid[0] * grid[1] == len(told(image).states) == image.tokens
            assert states(image) == +Counter(
                {"refreshed": image.refreshed, kept: image.tokens - image.refreshed}
            )


def test_the_refreshed_are_those_of_the_highest_scores_across_images(client: Client) -> None:
    """Scores are in units of their image's mean: within an image those refreshed stand before those reused."""
    images = explained(client, "a", replace(ASKED, refresh_ratio=0.3))
    assert sum(image.refreshed for image in images) == 15
    for image in images:
        scores, refreshed = told(image).scores, [state == 2 for state in told(image).states]
        assert scores is not None and None not in scores
        found = [score for score in scores if score is not None]
        assert sum(found) / len(found) == pytest.approx(1, abs=1e-3)
        above = [score for score, fresh in zip(found, refreshed, strict=True) if fresh]
        below = [score for score, fresh in zip(found, refreshed, strict=True) if not fresh]
        assert not above or min(above) >= max(below)


def test_drift_is_told_of_what_was_computed_and_of_nothing_else(client: Client) -> None:
    for image in explained(client, "some", replace(ASKED, refresh_ratio=0.3)):
        drift = told(image).drift or (None,) * image.tokens
        assert [value is not None for value in drift] == [state == 2 for state in told(image).states]
    for image in explained(client, "all", replace(ASKED, refresh_ratio=1.0)):
        assert states(image) == {"refreshed": image.tokens} and told(image).scores is None
        drift = told(image).drift
        assert drift is not None and all(value is not None and 0 < value < 2 for value in drift)


def test_an_image_where_it_was_computed_is_exact_and_does_not_drift(client: Client) -> None:
    first, second = explained(client, "exact", messages=(user(0, 1, "What is K?"),))
    assert states(first) == {"exact": first.tokens} and first.exact
    assert told(first).scores is None and told(first).drift is None
    assert states(second)["refreshed"] == second.refreshed > 0
    full = replace(ASKED, refresh_ratio=1.0)
    first, second = explained(client, "again", full, messages=(user(0, 1, "What is K?"),))
    assert max(told(first).drift or ()) < 1e-3 < min(told(second).drift or ())  # type: ignore[type-var]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("images", [(), (0,)], ids=["text alone", "one exact image"])
def test_where_nothing_may_be_refreshed_there_is_nothing_to_compare(
    client: Client, policy: str, images: tuple[int, ...]
) -> None:
    cache = replace(ASKED, policy=policy)
    request = ask("exact", (user(*images, "What is K?"),), len(images), cache=cache)
    found = client.answer(request)[1].report.images
    assert [len(told(image).states) for image in found] == [image.tokens for image in found]
    assert len(found) == len(images)


@pytest.mark.parametrize("policy", ["full", "first_k", "random", "reuse"])
def test_a_policy_without_scores_tells_none(client: Client, policy: str) -> None:
    for image in explained(client, "none", replace(ASKED, policy=policy)):
        assert told(image).scores is None and told(image).shares is None
        assert (
            states(image)["refreshed"]
            == image.refreshed
            == {"full": image.tokens, "reuse": 0}.get(policy, image.refreshed)
        )


@pytest.mark.parametrize("policy", ["cacheblend", "kvshare"])
def test_a_layerwise_policy_tells_the_share_of_layers(client: Client, policy: str) -> None:
    images = explained(client, "layers", replace(ASKED, policy=policy, refresh_ratio=0.6))
    shares = [share or 0.0 for image in images for share in told(image).shares or ()]
    assert len(shares) == sum(image.tokens for image in images)
    assert len(set(shares)) > 1 and sum(shares) == pytest.approx(0.6 * len(shares), abs=1)


def test_what_a_chain_had_is_chained(chained: Client) -> None:
    full = replace(ASKED, policy="full", chain="exact")
    explained(chained, "first", full)
    images = explained(chained, "second", full)
    assert [states(image) for image in images] == [{"chained": image.chained} for image in images]
    assert all(image.chained == image.tokens for image in images)


def test_more_than_can_be_told_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.serving.prepared.MOST_EXPLAINED", 48)
    (last,) = client.run(ask("many", SHIFTED, cache=ASKED))
    assert isinstance(last, Failed) and last.code == "too_much_to_explain"
    assert "49 visual tokens, and 48 can be explained" in last.message
    assert explained(client, "unasked", CacheOptions())
