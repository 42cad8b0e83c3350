"""What a user deploys: an agent, a belief filter, and the state of the running episodes.

    policy = apev.load("runs/doors")
    policy.reset()
    action = policy.act(obs)                              # does not learn from anything
    policy.observe(reward, next_obs, terminated)          # Bayes' rule; never picks an action
    policy.belief                                         # [num_envs, K], for people and plots

One word decides what the belief does, `adapt`: "bayes" unless another is given (see `behaviour.py`).

`remember=True` also takes the values of steps already taken in an episode from what they led to (see `memory.py`): for worlds
that are deterministic and show their state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from apev import belief as beliefs
from apev import inputs
from apev.agents import Agent
from apev.agents.agent import Evidence
from apev.behaviour import ODDS, Adapt, behaviour_of
from apev.data.batch import Batch, Observations
from apev.features import Features
from apev.memory import Remembering
from apev.stored import read_policy, write_policy

if TYPE_CHECKING:
    from apev.sb3 import AdaptingModel


@dataclass
class PolicyState:
    """The running episodes of a policy: what it believes, what it saw last and what it did."""

    log_belief: Tensor  # [n, K]
    obs: Observations | None = None
    action: Tensor | None = None
    waiting: Tensor | None = None  # [n] whether the last action's outcome is still to be observed; None: nowhere
    trusted: Tensor | None = None  # [n] the member a committed policy acts on
    history: Tensor | None = None  # [n, M] what the agent keeps of these episodes, where it keeps something
    asked: bool = False  # the number of environments was given, not found out from the first observations


class Policy:
    """A deployable stateful policy over one or many environments."""

    def __init__(self, agent: Agent, adapt: Adapt = "bayes", *, seed: int = 0, remember: bool = False) -> None:
        self.agent, self.adapt, self.remember = agent, adapt, remember
        self.behaviour = behaviour_of(adapt, agent.members)
        self._memory = Remembering(agent) if remember else None
        self.filter = agent.filter
        self._rng = torch.Generator().manual_seed(seed)
        self._draws = torch.Generator(device=agent.device).manual_seed(seed)  # what the agent draws when it is asked
        self._features = Features(agent)
        self._single = True
        self._model: AdaptingModel | None = None  # what `predict` speaks through
        self.logged: dict[str, Any] | None = None  # what the episodes of its log returned
        self.source: dict[str, Any] = {}  # of its log, as far as a run keeps it
        self.state = PolicyState(self.start_belief(1))

    @property
    def members(self) -> int:
        """K."""
        return self.agent.members

    @property
    def adapts(self) -> bool:
        """Whether the belief follows the evidence."""
        return self.behaviour.follows

    @property
    def waits(self) -> bool:
        """Whether an action's outcome is still to be observed."""
        waiting = self.state.waiting
        return waiting is not None and bool(waiting.any())

    @property
    def belief(self) -> np.ndarray:
        """Weights [num_envs, K] ([K] for a single environment)."""
        weights = self.state.log_belief.exp().cpu().numpy()
        return weights[0] if self._single else weights

    def reset(self, mask: Any = None, *, num_envs: int | None = None, keep_belief: bool = False) -> None:
        """Start new episodes: all of them, or those where `mask` is True.

        `keep_belief` carries the belief over, and the history of agents that keep one: right when the world stays the same
        (a robot), wrong when each episode is a new one (a new photograph).
        """
        old = self.state
        count = num_envs if num_envs is not None else len(old.log_belief)
        if count < 1:
            raise ValueError(f"num_envs is {count}. Fix: at least 1.")
        if mask is None:
            kept = keep_belief and count == len(old.log_belief)
            asked = num_envs is not None
            self.state = PolicyState(old.log_belief if kept else self.start_belief(count), asked=asked)
            self.state.history = old.history if kept else None
            self._single = self._single and not asked
            if self._memory is not None:
                self._memory.clear()
            return
        rows = inputs.flags("mask", mask, len(old.log_belief), old.log_belief.device)
        if not keep_belief:
            old.log_belief = torch.where(rows[:, None], self.start_belief(len(rows)), old.log_belief)
            fresh = self.agent.start_history(len(rows))
            if old.history is not None and fresh is not None:
                old.history = torch.where(rows[:, None], fresh, old.history)
        if old.trusted is not None and not (keep_belief and self.behaviour.word == "commit"):
            old.trusted = torch.where(rows, beliefs.most_believed(old.log_belief), old.trusted)
        if old.waiting is not None:  # the step that was under way belongs to an episode that is over
            old.waiting = old.waiting & ~rows
        if self._memory is not None:
            self._memory.forget(rows)

    @property
    def action_names(self) -> tuple[str, ...]:
        """What the log calls the discrete actions 0, 1, ...: `policy.action_names[action]`; empty where it has no words."""
        return self.agent.layout.action_names

    @property
    def observation_names(self) -> tuple[str, ...]:
        """What the log calls the entries of the observation; empty where it has no words."""
        return self.agent.layout.observation_names

    def act(self, obs: Any, deterministic: bool = True, *, mask: Any = None) -> Any:
        """The action for what is seen now: an array for many environments; for one an int, or [A] where they are continuous.

        mask: bool [A], or [num_envs, A]: the discrete actions that may be chosen now; all unless given.
        """
        seen, single = self._read(obs)
        count = seen.vector.shape[0]
        seen = seen if mask is None else replace(seen, allowed=self._allowed("mask", mask, count))
        inputs.observed("the observation", seen.vector)
        state = self.state
        if state.log_belief.shape[0] != count:
            if state.obs is not None or state.asked:
                raise ValueError(
                    f"{count} observations, but beliefs of {len(state.log_belief)} running episodes. "
                    f"Fix: policy.reset(num_envs={count}) where new ones begin."
                )
            state = self.state = PolicyState(self.start_belief(count))
        self._single = single
        if self.behaviour.word == "random-member-step":
            state.log_belief = self._random_member(count)
        features = self._features.of(seen)
        if state.history is None:
            state.history = self.agent.start_history(count)
        seen = seen if state.history is None else replace(seen, history=state.history)
        state.obs = seen
        log_belief = self._committed(state) if self.behaviour.word in ("commit", "hold") else state.log_belief
        if self._memory is not None:
            state.action = self._memory.act(seen, features, deterministic, log_belief, self._rng)
        elif self.behaviour.averages:
            state.action = self.agent.act_average(seen, log_belief, deterministic, features, self._draws)
        else:
            state.action = self.agent.act(seen, log_belief, deterministic, features, self._draws)
        state.waiting = torch.ones(count, dtype=torch.bool, device=log_belief.device)
        actions = state.action.cpu().numpy()
        if not self._single:
            return actions
        return actions[0] if self.agent.layout.action_dim else int(actions[0])

    def observe(
        self, reward: Any, next_obs: Any, terminated: Any, *, action: Any = None, active: Any = None, mask: Any = None
    ) -> None:
        """Take in what the last action led to, once.

        `action` is what was really executed, where a safety layer replaced ours. Rows where `active` is False are left alone,
        and so are those that were reset since. `mask` says which actions may be taken in `next_obs`, as for `act`. A step that
        is refused leaves the belief as it was.
        """
        state = self.state
        if state.obs is None or state.action is None:
            raise RuntimeError("observe() before act(): there is no step to learn from. Fix: call act(obs) first.")
        if state.waiting is None or not self.waits:
            raise RuntimeError("observe() again without act(): this step has counted already. Fix: act(obs) comes between.")
        if not self.adapts and not self.remember and state.history is None:
            state.waiting = None
            return
        device, count, layout = state.log_belief.device, len(state.log_belief), self.agent.layout
        used: Tensor | None = None  # [n] rows that count; None: the only environment, whose step it must be
        if active is not None:
            used = state.waiting & inputs.flags("active", active, count, device)
        elif count > 1:
            used = state.waiting
        after, _ = self._read(next_obs)
        if len(after.vector) != count:
            raise ValueError(f"next_obs has {len(after.vector)} entries for {count} environments.")
        ended = inputs.flags("terminated", terminated, count, device, used)
        if mask is not None:  # where the episode is over or not looked at, nothing needs to be allowed
            free = ended if used is None else ended | ~used
            after = replace(after, allowed=self._allowed("mask", mask, count, free))
        step = Batch(
            obs=state.obs,
            action=state.action if action is None else inputs.actions(action, count, layout, device, used),
            reward=inputs.column("reward", reward, count, device, used),
            next_obs=replace(after, vector=inputs.observed("next_obs", after.vector, used)),
            terminated=ended.float(),
            group=torch.zeros(count, dtype=torch.int64, device=device),
        )
        log_belief, history = state.log_belief, state.history
        if self.adapts and self.members > 1:  # of one member there is nothing to believe or not
            joined, features = self._features.of_step(step)
            evidence = self.agent.log_evidence(joined, log_belief, features, self._draws)
            log_belief = self.filter.weigh(log_belief, evidence, used)
            told = evidence + log_belief
            if not bool(torch.isfinite(told if used is None else torch.where(used[:, None], told, 0.0)).all()):
                raise ValueError(
                    "this step makes members' errors overflow. Fix: repair reward and next_obs, or check their units."
                )
        if history is not None:
            taken = self.agent.take_in(history, step)
            history = taken if used is None else torch.where(used[:, None], taken, history)
        if self._memory is not None:
            self._memory.learn(step, (state.waiting if used is None else used).cpu())
        # last: whatever is refused above has changed nothing
        state.log_belief, state.history, state.waiting = log_belief, history, None

    def _committed(self, state: PolicyState) -> Tensor:
        """The belief acted on, [n, K]: certain of one member, until another is ODDS times as believable, or held throughout."""
        now, best = state.log_belief, beliefs.most_believed(state.log_belief)
        if state.trusted is None:
            state.trusted = best
        if self.behaviour.word == "hold":
            return beliefs.one_hot(state.trusted, self.members)
        rows = torch.arange(len(best), device=best.device)
        convinced = now[rows, best] - now[rows, state.trusted] > math.log(ODDS)
        state.trusted = torch.where(convinced, best, state.trusted)
        return beliefs.one_hot(state.trusted, self.members)

    def predict(
        self,
        observation: Any,
        state: PolicyState | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, PolicyState]:
        """Act as stable-baselines3's recurrent policies do: returns the action and the state to hand back next time.

        Rewards are no part of that interface: call `observe` after the environment's step (it updates the very state that
        was returned), or the belief stays where it is. `apev.as_sb3` does so by itself.
        """
        from apev.sb3 import AdaptingModel

        self._model = self._model or AdaptingModel(self)
        return self._model.predict(observation, state, episode_start, deterministic)

    def with_adapt(self, adapt: Adapt, *, seed: int = 0, remember: bool | None = None) -> Policy:
        """The same agent with another behaviour of the belief; pictures it has seen stay encoded."""
        other = Policy(self.agent, adapt, seed=seed, remember=self.remember if remember is None else remember)
        other.filter = self.filter
        other.logged, other.source = self.logged, self.source
        other.share_encodings(self)
        return other

    def follow(self, evidence: Evidence | None = None, forgetting: float | None = None) -> None:
        """Let the belief follow another kind of evidence from now on, or forget; see `apev.load`."""
        if evidence is not None or forgetting is not None:
            self.agent.follow(evidence=evidence, forgetting=forgetting)
            self.filter = self.agent.filter

    def share_encodings(self, other: Policy) -> None:
        """Take over the pictures that another policy of the same networks has encoded."""
        self._features = other._features
        if self._memory is not None and other._memory is not None:
            self._memory.share(other._memory)

    # ------------------------------------------------------------------ files

    def save(self, folder: str | Path, *, update: int | None = None) -> Path:
        """Write `policy.json` and `weights.safetensors`; `apev.load` reads them. The behaviour of the belief is not stored."""
        write_policy(Path(folder), self.agent, update=update, logged=self.logged)
        return Path(folder)

    def export(self, folder: str | Path, adapt: Adapt | None = None) -> Path:
        """Write `act.onnx`, `observe.onnx` and `about.json`, which run without torch and apev (see `apev.export`).

        adapt: another behaviour of the belief than this policy's own: "bayes", "uniform", "member:2", or weights.
        """
        from apev.export import export

        return export(self if adapt is None else self.with_adapt(adapt), folder)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        adapt: Adapt = "bayes",
        *,
        device: str = "cpu",
        seed: int = 0,
        remember: bool = False,
        evidence: Evidence | None = None,
        forgetting: float | None = None,
    ) -> Policy:
        """Load a trained policy: `apev.load("runs/doors")`.

        folder: of a run, or of a policy alone. Of a run that was stopped, it is the policy of the last checkpoint.
        adapt: what its belief does, a word of `apev.behaviour`.
        remember: take the values of steps already taken in an episode from what they led to, for worlds that are deterministic
            and show their state (discrete actions).
        evidence: what the belief follows, "td", "model" or "both", instead of what the policy was trained with.
        forgetting: share of the log-belief lost at each step, where machines change in the middle of an episode: 0.02, say.
        """
        stored = read_policy(folder)
        stored.agent.to_device(device)
        policy = cls(stored.agent, adapt, seed=seed, remember=remember)
        policy.follow(evidence, forgetting)
        policy.logged, policy.source = stored.logged, stored.source
        return policy

    # ------------------------------------------------------------------ internals

    def start_belief(self, count: int) -> Tensor:
        """Log-beliefs at the start of an episode, [count, K]."""
        device = self.agent.device
        if self.behaviour.word.startswith("random-member"):
            return self._random_member(count)
        if self.behaviour.weights is None:
            prior = self.agent.prior() if self.behaviour.follows else None
            alike = beliefs.uniform(self.members, count, device)
            return alike if prior is None else beliefs.normalise(prior).expand(count, -1)
        weights = torch.tensor(self.behaviour.weights, device=device)
        if self.behaviour.word == "member":
            return beliefs.one_hot(weights.argmax().expand(count), self.members)
        return beliefs.normalise(weights.clamp_min(1e-30).log()).expand(count, -1)

    def _random_member(self, count: int) -> Tensor:
        member = torch.randint(self.members, (count,), generator=self._rng)
        return beliefs.one_hot(member.to(self.agent.device), self.members)

    def _allowed(self, name: str, mask: Any, count: int, free: Tensor | None = None) -> Tensor:
        """Masks [n, A] that allow something in every row, or everything in rows that are `free` of them."""
        if self.remember:
            raise ValueError("remember=True knows no masks. Fix: load the policy without it.")
        if not self.agent.takes_masks or not self.agent.layout.num_actions:
            raise ValueError("this agent takes no masks. Fix: leave mask out, or train ape-v, dqn, lcb, rem, cql, iql or bc.")
        return inputs.masks(name, mask, count, self.agent.layout, self.agent.device, free)

    def _read(self, obs: Any) -> tuple[Observations, bool]:
        """Observations as the networks read them, and whether they were those of a single environment."""
        if isinstance(obs, Observations):
            return obs, False
        return inputs.read(obs, self.agent.layout, self.state.log_belief.device)


load = Policy.load
