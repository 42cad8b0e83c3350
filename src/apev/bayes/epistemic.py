"""The epistemic POMDP (the paper, Appendix A): each episode takes place in one hypothesis, and the agent is not told which.

    hidden state   (s, M)                           stays in M for the whole episode
    transition     P((s', M') | (s, M), a) = [M' = M] P_M(s' | s, a)
    observation    O((s, M)) = s
    start          rho((s, M)) = P(M | D) rho_M(s)

For any policy, the return in this one POMDP is the Bayesian objective of the posterior. `EpistemicPOMDP` is that tuple as
arrays, `EpistemicEnv` the same as a Gymnasium environment, and `belief_update` the exact Bayes filter of Proposition 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import scipy.sparse as sp
from gymnasium import spaces
from numpy.typing import ArrayLike

from apev.bayes.mdp import BoolArray, FloatArray, IntArray, Posterior


def belief_update(
    posterior: Posterior, belief: ArrayLike, state: int, action: int, reward: float, next_state: int, terminated: bool = False
) -> FloatArray:
    """b' [K], proportional to p_k(r, s' | s, a) b_k. That the episode ended, or went on, is part of what was seen."""
    weights = np.asarray(belief, dtype=np.float64) * posterior.likelihood(state, action, reward, next_state, terminated)
    total = weights.sum()
    if not total > 0:
        end = "ended the episode" if terminated else "went on"
        raise ValueError(
            f"no hypothesis that is still believed in allows action {action} in state {state} to give reward {reward} and "
            f"state {next_state}, and that it {end}. Fix: pass what the environment returned, in order."
        )
    updated: FloatArray = weights / total
    return updated


def relative_belief(posterior: Posterior, belief: ArrayLike) -> FloatArray:
    """The paper's b(h) [K] = P(M | h, D) / P(M | D): 1 everywhere before anything was seen (0 for weights of 0)."""
    held = posterior.prior > 0
    b = np.asarray(belief, dtype=np.float64)
    return np.divide(b, posterior.prior, out=np.zeros(len(posterior)), where=held)


@dataclass(frozen=True, eq=False)
class EpistemicPOMDP:
    """Appendix A as arrays. Hidden state k * S + s is state s of hypothesis k."""

    transition: Any  # sparse [K * S * A, K * S], row (k * S + s) * A + a; terminal states are followed by nothing
    reward: FloatArray  # [K * S, A] mean reward
    observation: IntArray  # [K * S] what the agent sees: s
    hypothesis: IntArray  # [K * S] what it does not: k
    terminal: BoolArray  # [K * S]
    start: FloatArray  # [K * S]
    gamma: float

    @classmethod
    def of(cls, posterior: Posterior) -> EpistemicPOMDP:
        """Lay the hypotheses side by side."""
        S, A, K = posterior.num_states, posterior.num_actions, len(posterior)
        rows, columns, chances = [], [], []
        for k, mdp in enumerate(posterior.mdps):
            s, a, m = np.nonzero((mdp.probability > 0) & ~mdp.terminal[:, None, None])
            rows.append((k * S + s) * A + a)
            columns.append(k * S + mdp.next_state[s, a, m])
            chances.append(mdp.probability[s, a, m])
        place = (np.concatenate(rows), np.concatenate(columns))
        transition = sp.csr_array((np.concatenate(chances), place), shape=(K * S * A, K * S))
        return cls(
            transition,
            np.concatenate([np.where(m.terminal[:, None], 0.0, m.expected_reward) for m in posterior.mdps]),
            np.tile(np.arange(S), K),
            np.repeat(np.arange(K), S),
            posterior.terminal.reshape(-1),
            (posterior.prior[:, None] * posterior.start).reshape(-1),
            posterior.gamma,
        )


class EpistemicEnv(gymnasium.Env[Any, Any]):
    """One episode, one hypothesis, drawn from the posterior at each reset. The observation is the state's number.

    `info["oracle_belief"]` is the exact belief, `info["hypothesis"]` the truth, which no agent may look at.
    `reset(options={"hypothesis": k, "state": s})` chooses the world or the start; otherwise both are random.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own type)

    def __init__(self, posterior: Posterior, horizon: int | None = None, render_mode: str | None = None) -> None:
        if render_mode is not None:
            raise ValueError(f"render_mode is {render_mode!r}: there is nothing to draw. Fix: None.")
        if horizon is not None and horizon < 1:
            raise ValueError(f"horizon is {horizon}. Fix: at least 1 step, or None for no limit.")
        self.posterior, self.horizon, self.render_mode = posterior, horizon, render_mode
        self.observation_space = spaces.Discrete(posterior.num_states)
        self.action_space = spaces.Discrete(posterior.num_actions)
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.int64, dict[str, Any]]:
        """A new hypothesis from the posterior, and a first state from its start."""
        super().reset(seed=seed)
        options = options or {}
        if unknown := set(options) - {"hypothesis", "state"}:
            raise ValueError(f'options: {sorted(unknown)} is not known. Fix: "hypothesis" and "state" are.')
        drawn = int(self.np_random.choice(len(self.posterior), p=self.posterior.prior))
        self.hypothesis = int(options.get("hypothesis", drawn))
        if not 0 <= self.hypothesis < len(self.posterior):
            raise ValueError(f"options: hypothesis {self.hypothesis}. Fix: one from 0 to {len(self.posterior) - 1}.")
        first = int(self.np_random.choice(self.posterior.num_states, p=self.posterior.start[self.hypothesis]))
        self.state = int(options.get("state", first))
        if not 0 <= self.state < self.posterior.num_states or self.posterior.terminal[self.hypothesis, self.state]:
            raise ValueError(f"options: an episode cannot start in state {self.state}. Fix: a state that is not terminal.")
        if "state" in options:  # put there by hand, it only says that the episode has not ended
            alive = self.posterior.prior * ~self.posterior.terminal[:, self.state]
            self.belief = alive / alive.sum()
        else:
            self.belief = self.posterior.start_belief(self.state)
        self.time, self._over = 0, False
        return np.int64(self.state), self._info()

    def step(self, action: int) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """One step in the hypothesis of this episode; the belief in `info` includes it."""
        if self._over:
            raise RuntimeError("the episode is over, or has not begun. Fix: call reset() before step().")
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r}. Fix: a number from 0 to {self.posterior.num_actions - 1}.")
        mdp, s, a = self.posterior.mdps[self.hypothesis], self.state, int(action)
        m = int(self.np_random.choice(mdp.probability.shape[2], p=mdp.probability[s, a]))
        self.state, reward = int(mdp.next_state[s, a, m]), float(mdp.reward[s, a, m])
        terminated = bool(mdp.terminal[self.state])
        self.belief = belief_update(self.posterior, self.belief, s, a, reward, self.state, terminated)
        self.time += 1
        truncated = not terminated and self.horizon is not None and self.time >= self.horizon
        self._over = terminated or truncated
        return np.int64(self.state), reward, terminated, truncated, self._info()

    def _info(self) -> dict[str, Any]:
        return {"hypothesis": self.hypothesis, "oracle_belief": self.belief.copy()}
