"""A multipart body, read in the pieces in which it comes: short fields are kept, the file's content is handed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.errors import RequestError, shown

_MOST_PARTS: Final = 16
_LONGEST_FIELD: Final = 1024
_LONGEST_BOUNDARY: Final = 256
FILE_FIELD: Final = "file"


class FormReader:
    """`content_type` is the header. Raises `RequestError`, then and from `feed` and `finish`."""

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type.encode("latin-1", errors="replace"))
        if kind != b"multipart/form-data":
            message = "Send the file as 'multipart/form-data', for instance with curl's -F file=@page.png."
            raise RequestError("unsupported_media_type", message)
        boundary = options.get(b"boundary", b"")
        if not 0 < len(boundary) <= _LONGEST_BOUNDARY:
            raise _malformed("its content type names no boundary")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        """None until the file has begun."""
        self._content: list[bytes] = []
        self._parts = 0
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._field: str | None = None
        self._text = bytearray()
        self._ended = False
        self._parser = MultipartParser(boundary, self._callbacks())

    def feed(self, piece: bytes) -> bytes:
        """What of the file's content is in `piece`."""
        try:
            self._parser.write(piece)
        except FormParserError:
            raise _malformed("it does not follow its boundary") from None
        content = b"".join(self._content)
        self._content.clear()
        return content

    def finish(self) -> Mapping[str, str]:
        """The fields, once all has come."""
        if not self._ended:
            raise _malformed("it ends in the middle")
        if self.filename is None:
            message = "Missing parameter: 'file'."
            raise RequestError("missing_parameter", message, param=FILE_FIELD)
        return self.fields

    def _callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._name_part,
            "on_part_data": self._data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise RequestError("invalid_request", f"The form has more than {_MOST_PARTS} parts.")
        self._disposition = b""
        self._text.clear()

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _name_part(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode(errors="replace")
        if not name:
            raise _malformed("a part of it has no name")
        if name in self.fields or (name == FILE_FIELD and self.filename is not None):
            raise RequestError("invalid_request", f"The form has '{shown(name)}' twice.", param=shown(name))
        self._field = None if name == FILE_FIELD else name
        if self._field is None:
            self.filename = _filename(options.get(b"filename", FILE_FIELD.encode()))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._content.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _LONGEST_FIELD:
            message = f"'{shown(self._field)}' is longer than {_LONGEST_FIELD} bytes."
            raise RequestError("invalid_request", message, param=shown(self._field))

    def _end_part(self) -> None:
        if self._field is not None:
            self.fields[self._field] = self._text.decode(errors="replace")

    def _end(self) -> None:
        self._ended = True


def _filename(sent: bytes) -> str:
    """The last name of a path, as some programs send it: a label and nothing that is opened. Raises `RequestError`."""
    text = sent.decode(errors="replace").replace("\\", "/").rsplit("/", 1)[-1]
    name = "".join(character for character in text if character.isprintable()) or FILE_FIELD
    if len(name.encode()) > 255:
        raise RequestError("invalid_request", "The file's name is longer than 255 bytes.", param=FILE_FIELD)
    return name


def _malformed(why: str) -> RequestError:
    return RequestError("invalid_multipart", f"The body is no form: {why}.")
