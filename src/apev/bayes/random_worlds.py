"""Random small posteriors, to try a claim on many problems that nobody chose.

certain       every move is certain; hypotheses dispute where some of them lead, or what they pay
eliminating   moves are random where hypotheses agree and certain where they do not: evidence strikes hypotheses out
noisy         moves are random everywhere: evidence only shifts the belief, and beliefs never repeat
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from apev.bayes.mdp import Posterior, TabularMDP

Kind = Literal["certain", "eliminating", "noisy"]
Dispute = Literal["moves", "rewards", "both"]


def random_posterior(
    rng: np.random.Generator,
    *,
    states: int = 4,
    actions: int = 2,
    hypotheses: int = 3,
    kind: Kind = "noisy",
    about: Dispute = "both",
    disputed: float = 0.5,
    gamma: float = 0.9,
) -> Posterior:
    """Hypotheses that share their start (state 0) and all but a share `disputed` of their states and actions."""
    if kind not in get_args(Kind) or about not in get_args(Dispute):
        raise ValueError(f"kind {kind!r}, about {about!r}. Fix: one of {get_args(Kind)}, one of {get_args(Dispute)}.")
    S, A = states, actions
    argued = rng.random((S, A)) < disputed
    argued[rng.integers(S), rng.integers(A)] = True  # something to find out
    moves, rewards = _moves(rng, S, A, kind == "certain"), _rewards(rng, S, A)
    worlds = []
    for _ in range(hypotheses):
        own_moves = np.where(argued[..., None], _moves(rng, S, A, kind != "noisy"), moves)
        own_rewards = np.where(argued, _rewards(rng, S, A), rewards)
        transition = moves if about == "rewards" else own_moves
        worlds.append(TabularMDP.from_dense(transition, rewards if about == "moves" else own_rewards, gamma=gamma))
    return Posterior(worlds, rng.dirichlet(np.full(hypotheses, 3.0)))


def _moves(rng: np.random.Generator, S: int, A: int, certain: bool) -> np.ndarray:
    """[S, A, S]."""
    if certain:
        return np.eye(S)[rng.integers(S, size=(S, A))]
    return rng.dirichlet(np.full(S, 0.7), size=(S, A))


def _rewards(rng: np.random.Generator, S: int, A: int) -> np.ndarray:
    """[S, A], from few levels: hypotheses that argue about a reward may still agree on it."""
    return rng.choice([-1.0, 0.0, 0.5, 1.0], size=(S, A))
