"""Pictures across the pipe: sent once, kept by the worker within a budget, whole for every request."""

from __future__ import annotations

import random
from dataclasses import replace

from engine.messages import GenerateRequest, ImageInput
from engine.transport.pictures import KeptPictures, SentPictures

BUDGET = 1000


def picture(number: int, nbytes: int = 300) -> ImageInput:
    return ImageInput(bytes([number]) * 32, nbytes // 3, 1, bytes([number]) * nbytes)


def ask(*images: ImageInput, tenant: str = "a") -> GenerateRequest:
    return GenerateRequest("r", tenant, (), images)


class Pipe:
    """Both ends, and the pixels that crossed it."""

    def __init__(self) -> None:
        self.sender, self.worker = SentPictures(BUDGET), KeptPictures()

    def send(self, request: GenerateRequest) -> list[int]:
        """The number of pixel bytes that were sent of each image."""
        packed = self.sender.packed(request)
        assert self.worker.unpacked(packed) == request
        self.worker.forget(self.sender.sent(request))
        assert sum(len(image.pixels) for image in self.worker._images.values()) <= BUDGET
        return [len(image.pixels) for image in packed.images]


def test_a_picture_is_sent_once_and_again_only_after_it_was_forgotten() -> None:
    pipe = Pipe()
    assert pipe.send(ask(picture(1), picture(2))) == [300, 300]
    assert pipe.send(ask(picture(2), picture(3), picture(1))) == [0, 300, 0]
    assert pipe.send(ask(picture(4))) == [300]
    assert pipe.send(ask(picture(3), picture(1), picture(4))) == [0, 0, 0], "2 was asked about longest ago"
    assert pipe.send(ask(picture(2))) == [300]


def test_a_tenant_gains_nothing_from_another_ones_pictures() -> None:
    pipe = Pipe()
    pipe.send(ask(picture(1)))
    assert pipe.send(ask(picture(1), tenant="b")) == [300]


def test_a_request_larger_than_the_budget_arrives_whole() -> None:
    pipe = Pipe()
    large = ask(*(picture(number, 900) for number in range(3)))
    assert pipe.send(large) == [900, 900, 900]
    assert pipe.send(ask(picture(9, 3000))) == [3000]
    assert pipe.send(large) == [900, 900, 900]


def test_what_was_not_sent_is_not_counted_on() -> None:
    pipe = Pipe()
    pipe.sender.packed(ask(picture(1)))  # and then the pipe failed
    assert pipe.send(ask(picture(1))) == [300]


def test_both_ends_agree_whatever_is_asked() -> None:
    pipe, rng = Pipe(), random.Random(0)
    for _ in range(2000):
        images = [picture(rng.randrange(8), 3 * rng.choice((1, 50, 200))) for _ in range(rng.randrange(4))]
        images = [replace(image, digest=bytes([image.pixels[0], image.width]) * 16) for image in images]
        pipe.send(ask(*images, tenant=rng.choice("ab")))
