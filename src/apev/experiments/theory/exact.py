"""What needs no learning: Theorem 4.1 on chains, Propositions 5.1 to 5.3, the surrogate, and the exact values of three worlds.

Every function returns plain data for `summary.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from apev.bayes import (
    belief_suffices,
    best_markov,
    bound_markov,
    evaluate_markov,
    measure_surrogate,
    policy_gradient,
    solve,
    value_recursion,
)
from apev.bayes.random_worlds import Dispute, Kind
from apev.bayes.surrogate import Members
from apev.experiments.theory.chain import adaptive_value, chain, markov_value, paper_bound, walk_values
from apev.experiments.theory.city import BLOCKED, OPEN, City
from apev.experiments.theory.worlds import CHAIN_N, WORLDS

TOLERANCE = 0.002  # branch and bound stops where it has proven this much

SURROGATES: tuple[tuple[Kind, Dispute, Members], ...] = (
    ("certain", "both", "alone"),
    ("certain", "both", "printed"),
    ("certain", "both", "updated"),
    ("eliminating", "both", "alone"),
    ("eliminating", "both", "printed"),
    ("eliminating", "both", "updated"),
    ("noisy", "both", "alone"),
)


def chain_rows(sizes: Sequence[int], restarts: int = 1, draws: int = 50) -> list[dict[str, float]]:
    """Theorem 4.1, a row for each n: exact values, the closed form, the paper's bound, and what random search finds."""
    rows = []
    for n in sizes:
        posterior = chain(n)
        found = best_markov(posterior, restarts=restarts)
        rows.append(
            {
                "n": n,
                "adaptive": solve(posterior).value,
                "adaptive_expected": adaptive_value(n),
                "markov": found.value,
                "markov_closed_form": markov_value(n),
                "paper_bound": paper_bound(n),
                "coin": evaluate_markov(posterior, coin(n)).mean,
                "random_best": random_search(found.policy, draws, seed=n),
                "round_trip": shortest_round_trip(n, draws, seed=n),
            }
        )
    return rows


def coin(n: int) -> np.ndarray:
    """[2n + 1, 2]: a fair coin everywhere, turning round at the ends."""
    policy = np.full((2 * n + 1, 2), 0.5)
    policy[0], policy[-1] = (0, 1), (1, 0)
    return policy


def random_search(policy: np.ndarray, draws: int, seed: int) -> float:
    """The best of `draws` random Markov policies of a chain, half of them near `policy` [2n + 1, 2]."""
    rng = np.random.default_rng(seed)
    logits = np.log(np.clip(policy[:, 1], 1e-6, 1 - 1e-6) / np.clip(policy[:, 0], 1e-6, 1))
    noise = np.stack([rng.choice([0.02, 0.2, 1.0]) * rng.normal(size=len(logits)) for _ in range(draws)])
    near = np.arange(draws)[:, None] % 2
    return float(walk_values(1 / (1 + np.exp(-(logits * near + noise)))).max())


def shortest_round_trip(n: int, draws: int, seed: int) -> float:
    """The least mean time 0 -> n -> 0 over random walks that turn round at 0 and n; the proof takes it to be n^2 or more."""
    p = 1 / (1 + np.exp(-np.random.default_rng(seed).normal(size=(draws, n + 1)) * 0.5))
    p[0] = 0.5  # the fair coin is among them
    out, back = np.zeros(draws), np.zeros(draws)
    forth, home = np.ones(draws), np.ones(draws)  # mean time of one step outwards from 0, and of one inwards from n
    for k in range(n):
        if k:
            forth = (1 + (1 - p[:, k]) * forth) / p[:, k]
            home = (1 + p[:, n - k] * home) / (1 - p[:, n - k])
        out, back = out + forth, back + home
    return float((out + back).min())


def propositions(problems: int) -> dict[str, Any]:
    """Propositions 5.1 to 5.3 on random problems."""
    return {
        "5.1": asdict(belief_suffices(problems)),
        "5.2": asdict(policy_gradient(problems)),
        "5.3": asdict(value_recursion(problems)),
    }


def surrogate(problems: int) -> list[dict[str, Any]]:
    """How the squared TD error of exact values ranks hypotheses, in several kinds of random worlds."""
    return [asdict(measure_surrogate(kind, about, members, problems)) for kind, about, members in SURROGATES]


def city_exact(boxes: int) -> dict[str, Any]:
    """Mean travel times of the three drivers in the city, by their plans, and the bound on policies that cannot adapt."""
    city = City()
    posterior = city.posterior
    moves = [city.moves(False), city.moves(True)]
    plans = {  # drives by the map of one kind of day, whatever happens
        "pessimistic": np.argmin(city.distances(True)[moves[BLOCKED]], axis=1),
        "optimistic": np.argmin(city.distances(False)[moves[OPEN]], axis=1),
    }
    days = {name: evaluate_markov(posterior, plan, horizon=city.horizon) for name, plan in plans.items()}
    found = best_markov(posterior, restarts=4)
    bound = bound_markov(posterior, found.policy, tolerance=TOLERANCE, max_boxes=boxes)
    return {
        "horizon": city.horizon,
        "open_share": city.open_share,
        "map": {"width": city.width, "height": city.height, "depth": city.depth, "cells": city.cells.tolist()},
        "adaptive": -solve(posterior).value,
        "best_markov": -max(found.value, bound.lower),
        "markov_bound": -bound.upper,
        "clairvoyant": -found.certificate.clairvoyant,
        **{name: -value.mean for name, value in days.items()},
        "by_day": {name: (-value.values).tolist() for name, value in days.items()},
    }


def frontier(name: str, restarts: int, boxes: int) -> dict[str, Any]:
    """Of one world: the Bayes-optimal value, the best Markov value found, and what no Markov policy exceeds."""
    posterior = WORLDS[name]().posterior
    solution = solve(posterior)
    found = best_markov(posterior, restarts=restarts, solution=solution)
    best, proven = found.value, found.certificate.upper_bound
    if name == "chain":
        proven = markov_value(CHAIN_N)  # by the closed form's proof
    elif boxes:
        bound = bound_markov(posterior, found.policy, TOLERANCE, boxes)
        best, proven = max(best, bound.lower), min(proven, bound.upper)
    return {
        "world": name,
        "bayes_optimal": solution.value,
        "best_markov": best,
        "markov_bound": max(proven, best),
        "climbs": found.certificate.climbs,
        "agreeing": found.certificate.agreeing,
    }
