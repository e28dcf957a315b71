"""Variables that a request gives to the checkpoint's own chat template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from engine.errors import InvalidPrompt

Options = Mapping[str, bool | int | float | str]
NO_OPTIONS: Final[Options] = MappingProxyType({})
# What is given by the conversation, or by the tokenizer itself.
_OURS: Final = frozenset(
    {"add_generation_prompt", "continue_final_message", "documents", "messages", "tools"}
)


def option_texts(options: Options, template: object) -> Iterator[str]:
    """The texts of `options`. Raises `InvalidPrompt` for a name that the template does not read: what it would not
    heed must not be given in vain."""
    for name, value in options.items():
        if name in _OURS or name.endswith("_token"):
            raise InvalidPrompt(f"chat_template_kwargs: {name!r} is not a request's to give")
        if not name.isidentifier() or re.search(rf"\b{re.escape(name)}\b", str(template)) is None:
            raise InvalidPrompt(f"chat_template_kwargs: this model's chat template reads no {name!r}")
        if isinstance(value, str):
            yield value
