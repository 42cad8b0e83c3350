"""d3rlpy's fitted Q evaluation of our static policies, to stand beside ours: run `fqe.py --runs RUNS` first, then

    python benchmarks/fqe_d3rlpy.py --world customers --runs RUNS

in an environment of its own with `pip install -e . d3rlpy==2.8.1`. d3rlpy values its own algorithms; all that it asks of one
is the best action for observations, which a thin object gives here. It knows no belief and no history, so that policies which
adapt cannot be valued. Writes OUT/d3rlpy/WORLD.json; `fqe.py --summary` takes it into the table.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch

import apev
from apev.data.batch import Observations
from apev.experiments.common.provenance import provenance
from apev.files import write_json

EXAMPLES = {"customers": "customers", "pendulum": "pendulum-fleet"}


class BestActions:
    """Of our policy, asked as d3rlpy asks its algorithms."""

    def __init__(self, policy: apev.Policy) -> None:
        self.policy, self.impl = policy, self

    def predict_best_action(self, x: torch.Tensor) -> torch.Tensor:
        belief = torch.zeros(len(x), 1)
        return self.policy.agent.act(Observations(x.float()), belief, True)


def main() -> None:
    """Value every static policy of the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=["customers", "pendulum", "d4rl"], required=True)
    parser.add_argument("--data", type=Path, default=None, help="the log; needed for d4rl")
    parser.add_argument("--runs", type=Path, required=True, help="of fqe.py")
    parser.add_argument("--steps", type=int, default=5000, help="gradient steps a policy")
    parser.add_argument("--gamma", type=float, required=True, help="the one that fqe.py used")
    parser.add_argument("--out", type=Path, default=Path("results/fqe"))
    asked = parser.parse_args()
    if asked.data is None and asked.world not in EXAMPLES:
        parser.error("--world d4rl needs a log. Fix: --data FILE.")
    log = apev.Dataset.load(asked.data) if asked.data is not None else apev.Dataset.example(EXAMPLES[asked.world])
    torch.set_num_threads(1)
    d3rlpy.seed(0)
    logged = dataset_of(log)
    first = log.observations["observation"][np.flatnonzero(np.append(True, np.diff(log.episodes) != 0))].astype(np.float32)
    values: dict[str, float] = {}
    began = time.time()
    for run in sorted(asked.runs.iterdir()):
        policy = apev.load(run)
        if policy.members > 1 or policy.agent.start_history(1) is not None:
            continue
        name, _, updates = run.name.rsplit("-", 2)
        kind = d3rlpy.ope.DiscreteFQE if log.discrete else d3rlpy.ope.FQE
        config = d3rlpy.ope.FQEConfig(
            gamma=asked.gamma,
            observation_scaler=d3rlpy.preprocessing.StandardObservationScaler(),
            reward_scaler=d3rlpy.preprocessing.MultiplyRewardScaler(1 / float(log.rewards.std())),  # a mean would count steps
        )
        actions: Any = BestActions(policy)
        valued = kind(algo=scaled(actions, log), config=config)
        quiet = {"show_progress": False, "save_interval": 10**9, "logger_adapter": d3rlpy.logging.NoopAdapterFactory()}
        valued.fit(logged, n_steps=asked.steps, n_steps_per_epoch=asked.steps, **quiet)
        best = actions.predict_best_action(torch.from_numpy(first)).numpy()
        values[f"{name} {updates}"] = float(np.mean(valued.predict_value(first, best))) * float(log.rewards.std())
        print(f"{name} {updates}: {values[f'{name} {updates}']:.3g} after {time.time() - began:.0f} s", flush=True)
    answer = {"world": asked.world, "steps": asked.steps, "gamma": asked.gamma, "values": values}
    answer |= {"d3rlpy": d3rlpy.__version__, "seconds": round(time.time() - began, 1), "meta": provenance()}
    write_json(asked.out / "d3rlpy" / f"{asked.world}.json", answer)
    print(json.dumps(answer))


def scaled(actions: Any, log: apev.Dataset) -> Any:
    """The same for observations that d3rlpy has standardised."""
    every = np.asarray(log.observations["observation"], dtype=np.float32)
    mean, deviation = torch.from_numpy(every.mean(0)), torch.from_numpy(every.std(0) + 1e-3)  # d3rlpy adds .001

    class Scaled:
        def __init__(self) -> None:
            self.impl = self

        def predict_best_action(self, x: torch.Tensor) -> torch.Tensor:
            told: torch.Tensor = actions.predict_best_action(x * deviation + mean)
            return told

    return Scaled()


def dataset_of(log: apev.Dataset) -> Any:
    """The log as d3rlpy reads it; what follows a row is the next row, so a time limit's last step is left to it."""
    last = np.append(np.diff(log.episodes) != 0, True)
    actions = log.actions[:, None] if log.discrete else log.actions
    return d3rlpy.dataset.MDPDataset(
        observations=np.asarray(log.observations["observation"], dtype=np.float32),
        actions=actions,
        rewards=log.rewards[:, None],
        terminals=(last & log.terminated).astype(np.float32),
        timeouts=(last & ~log.terminated).astype(np.float32),
        action_size=log.num_actions if log.discrete else log.actions.shape[1],
    )


if __name__ == "__main__":
    main()
