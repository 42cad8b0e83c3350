"""The rows of a fleet's table: how each is rolled out from a trained agent, and what is noted of an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apev import belief as beliefs
from apev.agents.agent import Evidence
from apev.experiments.fleet.worlds import World
from apev.policy import load
from apev.rollout import GymnasiumBatch, Rollout, rollout
from apev.worlds.files import KINDS
from apev.worlds.files import load as load_kinds

SURE = 0.95
FORGETTING = (0.02, 0.1)  # a step, where machines change in the middle of an episode
REMEMBERING = ("bc-gru", "iql-gru")  # whose history may be kept over episodes


@dataclass(frozen=True)
class Played:
    """Rows of the table that one call rolls out: one, or some episodes of a machine's life."""

    rows: tuple[str, ...]
    roll: Callable[[GymnasiumBatch, np.ndarray], list[Rollout]]  # (environments, their kinds) -> a rollout a row


def played(
    row: str,
    folder: Path,
    adapt: str = "bayes",
    *,
    evidence: Evidence | None = None,
    forgetting: float | None = None,
    life: Sequence[int] = (1,),
) -> Played:
    """An agent as it is deployed; the belief, and a history, is kept over the episodes of `life`."""

    def roll(batch: GymnasiumBatch, kind: np.ndarray) -> list[Rollout]:
        policy = load(folder, adapt, evidence=evidence, forgetting=forgetting)
        told = [rollout(policy, batch, trace=True, keep_belief=number > 0) for number in range(max(life))]
        if not policy.adapts or policy.members == 1:
            for rolled in told:
                rolled.beliefs.clear()
        return [told[number - 1] for number in life]

    return Played(tuple(row if number == 1 else f"{row}, episode {number}" for number in life), roll)


def knowing(folder: Path, kinds: np.ndarray, change_at: int | None = None) -> Played:
    """Certain of the right member from the start; where a machine changes, of the other one after the first step with it."""
    member = torch.from_numpy(right_member(folder, kinds))

    def roll(batch: GymnasiumBatch, kind: np.ndarray) -> list[Rollout]:
        policy = load(folder)
        policy.behaviour = replace(policy.behaviour, word="member")  # stays where it is put
        policy.reset(num_envs=batch.num_envs)

        def certain(of: Sequence[int]) -> None:
            policy.state.log_belief = beliefs.one_hot(member[torch.as_tensor(of)], policy.members)

        def follow(steps: int, _: int) -> None:
            if change_at is not None and steps > change_at:
                certain(kinds_now(batch))

        certain(kind.tolist())
        rolled = rollout(policy, batch, trace=True, keep_belief=True, watch=follow)
        rolled.beliefs.clear()
        return [rolled]

    return Played(("knows the kind",), roll)


def kinds_now(batch: GymnasiumBatch) -> list[int]:
    """Of each environment, as it says itself."""
    return [int(env.get_wrapper_attr("kind")) for env in batch.envs]


def rows_of(name: str, folder: Path, kinds: np.ndarray, world: World) -> list[Played]:
    """What is rolled out of one trained agent, by the name of its cell."""
    if name == "ape-v":
        found = [played("adaptive", folder, life=world.life)]
        if world.change_at is not None:
            found += [played(f"adaptive, forgetting {share:g}", folder, forgetting=share) for share in FORGETTING]
            return [*found, played("adaptive, committed", folder, "commit"), played("average", folder, "uniform")]
        if (policy := load(folder)).agent.worlds is not None:
            found.append(played("adaptive, td", folder, evidence="td"))
            found.append(played("adaptive, both", folder, evidence="both"))
        found.append(played("adaptive, committed", folder, "commit"))
        found.append(played("adaptive, held", folder, "hold", life=world.life[:2]))
        words = {"average": "uniform", "random member": "random-member", "random member a step": "random-member-step"}
        words |= {f"member {k}": f"member:{k}" for k in range(policy.members)}
        return found + [played(row, folder, word) for row, word in words.items()]
    if name == "ape-v-labelled":
        found = [played("labels given", folder)]
        return found if world.tested else [*found, knowing(folder, kinds, world.change_at)]
    if name == "ape-v-printed":
        return [played("as printed", folder)]
    return [played(name, folder, life=world.life if name in REMEMBERING else (1,))]


def right_member(folder: Path, kinds: np.ndarray) -> np.ndarray:
    """[true kinds]: the member that stands for each, by the contexts they share."""
    found = load_kinds(folder)
    shared = np.zeros((int(kinds.max()) + 1, found.count), dtype=np.int64)
    for context, kind in zip(found.contexts, found.kind, strict=True):
        if kind >= 0:
            shared[kinds[context], kind] += 1
    return np.asarray(shared.argmax(1))


def knows(belief: np.ndarray) -> dict[str, int] | None:
    """The first step after which the member that is believed in at the end has 95%, and that member; None: never.

    belief: [T + 1, K], from before the first step on. It may waver later: how often is what the return shows.
    """
    member = int(belief[-1].argmax())
    sure = np.flatnonzero(belief[:, member] >= SURE)
    return {"step": int(sure[0]), "member": member} if len(sure) else None


def lines_of(
    rolled: Rollout, kind: np.ndarray, members: Sequence[int] = (), change_at: int | None = None
) -> Iterator[dict[str, Any]]:
    """What is kept of each episode; where machines change, the belief is told of before and after it.

    members: the true kind that each member stands for, where they are kinds.
    """
    for i, length in enumerate(rolled.lengths.tolist()):
        line: dict[str, Any] = {"kind": int(kind[i]), "episode": i, "return": float(rolled.returns[i]), "length": length}
        if change_at is not None:
            line["return_after"] = float(sum(reward[i] for reward in rolled.rewards[change_at:length]))
        if rolled.beliefs:
            trace = np.stack(rolled.beliefs)[: length + 1, i]  # [T + 1, K]
            best = int(trace[-1].argmax())
            line |= {"sure_of": best, "certainty": round(float(trace[-1].max()), 4)}
            before = knows(trace if change_at is None else trace[: change_at + 1])
            line["steps_to_95"] = None if before is None else before["step"]
            if change_at is not None:
                after = knows(trace[change_at:])  # at once: it has not changed its mind
                line["steps_to_95_after"] = None if after is None or after["step"] == 0 else after["step"]
            elif best < len(members):
                line["right"] = members[best] == int(kind[i])
        yield line


def kind_of_members(folder: Path, kinds: np.ndarray) -> list[int]:
    """The true kind that most contexts of each member are of; empty where members are no kinds."""
    if not (folder / KINDS).exists():
        return []
    found = load_kinds(folder)
    own = [kinds[found.contexts[found.kind == member]] for member in range(found.count)]
    return [int(np.bincount(each).argmax()) if len(each) else -1 for each in own]
