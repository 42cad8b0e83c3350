"""Scores that others have printed, on the whole of D4RL's logs."""

from __future__ import annotations

PAPER: dict[str, dict[str, float]] = {
    "halfcheetah-random": {"bc": 2.2, "sac": 29.7, "rem": -0.8, "cql": 35.4, "iql": 31.3, "sac-n": 29.8, "ape-v": 29.9},
    "halfcheetah-medium": {"bc": 43.2, "sac": 55.2, "rem": -0.8, "cql": 44.4, "iql": 47.4, "sac-n": 67.5, "ape-v": 69.1},
    "halfcheetah-medium-expert": {
        "bc": 44.0,
        "sac": 28.4,
        "rem": 0.7,
        "cql": 62.4,
        "iql": 95.0,
        "sac-n": 102.7,
        "ape-v": 101.4,
    },
    "halfcheetah-medium-replay": {"bc": 37.6, "sac": 0.8, "rem": 6.6, "cql": 46.2, "iql": 44.2, "sac-n": 63.9, "ape-v": 64.6},
    "hopper-random": {"bc": 3.7, "sac": 9.9, "rem": 3.4, "cql": 10.8, "iql": 5.3, "sac-n": 31.3, "ape-v": 31.3},
    "hopper-medium-expert": {"bc": 53.9, "sac": 0.7, "rem": 0.8, "cql": 111.0, "iql": 96.9, "sac-n": 110.1, "ape-v": 105.72},
    "hopper-medium-replay": {"bc": 16.6, "sac": 7.4, "rem": 27.5, "cql": 48.6, "iql": 94.7, "sac-n": 101.8, "ape-v": 98.5},
    "walker2d-random": {"bc": 1.3, "sac": 0.9, "rem": 6.9, "cql": 7.0, "iql": 5.4, "sac-n": 16.3, "ape-v": 15.5},
    "walker2d-medium": {"bc": 70.9, "sac": -0.3, "rem": 0.2, "cql": 74.5, "iql": 78.3, "sac-n": 87.9, "ape-v": 90.3},
    "walker2d-medium-expert": {"bc": 90.1, "sac": 1.9, "rem": -0.1, "cql": 98.7, "iql": 109.1, "sac-n": 116.0, "ape-v": 110.0},
    "walker2d-medium-replay": {"bc": 20.3, "sac": -0.4, "rem": 12.5, "cql": 32.6, "iql": 73.8, "sac-n": 78.7, "ape-v": 82.9},
}
"""The paper's Table of D4RL scores, its columns as printed; it has no EDAC, no TD3+BC and no hopper-medium. EDAC's are
its authors'."""
EDAC = {"halfcheetah-medium": 65.9, "halfcheetah-medium-replay": 61.3, "hopper-medium-replay": 101.0}
EDAC |= {"walker2d-medium": 92.5, "walker2d-medium-replay": 87.1}


def published(task: str, algorithm: str) -> float | None:
    """The score printed in the paper (or where it has none, elsewhere), on D4RL's own data and after many more updates."""
    return EDAC.get(task) if algorithm == "edac" else PAPER.get(task, {}).get(algorithm)
