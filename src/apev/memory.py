"""Remembering an episode: values of steps already taken come from what they led to, not from what members expected.

A member's values are a hypothesis about a whole world; a transition seen in this episode is a fact about it. The belief weighs
hypotheses against each other and leaves each as it is. Memory conditions them all on the facts, where the world is
deterministic and observations show its state:

    Q(s, a)  =  r + gamma V(s')                     where (s, a) was tried in this episode and led to s'
             =  sum_k b_k Q_k(s, b, a)              where it was not
    V(s)     =  max_a Q(s, a)

It is the backup of training within the episode's own log. A step that leads back to s is worth r + gamma V(s), which is below
V(s): it is not taken again. In a closed way no state can be worth more than the next one by itself, so that the value of the
best untried step decides: the agent leaves the loop towards it. States are observations: what looks different (a mouse that
has turned) is another state. Nothing is learned beyond the episode.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from apev.agents.agent import Agent
from apev.agents.discrete.base import ValueAgent
from apev.data.batch import Batch, Observations

SWEEPS = 400  # more than the longest way within an episode that anybody remembers
LOWEST = -1e9  # worth of a state from which nothing untried is known to be reached; infinity times 0 is no number
CHUNK = 512  # observations hashed at once


def keys_of(obs: Observations, cache: dict[int, tuple[Tensor, Tensor]]) -> list[int]:
    """A number an observation, the same for the same one: [B]. Tables of pictures are hashed once, while they stay the same."""
    total = torch.zeros(len(obs.vector), dtype=torch.int64)
    if obs.pictures is not None and obs.picture is not None:
        known = cache.get(0)
        if known is None or known[0] is not obs.pictures:
            cache[0] = known = obs.pictures, torch.cat([_hash(part.flatten(1)) for part in obs.pictures.split(CHUNK)])
        total = known[1][obs.picture.cpu()].clone()
    if obs.vector.shape[1]:
        total += _hash((obs.vector + 0.0).contiguous().view(torch.int32))  # -0.0 + 0.0 is 0.0: one state, one number
    return total.tolist()


def _hash(numbers: Tensor) -> Tensor:
    """[B, D] whole numbers -> [B] int64, exactly: sums of products that may overflow."""
    weights = torch.randint(-(2**62), 2**62, (numbers.shape[1],), generator=torch.Generator().manual_seed(0))
    return (numbers.cpu().long() * weights).sum(1)


class Memory:
    """What n running episodes have seen: states, and the steps taken between them."""

    def __init__(self, episodes: int, actions: int, members: int, gamma: float, shift: float = 0.0) -> None:
        self.gamma, self.shift = gamma, shift
        self.numbers: list[dict[int, int]] = [{} for _ in range(episodes)]  # of the states each episode has seen
        self.here = [0] * episodes
        self.over = torch.zeros(episodes, dtype=torch.bool)  # no action is needed any more
        self.following = torch.full((episodes, 16, actions), -1)  # [n, S, A]; -1: not tried
        self.reward = torch.zeros(episodes, 16, actions)
        self.ended = torch.zeros(episodes, 16, actions, dtype=torch.bool)
        self.q = torch.zeros(members, episodes, 16, actions)  # [K, n, S, A] what members expect

    def forget(self, episode: int) -> None:
        """A new episode begins in this one's place."""
        self.numbers[episode].clear()
        self.following[episode] = -1
        self.over[episode] = False

    def number(self, episode: int, key: int) -> int:
        """The number of a state, a new one if it was never seen."""
        numbers = self.numbers[episode]
        found = numbers.setdefault(key, len(numbers))
        if found == self.following.shape[1]:
            self._grow()
        return found

    def _grow(self) -> None:
        n, states, actions = self.following.shape
        self.following = torch.cat([self.following, torch.full((n, states, actions), -1)], 1)
        self.reward = torch.cat([self.reward, torch.zeros(n, states, actions)], 1)
        self.ended = torch.cat([self.ended, torch.zeros(n, states, actions, dtype=torch.bool)], 1)
        self.q = torch.cat([self.q, torch.zeros_like(self.q)], 2)

    def see(self, keys: list[int], q: Tensor) -> None:
        """The states all episodes are in now, and the members' values q [K, n, A] there."""
        self.here = [self.number(i, key) for i, key in enumerate(keys)]
        self.q[:, torch.arange(len(keys)), torch.tensor(self.here)] = q.cpu()

    def learn(self, action: Tensor, reward: Tensor, keys: list[int], ended: Tensor, active: Tensor) -> None:
        """Where the steps led; episodes that are not active are left alone."""
        then = torch.tensor([self.number(i, key) for i, key in enumerate(keys)])
        rows = active.nonzero().flatten()
        at = rows, torch.tensor(self.here)[rows], action.cpu()[rows]
        self.following[at] = then[rows]
        self.reward[at] = reward.cpu()[rows] + self.shift
        self.ended[at] = ended.cpu()[rows]
        self.over = ~active | ended.cpu()

    def values(self, mix: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Q(s, a) [n, A] where the episodes are; zeros where they are over.

        `mix` makes what the policy maximises [m, S, A] of values [K, m, S, A] of the m episodes whose numbers it is given.
        """
        live = (~self.over).nonzero().flatten()
        here = torch.tensor(self.here)
        out = torch.zeros(len(here), self.following.shape[2])
        if not len(live):
            return out
        states = max(len(self.numbers[i]) for i in live.tolist())
        expected = mix(self.q[:, live, :states], live)
        following, reward, ended = (part[live, :states] for part in (self.following, self.reward, self.ended))
        tried, then = following >= 0, following.clamp_min(0).flatten(1)
        gain = torch.where(tried, reward, -torch.inf)
        fade = torch.where(ended, 0.0, self.gamma)
        untried = torch.where(tried, -torch.inf, expected).amax(-1)  # [m, S]: the best of what is open
        value = untried
        for _ in range(SWEEPS):
            ahead = gain + fade * value.clamp_min(LOWEST).gather(1, then).view(gain.shape)
            best = torch.maximum(untried, ahead.amax(-1))
            if torch.equal(best, value):
                break
            value = best
        q = torch.where(tried, ahead, expected)
        out[live] = q[torch.arange(len(live)), here[live]]
        return out


class Remembering:
    """An agent that acts by what its running episodes have shown, and by its members where they have shown nothing."""

    def __init__(self, agent: Agent) -> None:
        if not isinstance(agent, ValueAgent):
            raise ValueError("remember=True needs values of discrete actions. Fix: an agent of the DQN family.")
        self.agent = agent
        self.memory: Memory | None = None
        self.hashes: dict[int, tuple[Tensor, Tensor]] = {}

    def clear(self) -> None:
        """All episodes are over."""
        self.memory = None

    def forget(self, rows: Tensor) -> None:
        """These episodes, bool [n], are over."""
        if self.memory is not None:
            for episode in rows.nonzero()[:, 0].tolist():
                self.memory.forget(episode)

    def share(self, other: Remembering) -> None:
        """Take over the pictures that another one has hashed."""
        self.hashes = other.hashes

    def act(
        self, seen: Observations, features: Tensor | None, greedy: bool, log_belief: Tensor, generator: torch.Generator
    ) -> Tensor:
        """The best action [n] by these values; not greedy, one drawn by them."""
        agent, belief = self.agent, log_belief.exp()
        q = agent.values(features, seen, belief)  # [K, n, A]
        if self.memory is None:
            c = agent.config
            self.memory = Memory(q.shape[1], q.shape[2], len(q), c.gamma, getattr(c, "reward_shift", 0.0))
        self.memory.see(keys_of(seen, self.hashes), q)

        def mix(every: Tensor, episodes: Tensor) -> Tensor:
            states = every.shape[2]
            weights = belief.cpu()[episodes].repeat_interleave(states, 0)
            mixed: Tensor = agent.mix(every.flatten(1, 2), weights).unflatten(0, (-1, states))
            return mixed

        values = self.memory.values(mix)
        if greedy:
            return values.argmax(-1).to(log_belief.device)
        chance = (values / agent.config.softness).softmax(-1)
        return torch.multinomial(chance, 1, generator=generator)[:, 0].to(log_belief.device)

    def learn(self, step: Batch, active: Tensor) -> None:
        """What the last action led to, in the episodes that are `active`, bool [n]."""
        assert self.memory is not None  # nothing is observed before the first action
        keys = keys_of(step.next_obs, self.hashes)
        self.memory.learn(step.action, step.reward, keys, step.terminated > 0, active)
