"""From one page with three cells to eight full pages: stages that end on accuracy, skills weighted by error."""

from dataclasses import dataclass, replace
from typing import Final

from training.page_reader.batches import Mix


@dataclass(frozen=True, slots=True)
class Stage:
    """A mix that lasts until its skills reach `goal` (accuracy), at most `cap` steps.

    Long answers (lists, dialogues) are right only as a whole, come late, and are not waited for.
    """

    mix: Mix
    goal: float
    cap: int


STAGES: Final = (
    Stage(Mix((1,), (2, 4), 0.0, {"tint": 1}, questions=4), goal=0.9, cap=900),
    Stage(Mix((2,), (2, 5), 0.0, {"tint": 1, "order": 1}), goal=0.85, cap=500),
    Stage(
        Mix(
            (1, 2, 3),
            (3, 8),
            0.2,
            {"tint": 1, "order": 1, "link": 1, "first": 1, "dialogue": 0.25, "list": 0.4},
        ),
        goal=0.85,
        cap=1000,
    ),
    Stage(
        Mix(
            (2, 3, 4),
            (6, 10),
            0.25,
            {"tint": 1, "order": 1, "link": 1, "first": 1, "dialogue": 0.25, "list": 0.5},
        ),
        goal=0.93,
        cap=1200,
    ),
    Stage(
        Mix(
            (1, 2, 3, 4, 5, 6, 7, 8),
            (6, 10),
            0.25,
            {"tint": 1, "order": 1, "link": 1, "first": 1, "dialogue": 0.25, "list": 0.5},
            tokens=2100,
        ),
        goal=1.1,
        cap=1 << 30,
    ),
)
_MEMORY: Final = 0.95  # of the running accuracy, for each batch that asks a skill
_SETTLED: Final = 40  # steps before a stage can end


class Curriculum:
    """Keeps the running accuracy of every skill, decides when a stage ends and what to draw next."""

    def __init__(self) -> None:
        self.stage = 0
        self.accuracy: dict[str, float] = {}
        self._steps = 0

    def mix(self) -> Mix:
        """The mix of the current stage, with skills that still fail drawn up to four times as often."""
        base = STAGES[self.stage].mix
        weights = {
            skill: weight * (0.33 + min(1.0, 3 * self._error(skill)))
            for skill, weight in base.weights.items()
        }
        return replace(base, weights=weights)

    def _error(self, skill: str) -> float:
        names = ("tint", "table") if skill == "tint" else (skill,)
        return 1 - min(self.accuracy.get(name, 0.5) for name in names)

    def record(self, right: dict[str, tuple[int, int]]) -> None:
        """Take in (right, asked) per skill of one step; moves to the next stage when the current one is done."""
        for skill, (good, asked) in right.items():
            share = good / asked
            self.accuracy[skill] = _MEMORY * self.accuracy.get(skill, share) + (1 - _MEMORY) * share
        self._steps += 1
        stage = STAGES[self.stage]
        wanted = {*stage.mix.weights, "table"} - {"list", "dialogue"}
        reached = wanted <= set(self.accuracy) and min(self.accuracy[skill] for skill in wanted) >= stage.goal
        if (reached and self._steps >= _SETTLED) or self._steps >= stage.cap:
            self.stage, self._steps, self.accuracy = self.stage + 1, 0, {}
