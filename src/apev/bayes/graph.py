"""The belief MDP of a posterior: all pairs of a state and a belief that can be reached, and how they are linked.

    node      (s, b)       where the agent is, and what it then believes about the K hypotheses
    outcome   (s', r, terminated) of taking a in s: seen with probability sum_k b_k p_k(outcome | s, a)
    edge      (s, b), a -> (s', b')   with b'_k proportional to b_k p_k(outcome | s, a)

Nodes are found breadth first, a whole layer at a time. Many outcomes are the same evidence (a move that all hypotheses
agree on changes no belief), so that b' is computed once for each pair of a belief and a kind of evidence; and a table
[beliefs, S] says which node a pair is, without sorting or hashing the nodes: the cost is linear in their number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from apev.bayes.mdp import REWARD_DIGITS, BoolArray, FloatArray, IntArray, Posterior

RESOLUTION = 1e-12  # beliefs whose entries all agree to this are one belief
MAX_NODES = 2_000_000
_TABLE = 200_000_000  # entries of the table [beliefs, S], 4 bytes each


class BeliefPolicy(Protocol):
    """A policy pi(a | s, b): states [N], beliefs [N, K] and the step they occur at -> probabilities [N, A]."""

    def __call__(self, states: IntArray, beliefs: FloatArray, time: int) -> ArrayLike:
        """Probabilities of the actions, one row a pair."""
        ...


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What may be seen after each state and action, by any hypothesis. Sorted by state, then action."""

    first: IntArray  # [S + 1] where the outcomes of each state begin
    action: IntArray  # [O]
    next_state: IntArray  # [O]
    reward: FloatArray  # [O]
    terminated: BoolArray  # [O]
    likelihood: FloatArray  # [O, K] p_k(outcome | s, a)
    kind: IntArray  # [O] which evidence it is
    evidence: FloatArray  # [U, K] the kinds: likelihoods up to a factor

    @classmethod
    def of(cls, posterior: Posterior) -> Outcomes:
        """Collect them from all hypotheses."""
        S, A, K = posterior.num_states, posterior.num_actions, len(posterior)
        columns: list[tuple[IntArray, ...]] = []
        weights, rewards = [], []
        for k, mdp in enumerate(posterior.mdps):
            possible = (mdp.probability > 0) & ~mdp.terminal[:, None, None]
            s, a, m = np.nonzero(possible)
            following = mdp.next_state[s, a, m]
            columns.append((s * A + a, following, mdp.terminal[following].astype(np.int64), np.full(len(s), k)))
            weights.append(mdp.probability[s, a, m])
            rewards.append(np.round(mdp.reward[s, a, m], REWARD_DIGITS))
        sa, following, ended, member = (np.concatenate(c) for c in zip(*columns, strict=True))
        levels, level = np.unique(np.concatenate(rewards), return_inverse=True)
        key = ((sa * S + following) * len(levels) + level) * 2 + ended
        _, one, which = np.unique(key, return_index=True, return_inverse=True)
        likelihood = np.zeros((len(one), K))
        np.add.at(likelihood, (which, member), np.concatenate(weights))
        scaled = np.round(likelihood / likelihood.max(1, keepdims=True), 14)
        evidence, kind = np.unique(scaled, axis=0, return_inverse=True)
        sa, following, ended = sa[one], following[one], ended[one].astype(np.bool_)
        first = np.searchsorted(sa, np.arange(S + 1) * A)
        return cls(first, sa % A, following, levels[level[one]], ended, likelihood, kind.reshape(-1), evidence)


@dataclass(frozen=True, eq=False)
class BeliefGraph:
    """Nodes, and for each of the N * A rows (node, action) its edges. Nodes are in the order they were found."""

    posterior: Posterior
    outcomes: Outcomes
    states: IntArray  # [N]
    belief_of: IntArray  # [N] which of the beliefs
    beliefs: FloatArray  # [B, K]
    depth: IntArray  # [N] fewest steps from the start
    root: IntArray  # [n] nodes where episodes start
    root_weight: FloatArray  # [n] how often
    reward: FloatArray  # [N, A] expected next reward
    ending: FloatArray  # [N, A] chance that the episode ends
    first: IntArray  # [N * A + 1] where the edges of each row begin
    target: IntArray  # [E] node an edge leads to; outcomes that end the episode have no edge
    chance: FloatArray  # [E] its probability under the node's belief
    outcome: IntArray  # [E] which outcome it is
    _keys: dict[bytes, int] = field(repr=False)
    _table: Any = field(repr=False)  # [B, S] node, or -1

    def __len__(self) -> int:
        return len(self.states)

    @property
    def node_beliefs(self) -> FloatArray:
        """[N, K]: the belief of each node."""
        return self.beliefs[self.belief_of]

    @property
    def matrix(self) -> Any:
        """Sparse [N * A, N]: the chance of each next node; what misses to 1 is `ending`."""
        return self.as_matrix(self.chance)

    def as_matrix(self, weights: FloatArray) -> Any:
        """Sparse [N * A, N] with one number an edge."""
        return sp.csr_array((weights, self.target, self.first), shape=(len(self.first) - 1, len(self)))

    def hypothesis(self, k: int) -> tuple[Any, FloatArray, FloatArray]:
        """The same nodes were hypothesis `k` the truth: transitions [N * A, N] sparse, mean rewards and endings [N, A]."""
        mdp = self.posterior.mdps[k]
        transition = self.as_matrix(self.outcomes.likelihood[self.outcome, k])
        return transition, mdp.expected_reward[self.states], mdp.ending[self.states]

    def find(self, state: int, belief: ArrayLike) -> int:
        """The node of a state and a belief."""
        b = np.asarray(belief, dtype=np.float64)
        if b.shape != (len(self.posterior),) or abs(b.sum() - 1) > 1e-6:
            raise ValueError(f"belief {b} is not one over {len(self.posterior)} hypotheses. Fix: weights that sum to 1.")
        found = self._keys.get(_key(b), -1)
        if found < 0:  # rounded elsewhere on its way here: take the nearest, if it is as good as equal
            distance = np.abs(self.beliefs - b).max(1)
            found = int(distance.argmin()) if distance.min() < 1e-9 else -1
        node = int(self._table[found, state]) if found >= 0 else -1
        if node < 0:
            raise KeyError(
                f"state {state} with belief {np.round(b, 4).tolist()} cannot be reached from the start. "
                "Fix: follow an episode with belief_update(), beginning with posterior.start_belief(state)."
            )
        return node

    def find_all(self, states: IntArray, beliefs: FloatArray) -> IntArray:
        """[N]: the nodes of many pairs."""
        return np.array([self.find(int(s), b) for s, b in zip(states, beliefs, strict=True)], dtype=np.int64)


def build_graph(
    posterior: Posterior,
    *,
    depth: int | None = None,
    policy: BeliefPolicy | None = None,
    everywhere: bool = False,
    max_nodes: int = MAX_NODES,
) -> BeliefGraph:
    """All (state, belief) nodes within `depth` steps of the start, or all there are; only those `policy` visits, if given.

    `everywhere` also takes every belief that turns up in every state, which closes the graph under swapping states.
    """
    outcomes = Outcomes.of(posterior)
    builder = _Builder(posterior, outcomes, max_nodes, depth)
    A = posterior.num_actions
    weight = posterior.prior @ posterior.start  # [S]
    root = builder.nodes(
        np.array([builder.belief(posterior.start_belief(int(s))) for s in np.flatnonzero(weight)]), np.flatnonzero(weight), 0
    )
    rewards: list[FloatArray] = []
    endings: list[FloatArray] = []
    counts, targets, chances, which = [], [], [], []
    done, steps = 0, 0
    while done < builder.count:
        if everywhere:
            builder.complete(steps)
        # One layer: everything found in the step before. row: its place in the layer.
        layer = slice(done, builder.count)
        done = builder.count
        states, beliefs = builder.states[layer].copy(), builder.belief_of[layer].copy()
        n = len(states)
        if depth is not None and steps >= depth:
            rewards.append(np.zeros((n, A)))
            endings.append(np.zeros((n, A)))
            counts.append(np.zeros(n * A, dtype=np.int64))
            break
        size = outcomes.first[states + 1] - outcomes.first[states]
        row = np.repeat(np.arange(n), size)
        o = np.arange(len(row)) - np.repeat(np.cumsum(size) - size, size) + outcomes.first[states][row]
        chance = (builder.table_of_beliefs[beliefs[row]] * outcomes.likelihood[o]).sum(1)
        seen = chance > 0
        if policy is not None:
            pi = check_probabilities(policy(states, builder.table_of_beliefs[beliefs], steps), n, A)
            seen &= pi[row, outcomes.action[o]] > 0
        row, o, chance = row[seen], o[seen], chance[seen]
        pair = row * A + outcomes.action[o]
        rewards.append(_total(pair, chance * outcomes.reward[o], n * A).reshape(n, A))
        ends = outcomes.terminated[o]
        endings.append(_total(pair, chance * ends, n * A).reshape(n, A))
        lives = ~ends
        row, o, chance, pair = row[lives], o[lives], chance[lives], pair[lives]
        after = builder.update(beliefs[row], outcomes.kind[o])
        targets.append(builder.nodes(after, outcomes.next_state[o], steps + 1))
        counts.append(np.bincount(pair, minlength=n * A))
        chances.append(chance)
        which.append(o)
        steps += 1
    first = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    empty = np.zeros(0, dtype=np.int64)
    return BeliefGraph(
        posterior,
        outcomes,
        builder.states[: builder.count].copy(),
        builder.belief_of[: builder.count].copy(),
        builder.table_of_beliefs[: len(builder.keys)].copy(),
        builder.depth[: builder.count].copy(),
        root,
        weight[weight > 0],
        np.concatenate(rewards),
        np.concatenate(endings),
        first,
        np.concatenate([empty, *targets]),
        np.concatenate([np.zeros(0), *chances]),
        np.concatenate([empty, *which]),
        builder.keys,
        builder.table[: len(builder.keys)].copy(),
    )


def check_probabilities(given: ArrayLike, n: int, A: int) -> FloatArray:
    """A policy's answer as probabilities [n, A]; whole numbers [n] are taken as chosen actions."""
    pi = np.asarray(given)
    if pi.shape == (n,) and np.issubdtype(pi.dtype, np.integer) and (not n or (pi.min() >= 0 and pi.max() < A)):
        chosen: FloatArray = np.eye(A)[pi]
        return chosen
    pi = pi.astype(np.float64)
    if pi.shape != (n, A) or not (pi >= 0).all() or not np.allclose(pi.sum(1), 1, atol=1e-6):
        raise ValueError(
            f"a policy gave an array of shape {pi.shape} that is not [{n}, {A}] probabilities. "
            f"Fix: {n} rows of {A} numbers from 0 that sum to 1."
        )
    normed: FloatArray = pi / pi.sum(1, keepdims=True)
    return normed


def _total(place: IntArray, amounts: FloatArray, n: int) -> FloatArray:
    """[n]: amounts added up by place."""
    return np.asarray(np.bincount(place, amounts, minlength=n), dtype=np.float64)


def _key(belief: FloatArray) -> bytes:
    return np.rint(belief / RESOLUTION).astype(np.int64).tobytes()


class _Builder:
    """Numbers beliefs and nodes as they turn up. Its arrays double when they are full."""

    def __init__(self, posterior: Posterior, outcomes: Outcomes, max_nodes: int, depth: int | None) -> None:
        self.posterior, self.outcomes, self.max_nodes, self.depth_limit = posterior, outcomes, max_nodes, depth
        self.keys: dict[bytes, int] = {}
        self.table_of_beliefs = np.zeros((16, len(posterior)))
        self.table = np.full((16, posterior.num_states), -1, dtype=np.int32)
        self.tells: BoolArray = np.any(outcomes.evidence < 1, axis=1)  # [U] False for what all hypotheses expect alike
        self.steps: dict[int, int] = {}  # belief * U + kind -> next belief
        self.count = 0
        self.states, self.belief_of, self.depth = (np.zeros(64, dtype=np.int64) for _ in range(3))

    def belief(self, belief: FloatArray) -> int:
        """The number of a belief, a new one if it has none."""
        key = _key(belief)
        if key not in self.keys:
            if len(self.keys) == len(self.table):
                if 2 * self.table.size > _TABLE:
                    raise self._too_many()
                self.table = np.concatenate([self.table, np.full_like(self.table, -1)])
                self.table_of_beliefs = np.concatenate([self.table_of_beliefs, np.zeros_like(self.table_of_beliefs)])
            self.keys[key] = len(self.keys)
            self.table_of_beliefs[self.keys[key]] = belief
        return self.keys[key]

    def update(self, beliefs: IntArray, kinds: IntArray) -> IntArray:
        """Bayes' rule for many pairs of a belief and a kind of evidence; each distinct pair is computed once."""
        result = beliefs.copy()
        told = np.flatnonzero(self.tells[kinds])
        pairs, which = np.unique(beliefs[told] * len(self.tells) + kinds[told], return_inverse=True)
        after = np.empty(len(pairs), dtype=np.int64)
        for i, pair in enumerate(pairs.tolist()):
            found = self.steps.get(pair)
            if found is None:
                b, u = divmod(pair, len(self.tells))
                weights = self.table_of_beliefs[b] * self.outcomes.evidence[u]
                found = self.steps[pair] = self.belief(weights / weights.sum())
            after[i] = found
        result[told] = after[which]
        return result

    def nodes(self, beliefs: IntArray, states: IntArray, depth: int) -> IntArray:
        """The numbers of many nodes, new ones for those never met."""
        flat = self.table.reshape(-1)
        place = beliefs * self.table.shape[1] + states
        fresh = place[flat[place] < 0]
        # Of equal places the last one written stays: that one is the new node, without sorting.
        flat[fresh] = np.arange(len(fresh))
        fresh = fresh[flat[fresh] == np.arange(len(fresh))]
        end = self.count + len(fresh)
        if end > self.max_nodes:
            raise self._too_many()
        while end > len(self.states):
            grown = (np.concatenate([a, np.zeros_like(a)]) for a in (self.states, self.belief_of, self.depth))
            self.states, self.belief_of, self.depth = grown
        flat[fresh] = np.arange(self.count, end)
        new = slice(self.count, end)
        self.belief_of[new], self.states[new] = np.divmod(fresh, self.table.shape[1])
        self.depth[new] = depth
        self.count = end
        ids: IntArray = flat[place].astype(np.int64)
        return ids

    def complete(self, depth: int) -> None:
        """Put every belief met so far into every state where no hypothesis it allows has ended the episode."""
        known = self.table_of_beliefs[: len(self.keys)]
        ended = (known > 0).astype(np.float64) @ self.posterior.terminal.astype(np.float64) > 0  # [B, S]
        beliefs, states = np.nonzero(~ended)
        self.nodes(beliefs, states, depth)

    def _too_many(self) -> ValueError:
        horizon = "a smaller horizon" if self.depth_limit is not None else "a finite horizon"
        return ValueError(
            f"more than {self.max_nodes:,} (state, belief) pairs can be reached: {self.count:,} found so far, with "
            f"{len(self.keys):,} beliefs. Noisy evidence keeps making new beliefs for ever. "
            f"Fix: {horizon}, fewer hypotheses, or a larger max_nodes."
        )
