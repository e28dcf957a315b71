"""Short passages in the place of images, and questions about them, for a language model that reads no pictures.

Each prompt holds three little portraits of two passages: the first introduces someone, the second goes on with "she" or
"he" and tells what the questions ask for. Read alone, a second passage does not say of whom it speaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

_WOMEN: Final = (
    "Maria Lopez",
    "Ingrid Dahl",
    "Amara Obi",
    "Helen Ward",
    "Yuki Tanaka",
    "Clara Weiss",
    "Nadia Petrova",
)
_MEN: Final = (
    "Tom Becker",
    "Omar Haddad",
    "Luca Romano",
    "Peter Novak",
    "Samuel Reed",
    "Kenji Mori",
    "Erik Lund",
)
_JOBS: Final = (
    "chemist",
    "baker",
    "pilot",
    "gardener",
    "judge",
    "sailor",
    "teacher",
    "violinist",
    "doctor",
    "miner",
)
_TOWNS: Final = (
    "Lima",
    "Oslo",
    "Lagos",
    "Boston",
    "Kyoto",
    "Vienna",
    "Cairo",
    "Prague",
    "Dublin",
    "Athens",
    "Quito",
)
_SINCE: Final = (
    "for nine years",
    "since the flood",
    "since last spring",
    "for most of a long life",
    "since 1994",
)
_PETS: Final = ("cat", "dog", "parrot", "horse", "rabbit", "goat", "turtle")
_NAMES: Final = (
    "Pixel",
    "Biscuit",
    "Comet",
    "Ginger",
    "Marble",
    "Pepper",
    "Saturn",
    "Velvet",
    "Copper",
    "Maple",
)
_COLORS: Final = ("red", "blue", "green", "yellow", "white", "black", "purple", "orange")
_THINGS: Final = ("boat", "bicycle", "house", "coat", "car", "tent", "piano")
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PLACES: Final = (
    "the old harbour",
    "a small island",
    "the city library",
    "the north market",
    "a quiet village",
)
_INSTRUCTIONS: Final = (
    "Answer with one word.",
    "You are given notes about three people. Answer in a single word.",
    "Read the notes with care and reply as briefly as you can.",
    "You are a careful clerk. Short answers only, please.",
)
PEOPLE: Final = 3


@dataclass(frozen=True, slots=True)
class Asked:
    """`passages` in prompt order, `instruction` is the system prompt. `lead` opens the answer, so that the first token
    to generate is what was asked for: `answer`, one word."""

    instruction: str
    passages: tuple[str, ...]
    question: str
    lead: str
    answer: str


def draw_asked(number: int, seed: int) -> Asked:
    """Prompt `number` of a seed."""
    rng = np.random.default_rng([seed, number])

    def pick(words: tuple[str, ...], count: int) -> list[str]:
        return [words[i] for i in rng.permutation(len(words))[:count].tolist()]

    women = int(rng.integers(1, PEOPLE))
    people = [(name, "She", "Her") for name in pick(_WOMEN, women)]
    people += [(name, "He", "His") for name in pick(_MEN, PEOPLE - women)]
    people = [people[i] for i in rng.permutation(PEOPLE).tolist()]
    jobs, towns, pets, names, colors, things, days, places = (
        pick(words, PEOPLE) for words in (_JOBS, _TOWNS, _PETS, _NAMES, _COLORS, _THINGS, _DAYS, _PLACES)
    )
    passages: list[str] = []
    for i, (name, she, her) in enumerate(people):
        since = _SINCE[int(rng.integers(len(_SINCE)))]
        passages.append(f"{name} is a {jobs[i]} from {towns[i]} who has worked at {places[i]} {since}.")
        passages.append(
            f"{she} owns a {colors[i]} {things[i]} and keeps a {pets[i]} named {names[i]}. {her} free day is {days[i]}."
        )
    asked = int(rng.integers(PEOPLE))
    name = people[asked][0]
    question, lead, answer = [
        (f"What is the name of the {pets[asked]} of {name}?", f"The {pets[asked]} is named", names[asked]),
        (f"Which animal does {name} keep?", f"{name} keeps a", pets[asked]),
        (f"What colour is the {things[asked]} of {name}?", f"The {things[asked]} is", colors[asked]),
        (f"On which day is {name} free?", f"{name} is free on", days[asked]),
        (
            f"From which town is the owner of {names[asked]}?",
            f"The owner of {names[asked]} is from",
            towns[asked],
        ),
        (f"What does the owner of the {colors[asked]} {things[asked]} do?", "The owner is a", jobs[asked]),
    ][int(rng.integers(6))]
    return Asked(
        _INSTRUCTIONS[int(rng.integers(len(_INSTRUCTIONS)))], tuple(passages), question, lead, answer
    )
