"""Questions about synthetic pages, with the answer that a perfect reader gives.

`make_example(rng, kind, count)` draws pages and asks one question of the given kind. The result knows the chat
messages in the OpenAI shape (`Example.messages`), the expected answer, and which cells the answer rests on.

How digits are to be read is set by the system prompt. With no system prompt, or one that says nothing about inks,
a digit is read as it stands. A prompt such as "Use black=ruby navy=jade maroon=onyx." gives each ink a reading
table, and a digit is read through the table of its ink. Because every table changes every digit, KV computed under
the default prompt holds the wrong value for each cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from demo.pages import INKS, MAX_PAGES, TINTS, Cell, Page, Place, draw_pages, resolve

KINDS: Final = (
    "single_hop",
    "two_hop",
    "page_order",
    "distractor",
    "reordered",
    "system",
    "question_first",
    "list",
    "dialogue",
)
# Kinds that say nothing with a single page.
SEVERAL_PAGES: Final = frozenset({"two_hop", "page_order", "distractor", "reordered"})

DEFAULT_SYSTEM: Final = "You read pages."
PLAIN_SYSTEMS: Final = (
    "You are a careful reader.",
    "You answer from the pages.",
    "Please read the pages with care.",
    "You help with questions about pages.",
    "Answer from the pages, please.",
    "You are a helpful assistant.",
)

VALUES: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven")
ORDINALS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
# A table reads digit d as d XOR its number: no two tables, and no table and the plain reading, ever agree.
TABLES: Final = {"ruby": 1, "onyx": 3, "jade": 5, "opal": 6, "topaz": 7}

# Question and answer; the first word of every answer is the value.
VALUE_TEMPLATES: Final = (
    ("What is {key} on {page}?", "{value} is {key} on {page}."),
    ("On {page}, what does {key} say?", "{value} is what {key} says on {page}."),
    ("Look at {page} and tell me {key}.", "{value} is {key} there."),
    ("Please read {key} from {page}.", "{value}, read from {page}."),
)
FOLLOW_UP_TEMPLATES: Final = (
    ("And {key}?", "{value} is {key} on {page}."),
    ("What about {key}?", "{value} is {key} there."),
)
LIST_TEMPLATES: Final = ("List what is on {page}.", "Read all of {page}.")

Reading = Mapping[str, str]  # ink -> table; an ink that is not named is read plainly
Message = dict[str, Any]  # one chat message in the OpenAI shape


@dataclass(frozen=True, slots=True)
class Question:
    """One turn: what is asked, the full answer, and the cells behind it (for a list, those of its first item).

    asked: the cell with the asked key on the asked page. source: the cell that shows the digit; it differs from
    `asked` when that cell is a coloured block.
    """

    text: str
    answer: str
    asked: Place
    source: Place


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its expected answer.

    pages: in prompt order. system: None stands for the default prompt. history: earlier turns of the dialogue as
    (question, answer). question_first: the text precedes the images in the first user message.
    first_shown: for every page, its index in the order in which the pages were drawn (differs from 0, 1, 2, ...
    only for `reordered`): a caller that wants the same pages in the drawn order sorts by it.
    """

    kind: str
    pages: tuple[Page, ...]
    system: str | None
    question: Question
    history: tuple[tuple[str, str], ...] = ()
    question_first: bool = False
    first_shown: tuple[int, ...] = ()

    @property
    def answer(self) -> str:
        """The expected full answer."""
        return self.question.answer

    def messages(self, urls: Sequence[str] | None = None) -> list[Message]:
        """Chat messages in the OpenAI shape; `urls[i]` is where page i can be fetched (default `page:i`)."""
        addresses = list(urls) if urls is not None else [f"page:{i}" for i in range(len(self.pages))]
        images: list[Message] = [{"type": "image_url", "image_url": {"url": url}} for url in addresses]
        if len(images) != len(self.pages):
            raise ValueError(f"{len(self.pages)} pages need as many addresses, not {len(images)}")
        turns = [*self.history, (self.question.text, None)]
        text: Message = {"type": "text", "text": turns[0][0]}
        content = [text, *images] if self.question_first else [*images, text]
        messages: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages.append({"role": "user", "content": content})
        for (_, answer), (follow_up, _) in pairwise(turns):
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": follow_up}]
        return messages


def read(cell: Cell, reading: Reading) -> str:
    """The word for a cell's digit."""
    return VALUES[cell.digit ^ TABLES.get(reading.get(cell.ink, ""), 0)]


def draw_reading(rng: np.random.Generator) -> tuple[str, Reading]:
    """A system prompt that gives every ink a table, and the reading it stands for."""
    tables = [list(TABLES)[i] for i in rng.integers(0, len(TABLES), len(INKS)).tolist()]
    reading = dict(zip(INKS, tables, strict=True))
    order = [list(INKS)[i] for i in rng.permutation(len(INKS)).tolist()]
    opening = ("", DEFAULT_SYSTEM, *PLAIN_SYSTEMS)[int(rng.integers(len(PLAIN_SYSTEMS) + 2))]
    closing = ("", " today", " please")[int(rng.integers(3))]
    words = " ".join(f"{ink}={reading[ink]}" for ink in order)
    return f"{opening} Use {words}{closing}.".lstrip(), reading


def draw_plain_system(rng: np.random.Generator) -> str | None:
    """A system prompt that changes nothing: the default three times in four."""
    return PLAIN_SYSTEMS[int(rng.integers(len(PLAIN_SYSTEMS)))] if rng.random() < 0.25 else None


def page_phrase(pages: Sequence[Page], page: int, by_order: bool) -> str:
    """How a question names a page: "the second page" or "the red page"."""
    return f"the {ORDINALS[page] if by_order else pages[page].tint} page"


def ask_value(
    rng: np.random.Generator,
    pages: Sequence[Page],
    reading: Reading,
    page: int,
    key: str,
    *,
    by_order: bool = False,
) -> Question:
    """Ask for the value of `key` on page number `page`, in one of the templates."""
    template = VALUE_TEMPLATES[int(rng.integers(len(VALUE_TEMPLATES)))]
    return _fill(template, pages, reading, page, key, by_order)


def ask_follow_up(
    rng: np.random.Generator,
    pages: Sequence[Page],
    reading: Reading,
    page: int,
    key: str,
    *,
    by_order: bool = False,
) -> Question:
    """Ask for another key of the page that the previous turn was about."""
    template = FOLLOW_UP_TEMPLATES[int(rng.integers(len(FOLLOW_UP_TEMPLATES)))]
    return _fill(template, pages, reading, page, key, by_order)


def ask_list(
    rng: np.random.Generator, pages: Sequence[Page], reading: Reading, page: int, *, by_order: bool = False
) -> Question:
    """Ask for everything on a page; the answer runs from the top left to the bottom right: "A four, C two." """
    found = [(cell.key, *resolve(pages, page, cell.key)) for cell in pages[page].cells]
    answer = ", ".join(f"{key} {read(cell, reading)}" for key, _, cell in found) + "."
    template = LIST_TEMPLATES[int(rng.integers(len(LIST_TEMPLATES)))]
    text = template.format(page=page_phrase(pages, page, by_order))
    return Question(text, answer, Place(page, pages[page].cells[0].position), found[0][1])


def _fill(
    template: tuple[str, str], pages: Sequence[Page], reading: Reading, page: int, key: str, by_order: bool
) -> Question:
    source, cell = resolve(pages, page, key)
    asked = pages[page].cell(key)
    assert asked is not None
    words = {"key": key, "page": page_phrase(pages, page, by_order), "value": read(cell, reading)}
    question, answer = (part.format(**words) for part in template)
    return Question(question, answer, Place(page, asked.position), source)


def make_example(rng: np.random.Generator, kind: str, count: int) -> Example:
    """Draw `count` pages and one question of `kind`. Equal generators give equal examples.

    Raises ValueError for an unknown kind, a count outside 1..8, or one page where the kind needs several.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}")
    if not (2 if kind in SEVERAL_PAGES else 1) <= count <= MAX_PAGES:
        raise ValueError(f"{kind} cannot be asked about {count} pages")
    pages = draw_pages(
        rng,
        count,
        shared_keys=kind in {"two_hop", "page_order", "distractor"},
        links=0.5 if kind == "two_hop" else 0,
    )
    first_shown = tuple(range(count))
    if kind == "reordered":
        first_shown = _reorder(rng, count)
        pages = tuple(pages[i] for i in first_shown)
    system, reading = draw_reading(rng) if kind == "system" else (draw_plain_system(rng), {})
    by_order = kind == "page_order" or (
        kind in {"reordered", "list", "dialogue", "question_first"} and rng.random() < 0.3
    )
    page, key = _draw_cell(rng, pages, linked=kind == "two_hop")
    if kind == "list":
        question = ask_list(rng, pages, reading, page, by_order=by_order)
    else:
        question = ask_value(rng, pages, reading, page, key, by_order=by_order)
    history: tuple[tuple[str, str], ...] = ()
    if kind == "dialogue":
        history = ((question.text, question.answer),)
        others = [cell.key for cell in pages[page].cells if cell.key != key]
        key = others[int(rng.integers(len(others)))]
        question = ask_follow_up(rng, pages, reading, page, key, by_order=by_order)
    return Example(kind, pages, system, question, history, kind == "question_first", first_shown)


def _draw_cell(rng: np.random.Generator, pages: Sequence[Page], linked: bool) -> tuple[int, str]:
    """A random (page, key); with `linked`, one whose cell is a coloured block where there is any."""
    every = [(i, cell) for i, page in enumerate(pages) for cell in page.cells]
    chosen = [(i, cell) for i, cell in every if cell.same_as] if linked else []
    page, cell = (chosen or every)[int(rng.integers(len(chosen or every)))]
    return page, cell.key


def _reorder(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    """A permutation that moves at least one page."""
    while True:
        order = tuple(rng.permutation(count).tolist())
        if order != tuple(range(count)):
            return order


def vocabulary() -> list[str]:
    """Every word that prompts and answers can contain, once, in a fixed order (punctuation not included)."""
    sentences = [
        DEFAULT_SYSTEM,
        *PLAIN_SYSTEMS,
        "system user assistant Use today please",
        *(part for template in (*VALUE_TEMPLATES, *FOLLOW_UP_TEMPLATES) for part in template),
        *LIST_TEMPLATES,
        "the page",
    ]
    words = [word.strip(".,?") for sentence in sentences for word in sentence.split() if "{" not in word]
    assignments = [f"{ink}={table}" for ink in INKS for table in TABLES]
    from_pages = [*"ABCDEFGHIJKL", *TINTS, *VALUES, *ORDINALS, *INKS, *TABLES]
    return list(dict.fromkeys([*words, *from_pages, *assignments]))
