"""Whether BC, CQL, IQL and SAC-N learn what d3rlpy's learn: python benchmarks/parity.py LOG.npz --env Pendulum-v1

The same log, networks, batch size, learning rates, number of updates and evaluation episodes; each seed trains both from
scratch. Needs d3rlpy, in an environment of its own: `pip install torch==2.13.0 -e '.[benchmark]'`. Writes summary.json (every
episode's return, means, intervals, and whether the two differ by more than noise) and README.md, the table, to --out.

Where d3rlpy's defaults are another algorithm, they are set to ours: CQL with a fixed weight of 5, IQL's actor with a rate
that falls along a half cosine. What stays different: d3rlpy's CQL backs up the mean next action where ours draws one, its BC
is deterministic (where the mean of our Gaussian ends up), and its networks start as torch's do.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from rich.console import Console

from apev.agents import AGENTS
from apev.data import Dataset, Layout, Sampler
from apev.envs.make import make
from apev.experiments.common.provenance import provenance
from apev.loop import set_lr
from apev.machine import Machine
from apev.policy import Policy

Algorithm = Literal["bc", "sac-n", "cql", "iql"]
OUTCOME = {True: "within noise", False: "differs"}


@dataclass(frozen=True, kw_only=True)
class Options(Machine):
    """Train four algorithms with this library and with d3rlpy on one log, and compare what they reach."""

    log: tyro.conf.Positional[Path]
    """A log of continuous actions, e.g. made by `apev collect Pendulum-v1`."""
    env: str = "Pendulum-v1"
    """Where policies are evaluated."""
    algorithms: tuple[Algorithm, ...] = ("bc", "sac-n", "cql", "iql")
    """Which to compare."""
    updates: int = 5000
    """Gradient steps."""
    seeds: int = 3
    """Trainings of each."""
    episodes: int = 20
    """Evaluation episodes of each training, the same starts for all."""
    critics: int = 4
    """N of SAC-N."""
    batch_size: int = 256
    """Transitions an update."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of all networks."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("results/parity")
    """Where summary.json and README.md go. A run cut short goes on where it was."""


def returns_of(act: Any, options: Options) -> list[float]:
    """Undiscounted returns of greedy episodes from fixed starts; act: [n, D] -> [n, A]."""
    envs = [make(options.env) for _ in range(options.episodes)]
    obs = [env.reset(seed=10_000 + i)[0] for i, env in enumerate(envs)]
    total, running = np.zeros(len(envs)), np.ones(len(envs), dtype=bool)
    while running.any():
        actions = act(np.asarray(obs, dtype=np.float32))
        for i in np.flatnonzero(running):
            obs[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
            total[i] += float(reward)
            running[i] = not (terminated or truncated)
    return [round(float(x), 3) for x in total]


def ours(name: Algorithm, data: Dataset, seed: int, options: Options) -> list[float]:
    kind, config = AGENTS["sac" if name == "sac-n" else name]
    settings: dict[str, Any] = {"hidden": options.hidden} | ({"critics": options.critics} if name == "sac-n" else {})
    agent = kind.for_data(data, replace(config(), **settings), seed=seed)
    sampler = Sampler(data, batch_size=options.batch_size, seed=seed)
    for update in range(options.updates):
        set_lr(agent, update / options.updates, decay=False)
        agent.update(sampler.sample())
    policy = Policy(agent)
    policy.reset(num_envs=options.episodes)
    return returns_of(policy.act, options)


def theirs(name: Algorithm, data: Dataset, seed: int, options: Options) -> list[float]:
    import d3rlpy
    from d3rlpy.models.encoders import VectorEncoderFactory
    from d3rlpy.optimizers import AdamFactory
    from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory

    d3rlpy.seed(seed)
    network = VectorEncoderFactory(list(options.hidden))
    nets = {"actor_encoder_factory": network, "critic_encoder_factory": network}
    layout = Layout.of(data)
    low, high = (np.asarray(bound, dtype=np.float32) for bound in (layout.action_low, layout.action_high))
    common: dict[str, Any] = {
        "batch_size": options.batch_size,
        "action_scaler": d3rlpy.preprocessing.MinMaxActionScaler(low, high),
    }
    rates = {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4}
    algos = d3rlpy.algos
    config: Any
    if name == "bc":
        config = algos.BCConfig(learning_rate=3e-4, encoder_factory=network, **common)
    elif name == "sac-n":
        config = algos.SACConfig(n_critics=options.critics, temp_learning_rate=3e-4, **rates, **nets, **common)
    elif name == "cql":
        fixed = {"alpha_learning_rate": 0.0, "alpha_threshold": 0.0, "conservative_weight": 5.0}
        slow = rates | {"actor_learning_rate": 1e-4}
        config = algos.CQLConfig(temp_learning_rate=1e-4, n_action_samples=10, **fixed, **slow, **nets, **common)
    else:
        decay = AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=options.updates))
        config = algos.IQLConfig(
            expectile=0.7, weight_temp=3.0, actor_optim_factory=decay, value_encoder_factory=network, **rates, **nets, **common
        )
    agent = config.create(device="cpu:0")
    log = d3rlpy.dataset.MDPDataset(
        np.asarray(data.observations["observation"], dtype=np.float32),
        np.asarray(data.actions, dtype=np.float32),
        np.asarray(data.rewards, dtype=np.float32),
        np.asarray(data.terminated, dtype=np.float32),
        np.append(data.episodes[1:] != data.episodes[:-1], True).astype(np.float32) * ~np.asarray(data.terminated),
    )
    agent.build_with_dataset(log)
    for _ in range(options.updates):
        agent.update(log.sample_transition_batch(options.batch_size))
    return returns_of(agent.predict, options)


def compare(mine: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Means over seeds with 95% intervals (Student's t), and whether Welch's test at 1% tells the two apart."""
    from scipy import stats

    means = [np.array([np.mean(run) for run in runs]) for runs in (mine, other)]
    told = {}
    for name, mean in zip(("apev", "d3rlpy"), means, strict=True):
        n = len(mean)
        half = float(stats.t.ppf(0.975, n - 1) * mean.std(ddof=1) / math.sqrt(n)) if n > 1 else None
        told[name] = {"mean": round(float(mean.mean()), 2), "ci95": half and round(half, 2), "seeds": n}
    p = float(stats.ttest_ind(*means, equal_var=False).pvalue) if min(map(len, means)) > 1 else None
    return told | {"p": p and round(p, 4), "within_noise": None if p is None else p > 0.01}


def table(summary: dict[str, Any]) -> str:
    def cell(told: dict[str, Any]) -> str:
        spread = "" if told["ci95"] is None else f" ± {told['ci95']}"
        return f"{told['mean']}{spread} ({told['seeds']})"

    rows = [
        f"| {name.upper()} | {cell(told['apev'])} | {cell(told['d3rlpy'])} | {told['p'] or ''} | "
        f"{OUTCOME.get(told['within_noise'], 'one training')} |"
        for name, told in summary["algorithms"].items()
    ]
    s = summary["settings"]
    return "\n".join(
        [
            "# Parity with d3rlpy",
            "",
            f"Return in {s['env']}: mean, 95% interval (number of trainings), after {s['updates']} updates on the same "
            f"log ({s['rows']} rows, mean return {s['log_return']}), {s['episodes']} greedy episodes from the same starts.",
            "`p`: Welch's test on the trainings' means. Made by `benchmarks/parity.py`.",
            "",
            "| | apev | d3rlpy 2.8.1 | p | |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main(options: Options) -> None:
    options.use()
    console = Console(stderr=True)
    data = Dataset.load(options.log)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "summary.json"
    settings = {
        "env": options.env,
        "rows": len(data),
        "log_return": round(float(data.episode_returns().mean()), 2),
        **{name: getattr(options, name) for name in ("updates", "seeds", "episodes", "critics", "batch_size")},
        "hidden": list(options.hidden),
        "torch": torch.__version__,
    }
    old = json.loads(path.read_text()) if path.exists() else {}
    runs: dict[str, dict[str, Any]] = old.get("runs", {}) if old.get("settings") == settings else {}
    for seed in range(options.seeds):
        for name in options.algorithms:
            for library, trained in (("apev", ours), ("d3rlpy", theirs)):
                key = f"{name}/{library}/{seed}"
                if key not in runs:
                    begin, cpu = time.perf_counter(), time.process_time()
                    returns = trained(name, data, seed, options)
                    runs[key] = {"returns": returns, "seconds": round(time.perf_counter() - begin, 1)}
                    runs[key]["cpu_seconds"] = round(time.process_time() - cpu, 1)
                    console.print(f"{key}: {np.mean(returns):.1f}")
                    write(path, settings, runs, options)


def write(path: Path, settings: dict[str, Any], runs: dict[str, Any], options: Options) -> None:
    summary: dict[str, Any] = {"settings": settings, "algorithms": {}, "runs": runs, "meta": provenance()}
    for name in options.algorithms:
        found = [
            [run["returns"] for key, run in runs.items() if key.startswith(f"{name}/{lib}/")] for lib in ("apev", "d3rlpy")
        ]
        if all(found):
            summary["algorithms"][name] = compare(*found)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(summary, indent=1) + "\n")
    os.replace(temporary, path)
    (path.parent / "README.md").write_text(table(summary))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__, config=(tyro.conf.OmitArgPrefixes,)))
