"""The images of a conversation as it is read: each gets its number, and an uploaded file one for every page."""

from __future__ import annotations

from typing import Final, Protocol

from engine.messages import ImagePart
from service.errors import RequestError
from service.files.pages import chosen_pages
from service.files.record import FileRecord
from service.images.reference import FilePage, FileReference, ImageReference, PlacedImage

_FILE_PREFIX: Final = "file-"
_LONGEST_NAME: Final = 256
"""Characters that are looked at: the text may be a picture of 60 MB."""


class FindFile(Protocol):
    """The caller's file of that id. Raises `RequestError` where there is none."""

    def __call__(self, name: str) -> FileRecord: ...


class ImageList:
    """`most` images at most, over all turns; `find` knows the caller's files."""

    def __init__(self, find: FindFile, most: int) -> None:
        self._find = find
        self._most = most
        self._places: list[PlacedImage] = []

    def place(
        self, reference: ImageReference | FileReference, param: str, low: bool = False
    ) -> list[ImagePart]:
        """The parts that stand for `reference` in the conversation: several where it is a file of several pages. `low`
        takes small pictures of them. Raises `RequestError`."""
        first = len(self._places)
        pages = [reference] if isinstance(reference, ImageReference) else self._pages(reference, param)
        self._places += (PlacedImage(page, param, low) for page in pages)
        return [ImagePart(number) for number in range(first, len(self._places))]

    def checked(self) -> tuple[PlacedImage, ...]:
        """All of them, in order. Raises `RequestError` where there are too many."""
        count = len(self._places)
        if count > self._most:
            message = f"The conversation holds {count} images; the limit is {self._most} over all turns."
            raise RequestError("too_many_images", message, param=self._places[self._most].param)
        return tuple(self._places)

    def _pages(self, reference: FileReference, param: str) -> list[FilePage]:
        try:
            record = self._find(reference.id)
        except RequestError as error:
            raise RequestError(error.code, error.message, param=param) from None
        room = self._most - len(self._places)
        pages = chosen_pages(reference.pages, record.pages, room + 1, param) if room > 0 else ()
        if len(pages) > room or not pages:
            message = (
                f"With the file's {record.pages} pages the conversation holds more than {self._most} images, which is "
                "the limit over all turns: choose some with 'pages'."
            )
            raise RequestError("too_many_images", message, param=param)
        return [FilePage(record.id, page) for page in pages]


def named_image(text: str) -> ImageReference | FileReference:
    """What stands where an image's URL may: the id of an uploaded file is one, too."""
    name = text[:_LONGEST_NAME].strip()
    return FileReference(name) if name.startswith(_FILE_PREFIX) else ImageReference(text)
