"""What the belief of a running policy does, in a word.

"bayes"               follow the evidence by Bayes' rule, from the agent's prior on: uniform, unless it has another
"commit"              the same, but act on one member alone until another is ODDS times as believable: where changing one's
                      mind in mid-stride is a risk of its own
"hold"                the same, but act on one member throughout an episode, the most believed at its start: with a belief that
                      is kept over episodes (`reset(keep_belief=True)`), where no change of mind in mid-stride is safe
"uniform"             stay uniform: the average of the members
"member:2"            trust member 2 alone
"random-member"       trust one member an episode, drawn at its start
"random-member-step"  trust one member a step
[0.5, 0.2, 0.3]       stay at these weights, one a member: their weighted average
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Adapt = str | Sequence[float]
WORDS = ("bayes", "commit", "hold", "uniform", "member:K", "random-member", "random-member-step")
ODDS = 20.0  # at which a committed policy changes its mind: 95% against 5%


@dataclass(frozen=True)
class Behaviour:
    """How a belief starts and whether it moves."""

    word: str
    weights: tuple[float, ...] | None = None  # where the belief stays; None: it is uniform, or drawn

    @property
    def follows(self) -> bool:
        """Whether the belief follows the evidence."""
        return self.word in ("bayes", "commit", "hold")

    @property
    def averages(self) -> bool:
        """Whether the policy is the average of its members, and not one of them at a time."""
        return self.word in ("uniform", "weights")


def behaviour_of(adapt: Any, members: int) -> Behaviour:
    """The behaviour that a word or K weights mean for a policy of K members."""
    if isinstance(adapt, str):
        word, _, number = adapt.partition(":")
        if word == "member" and number.isdigit():
            if int(number) >= members:
                raise ValueError(f"adapt={adapt!r} names no member. Fix: member:0 to member:{members - 1}.")
            return Behaviour("member", tuple(float(k == int(number)) for k in range(members)))
        if adapt in WORDS and word != "member":
            return Behaviour(adapt)
        raise ValueError(f"adapt={adapt!r} is unknown. Fix: one of {', '.join(WORDS)}, or {members} weights.")
    if isinstance(adapt, bool | int):
        raise ValueError(f"adapt={adapt!r} is no word. Fix: one of {', '.join(WORDS)}, or {members} weights.")
    weights = tuple(float(weight) for weight in adapt)
    if len(weights) != members or not all(0 <= weight < float("inf") for weight in weights) or not sum(weights) > 0:
        raise ValueError(f"a belief that stays is {members} weights >= 0, got {list(weights)}.")
    return Behaviour("weights", weights)
