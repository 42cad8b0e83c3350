"""The chain of Theorem 4.1: the goal is at one end, and nothing but going there tells which.

      -n  ...  -1   0   1  ...   n        start at 0, reward -1 a step, gamma 1, actions 0 left, 1 right
       |            ^            |        M1: entering n ends the episode; M2: entering -n does; each has weight 1/2
    M2 ends       start       M1 ends     at an end that is not the goal, going on outwards leaves the agent where it is

State k has number k + n. Arriving at an end and *not* being done is the evidence: a belief update must be told whether the
episode ended (`terminated`), since (s, a, r, s') is the same in both worlds.

**Adaptive.** Go to one end; if that was wrong, go to the other: n or 3n steps, -2n on average. Nothing is better, since
any policy must visit one end first and then, half of the time, the other.

**Markov.** The paper proves J <= -n^2 / 2. What is true (and no Markov policy is better, by the argument below):

    J*_Markov = -n (2^(1/n) + 1) / (2^(1/n) - 1) = -n coth(ln 2 / 2n)          -3, -11.66, -26.1, ...; -> -(2 / ln 2) n^2
    pi*: at 0 a fair coin; elsewhere outwards with probability r / (1 + r), r = 2^(1/n); at an end, turn round

so that the theorem's order n^2 is right and its constant 1/2 can be replaced by 2 / ln 2 = 2.885. The fair coin everywhere,
at which the paper's bound is said to be attained, is worth -3 n^2: best is a slight, constant pull outwards.

*Proof.* Every Markov policy with 0 < p < 1 inside is a walk on edges with conductances c, p_k = c_k / (c_{k-1} + c_k). Its time
from k to k + 1 is 1 + 2 sum_{j<k} c_j / c_k. Call the edges outwards from 0 R_1..R_n to the right, L_1..L_n to the left. Then

    T(n) + T(-n) = 2n + 2 [ sum_ik (L_i / R_k + R_k / L_i) + sum_{j<k} (R_j / R_k + L_j / L_k) ]

is a sum of exponentials of linear functions of log c: convex, with one minimum up to scale, and by symmetry R = L = g there.
Its derivatives vanish where g_k^2 (C + 2 D) = 2 A + B, with A, B the sums of g before and after k, and C, D those of 1 / g.
In terms of P_k = sum_j g_j + sum_{j<=k} g_j and Q_k = 2 sum_j 1 / g_j - sum_{j<=k} 1 / g_j that says P_k Q_k = P_{k-1} Q_{k-1}.
Hence P_k / P_{k-1} is constant; as P doubles from k = 0 to n it is 2^(1/n), and g_k is proportional to 2^(k/n). Policies
with p = 0 or 1 at an inner state never reach one of the ends. Logits of p are differences of log c, so that a climb in
logits from anywhere ends at this optimum.

**The paper's proof, step by step.**
- "Lower-bounded by T_{n,0} and T_{-n,0}" holds for the smaller of the two, which is the one used; not for both.
- The sums for T_{0->n} and T_{n->0} are misprinted: l and 1 / l are exchanged, products should begin at j + 1 (as printed
  they contain l_0, on which T_{n->0} does not depend), and in T_{n->0} = n + 2 sum_{j<k} prod l_i the n and the 2 are missing.
- At l = 1 the printed double sum is n (n - 1), not n^2. With the correct sums it is 2 n^2, so that the same argument
  gives J <= -n^2. The conclusion J <= -n^2 / 2 is true; as printed it is not derived.
- "n-state MDPs": these have 2n + 1 states.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from apev.bayes.epistemic import EpistemicEnv
from apev.bayes.mdp import FloatArray, Posterior, TabularMDP

LEFT, RIGHT = 0, 1


def chain(n: int, prior: ArrayLike = (0.5, 0.5)) -> Posterior:
    """The two worlds of Theorem 4.1 on the states -n..n, number 0..2n: the goal at the right end, or at the left."""
    _check(n)
    k = np.arange(2 * n + 1)
    follow = np.stack([np.maximum(k - 1, 0), np.minimum(k + 1, 2 * n)], axis=1)
    goals = (2 * n, 0)
    return Posterior(
        [TabularMDP.deterministic(follow, start=n, terminal=[goal]) for goal in goals], prior, ("goal right", "goal left")
    )


def chain_env(n: int, horizon: int | None = None) -> EpistemicEnv:
    """The chain as a Gymnasium environment: each episode has its goal at an end drawn at random."""
    return EpistemicEnv(chain(n), horizon)


def adaptive_value(n: int) -> float:
    """What the Bayes-optimal policy gets: -2n."""
    _check(n)
    return -2.0 * n


def markov_value(n: int) -> float:
    """What the best Markov policy gets, by the closed form above."""
    _check(n)
    return -n / math.tanh(math.log(2) / (2 * n))


def markov_policy(n: int) -> FloatArray:
    """[2n + 1, 2]: the best Markov policy, by the closed form above."""
    _check(n)
    r = 2 ** (1 / n)
    k = np.arange(-n, n + 1)
    right = np.where(k == 0, 0.5, np.where(k > 0, r, 1) / (1 + r))
    right[0], right[-1] = 1, 0
    return np.stack([1 - right, right], axis=1)


def walk_values(right: FloatArray) -> FloatArray:
    """[N]: what each of N Markov policies gets that go right with chances [N, 2n + 1], none of them 0 or 1.

    Without subtraction, so that walks that take very long lose no digits.
    """

    def time_to_end(forth: FloatArray) -> FloatArray:
        """Mean steps from the middle to the last state, going there with chances `forth`."""
        n, step, total = forth.shape[1] // 2, np.zeros(len(forth)), np.zeros(len(forth))
        for k in range(2 * n):
            step = (1 + (1 - forth[:, k]) * step) / forth[:, k]  # mean steps from state k to k + 1
            total += step if k >= n else 0
        return total

    return -(time_to_end(right) + time_to_end(1 - right[:, ::-1])) / 2


def paper_bound(n: int) -> float:
    """What the paper proves no Markov policy exceeds: -n^2 / 2."""
    _check(n)
    return -(n**2) / 2


def _check(n: int) -> None:
    if n < 1:
        raise ValueError(f"n is {n}. Fix: a chain needs at least 1 step to each end.")
