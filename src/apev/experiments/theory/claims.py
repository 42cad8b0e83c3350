"""What the theory says, and what was measured: one `Claim` a line of the table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

WORLD_NAMES = {"chain": "the chain (n = 4)", "city": "the city", "doors": "Locked Doors without the photograph"}


@dataclass(frozen=True)
class Claim:
    """A statement, the number it asks for, the number that was measured, and whether it holds."""

    statement: str
    expected: str
    measured: str
    holds: bool


def make_claims(data: Mapping[str, Any]) -> list[Claim]:
    """All claims, from the data of `summary.json`."""
    return [
        *chain_claims(data["chain"]),
        *proposition_claims(data["propositions"]),
        *surrogate_claims(data["surrogate"]),
        *city_claims(data["city"]),
        *optimality_claims(data["bayes_optimality"]),
    ]


def chain_claims(rows: list[dict[str, float]]) -> list[Claim]:
    """Theorem 4.1 and its proof."""
    column = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    n, markov, closed = column["n"], column["markov"], column["markov_closed_form"]
    span = f"n = {n[0]:.0f}..{n[-1]:.0f}"
    gap = np.abs(column["adaptive"] - column["adaptive_expected"]).max()
    ratio = markov / column["paper_bound"]
    off = np.abs(markov / closed - 1).max()
    coin = np.abs(column["coin"] / (-3 * n**2) - 1).max()
    ahead = (column["random_best"] - markov) / np.abs(markov)
    trip = column["round_trip"] / n**2
    last = -markov[-1] / n[-1] ** 2
    return [
        Claim(
            f"Theorem 4.1: the best adaptive policy of the chain is worth -2n, {span}",
            "difference at most 1e-9",
            f"{gap:.1e}",
            bool(gap <= 1e-9),
        ),
        Claim(
            f"Theorem 4.1: no Markov policy is worth more than -n^2 / 2, {span}",
            "best Markov / bound at least 1",
            f"{ratio.min():.2f} to {ratio.max():.2f}: true, and loose by that factor",
            bool((ratio >= 1).all()),
        ),
        Claim(
            "The best Markov policy is worth -n coth(ln 2 / 2n), by closed form and by search",
            "relative difference at most 1e-6",
            f"{off:.1e}",
            bool(off <= 1e-6),
        ),
        Claim(
            "The theorem's constant 1/2 can be replaced by 2 / ln 2",
            f"{2 / math.log(2):.4f} n^2 as n grows",
            f"{last:.4f} n^2 at n = {n[-1]:.0f}",
            bool(last >= 2 / math.log(2) - 1e-6 and last <= 3),
        ),
        Claim(
            "No Markov policy of a random search beats the one reported",
            "best of the search, relative to it, at most 0",
            f"{ahead.max():.1e}",
            bool((ahead <= 1e-9).all()),
        ),
        Claim(
            "The fair coin, at which the paper's bound is said to be attained, is worth -3 n^2",
            "relative difference at most 1e-9",
            f"{coin:.1e}",
            bool(coin <= 1e-9),
        ),
        Claim(
            "The proof's round trip 0 to n to 0 takes at least 2 n^2 steps (printed: n^2), so that it shows J <= -n^2",
            "shortest found / n^2 at least 2, attained by the coin",
            f"{trip.min():.6f}",
            bool(abs(trip.min() - 2) <= 1e-9),
        ),
    ]


def proposition_claims(found: Mapping[str, Any]) -> list[Claim]:
    """Propositions 5.1 to 5.3."""
    suffices, gradient, recursion = found["5.1"], found["5.2"], found["5.3"]
    worst = max(suffices["worst_gap_enumerated"], suffices["worst_gap_tree"])
    return [
        Claim(
            "Proposition 5.1: the best policy of state and belief is as good as the best of all history policies",
            "difference at most 1e-9",
            f"{worst:.1e} ({2 * suffices['problems']} problems, {suffices['policies_tried']:,} history policies tried)",
            bool(worst <= 1e-9),
        ),
        Claim(
            "Proposition 5.2: the gradient is that of the belief-weighted values",
            "relative difference from automatic differentiation at most 1e-6",
            f"{gradient['worst_error']:.1e} (without the weights: {gradient['median_error_unweighted']:.2f})",
            bool(gradient["worst_error"] <= 1e-6 < gradient["median_error_unweighted"]),
        ),
        Claim(
            "Proposition 5.3: the values obey the recursion with the updated belief b'",
            "residual at most 1e-9",
            f"{recursion['worst_with_updated']:.1e}",
            bool(recursion["worst_with_updated"] <= 1e-9),
        ),
        Claim(
            "Proposition 5.3: with the old belief b in its place they do not",
            "residual above 0.01",
            f"{recursion['worst_with_old']:.2f} ({recursion['share_wrong_with_old']:.0%} of all values off by more than 1e-6)",
            bool(recursion["worst_with_old"] > 0.01),
        ),
    ]


def surrogate_claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """The surrogate likelihood with exact value functions; only what holds is claimed, the rest is in the table."""
    row = {(r["kind"], r["members"]): r for r in rows}
    right = {key: r["pairs_right"] for key, r in row.items()}
    least = min(right, key=lambda key: right[key])
    certain, printed, noisy = row["certain", "alone"], row["certain", "printed"], row["noisy", "alone"]
    return [
        Claim(
            "Surrogate: where moves are certain, the true hypothesis's own TD error is 0, so that none is ranked above it",
            "mean |TD error| of the truth at most 1e-9",
            f"{certain['truth_error']:.1e}",
            bool(certain["truth_error"] <= 1e-9),
        ),
        Claim(
            "Surrogate as printed (values and TD errors at belief b): the truth pays although it foresaw everything",
            "mean |TD error| of the truth above 0",
            f"{printed['truth_error']:.2f}",
            bool(printed["truth_error"] > 1e-3),
        ),
        Claim(
            "Surrogate: of two hypotheses the likelier mostly has the smaller TD error, in every kind of world tried",
            "more than half of the pairs",
            f"{right[least]:.0%} ({', '.join(least)}) to {max(right.values()):.0%}",
            bool(right[least] > 0.5),
        ),
        Claim(
            "Surrogate: noise misleads it, as a TD error is the distance from a mean, not a likelihood",
            "fewer pairs right in noisy worlds than in certain ones",
            f"{noisy['pairs_right']:.0%} against {certain['pairs_right']:.0%}",
            bool(noisy["pairs_right"] < certain["pairs_right"]),
        ),
    ]


def city_claims(city: Mapping[str, Any]) -> list[Claim]:
    """Figure 1, exact and learned."""
    learned = city["learned"]
    ours = learned["ape-v"]
    claims = [
        Claim(
            "City, exact: the adaptive driver's mean travel time is below the pessimist's and the optimist's",
            f"below {min(city['pessimistic'], city['optimistic']):.1f}",
            f"{city['adaptive']:.1f} (pessimist {city['pessimistic']:.1f}, optimist {city['optimistic']:.1f})",
            bool(city["adaptive"] < min(city["pessimistic"], city["optimistic"])),
        ),
        Claim(
            "City, exact: no driver without a memory is faster than the pessimist by more than 1%",
            f"at least {0.99 * city['pessimistic']:.2f}, proven",
            f"{city['markov_bound']:.3f} (best found {city['best_markov']:.3f})",
            bool(city["markov_bound"] >= 0.99 * city["pessimistic"]),
        ),
    ]
    for agent, name in (("lcb", "pessimist (LCB ensemble)"), ("average", "optimist (DQN ensemble)")):
        other = learned[agent]
        claims.append(
            Claim(
                f"City, learned: APE-V's mean travel time is below that of the {name}, 95% intervals apart",
                f"below {other['ci95'][0]:.2f}, the other interval's end",
                f"{ours['mean']:.2f} ({ours['ci95'][0]:.2f} to {ours['ci95'][1]:.2f}) against {other['mean']:.2f} "
                f"({other['ci95'][0]:.2f} to {other['ci95'][1]:.2f}), {len(ours['by_seed'])} seeds",
                bool(ours["ci95"][1] < other["ci95"][0]),
            )
        )
    exact = float(np.mean(list(ours["exact_by_seed"].values())))
    street = city["open_share"] * city["by_day"]["optimistic"][0]
    turned = [days[0] < city["pessimistic"] and arrived[1] for days, arrived in both(ours)]
    claims.append(
        Claim(
            "City, learned: APE-V takes the side street, and turns back when it is blocked, in every seed",
            f"{len(turned)} of {len(turned)} seeds",
            f"{sum(turned)} of {len(turned)}; mean travel time {exact:.2f}, Bayes-optimal {city['adaptive']:.2f}",
            all(turned) and street < city["pessimistic"],
        )
    )
    return claims


def both(agent: Mapping[str, Any]) -> list[tuple[list[int], list[bool]]]:
    """Steps and arrivals on an open and a blocked day, of every seed."""
    return [(agent["by_day"][seed], agent["arrived"][seed]) for seed in agent["by_day"]]


def optimality_claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """How much of the way from the best Markov policy to Bayes-optimal the learned agent covers."""
    return [
        Claim(
            f"APE-V, learned from a log, is worth more than the best Markov policy found in {WORLD_NAMES[row['world']]}",
            "share of the way to Bayes-optimal above 0%",
            f"{row['share']:.1%} (return {row['learned']:.2f}; Bayes-optimal {row['bayes_optimal']:.2f}, "
            f"best Markov {row['best_markov']:.2f})",
            bool(row["share"] > 0),
        )
        for row in rows
    ]
