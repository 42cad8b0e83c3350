"""Are APE-V's members sound? APE-V with defaults beside behaviour cloning, on every log there is.

    python benchmarks/bases.py --logs cartpole pendulum customers
    python benchmarks/bases.py --logs hopper-medium-v2.npz halfcheetah-medium-v2.npz

A log is the name of an example, or a file whose name tells the robot. Each is learned by each algorithm with each seed, with no
setting but the seed, and played in its environment. OUT/episodes.jsonl keeps every episode; what is there is not repeated.
`--kinds 1` spares the search for kinds, which takes longer than a short training: where it finds one, the policy is the same.
OUT/summary.json says for each log what the algorithms return, and by how much APE-V leads BC, with an interval over seeds and
episodes: in returns, and in returns discounted as in training, which is what values are of. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

import apev
from apev.api import FIRST_LOOK
from apev.experiments.bases.report import write_summary
from apev.experiments.common.provenance import commit
from apev.files import append_line, read_lines
from apev.policy import Policy
from apev.rollout import GymnasiumBatch, rollout

DISCOUNT = 0.99  # the default of what is trained here
ROBOTS = {"halfcheetah": "HalfCheetah-v4", "hopper": "Hopper-v4", "walker2d": "Walker2d-v4"}


def main() -> None:
    """Train, play, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", nargs="*", default=[], help="files, or names of examples; none: only make the summary again")
    parser.add_argument("--algorithms", nargs="+", default=["bc", "ape-v"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=None, help="as many as `apev train` makes unless given")
    parser.add_argument("--kinds", type=int, default=None, help="1: do not look for kinds, where another seed has found one")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings, such as gamma=0.997")
    parser.add_argument("--episodes", type=int, default=20, help="that each policy plays")
    parser.add_argument("--out", type=Path, default=Path("results/bases"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    path = asked.out / "episodes.jsonl"
    asked.out.mkdir(parents=True, exist_ok=True)
    done = {(line["log"], line["algorithm"], line["seed"]) for line in read_lines(path)} if path.exists() else set()
    named = [*asked.set, *([f"{asked.updates} updates"] if asked.set and asked.updates else [])]
    settings = {name: float(value) for name, value in (pair.split("=") for pair in asked.set)}
    for name in asked.logs:
        log = apev.Dataset.load(name) if Path(name).suffix else apev.Dataset.example(name)
        called = Path(name).stem
        env = str(log.source.get("environment") or ROBOTS[called.split("-")[0]])
        for seed in asked.seeds:
            for algorithm in asked.algorithms:
                label = ", ".join([algorithm, *named])
                if (called, label, seed) in done:
                    continue
                begin = time.perf_counter()
                how = {"seed": seed, "updates": asked.updates, "console": Console(quiet=True), "kinds": asked.kinds}
                how |= settings
                policy = apev.train(log, algorithm, **how)
                seconds = round(time.perf_counter() - begin, 1)
                returns, discounted = played(policy, env, asked.episodes, seed)
                line = {"log": called, "algorithm": label, "seed": seed, "updates": asked.updates or FIRST_LOOK}
                line |= {"kinds": 1 if policy.agent.worlds is None else policy.members, "looked": asked.kinds is None}
                line |= {"commit": commit(), "seconds": seconds, "logged": policy.logged, "returns": returns}
                line |= {"discount": DISCOUNT, "discounted": discounted}
                append_line(path, line)
                print(f"{called}, seed {seed}, {label}: {np.mean(returns):.1f}  ({seconds:.0f} s)", flush=True)
    print(json.dumps(write_summary(asked.out, made=True)))


def played(policy: Policy, env: str, episodes: int, seed: int) -> tuple[list[float], list[float]]:
    """Returns of the policy as it is deployed, and the same discounted."""
    done = rollout(policy, GymnasiumBatch(env, episodes, seed=10_000 + seed), trace=True)
    rewards = np.stack(done.rewards)  # [steps, n]
    discounted = (rewards * DISCOUNT ** np.arange(len(rewards))[:, None]).sum(axis=0)
    return [float(value) for value in done.returns], [float(value) for value in discounted]


if __name__ == "__main__":
    main()
