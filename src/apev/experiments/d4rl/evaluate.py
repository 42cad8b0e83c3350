"""What a trained policy is worth with every behaviour of its belief, and how its belief moves through an episode."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console

from apev.agents import APEVSAC, TD3BC, Agent, AnchoredAPEVSAC
from apev.agents.continuous.anchored import AnchoredActors, nothing_at_first
from apev.data import Sampler
from apev.loop import CALIBRATION_BATCH
from apev.policy import Policy
from apev.progress import progress_bar
from apev.rollout import GymnasiumBatch, Rollout, rollout

FORGETTING = 0.05  # evidence loses its weight with a half-life of 14 steps
LIFE = ("second", "third", "fourth", "fifth")  # episodes of a robot that keeps its belief
TOLD = ("second", "fifth")
TRACED = (1, 10, 30, 100, 300, 1000)


def behaviours(agent: Agent, name: str, held_out: Sampler | None) -> dict[str, Policy]:
    """One agent's policies, by what their belief does."""
    if not isinstance(agent, APEVSAC | TD3BC) or agent.members == 1:
        return {name: Policy(agent)}
    other = partial(deployed, agent, held_out)
    found = {
        name: Policy(agent),
        f"{name}, forgetting": other(forgetting=FORGETTING),
        f"{name}, Gaussian likelihood": other(likelihood="gaussian"),
        f"{name}, calibrated likelihood": other(likelihood="calibrated"),
        f"{name}, committed": Policy(agent, "commit"),
        f"{name}, held": Policy(agent, "hold"),
        f"{name}, random member": Policy(agent, "random-member"),
        f"{name}, random member a step": Policy(agent, "random-member-step"),
    }
    if isinstance(agent, AnchoredAPEVSAC) and not agent.config.eval_only:
        found[f"{name}, plain actors"] = Policy(without_doubt(agent))
    for k, n in enumerate(agent.n):
        found[f"{name}, e_{k} (n = {n})"] = Policy(agent, f"member:{k}")
    return found


def deployed(agent: APEVSAC | TD3BC, held_out: Sampler | None, **changes: Any) -> Policy:
    """The adapting policy with another filter than the agent's own, its scales measured anew."""
    config: Any = replace(agent.config, **changes)
    other = type(agent)(agent.layout, config)
    other.load_policy_state(agent.policy_state())
    other.to_device(agent.device)
    if held_out is not None:
        other.calibrate(held_out.iterate(CALIBRATION_BATCH))
    return Policy(other)


def without_doubt(agent: AnchoredAPEVSAC) -> AnchoredAPEVSAC:
    """The same members, which act as if nobody doubted them: what adapting at evaluation only would have trained."""
    other = AnchoredAPEVSAC(agent.layout, agent.config)
    other.load_policy_state(agent.policy_state())
    for actors in (other.actors, other.deployed_actors):
        assert isinstance(actors, AnchoredActors)
        nothing_at_first(actors.shifts)
    other.to_device(agent.device)
    return other


def final_evaluation(
    agent: Agent,
    algorithm: str,
    environment: Any,
    episodes: int,
    seed: int,
    held_out: Sampler | None = None,
    console: Console | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(one record an episode and behaviour, how concentrated the adapting beliefs were at some steps)."""
    env = GymnasiumBatch(environment, episodes, seed=100_000 * (seed + 1))
    lines: list[dict[str, Any]] = []
    beliefs: dict[str, Any] = {}
    found = behaviours(agent, algorithm, held_out)
    with progress_bar(console or Console(stderr=True)) as progress:
        task = progress.add_task(f"{algorithm}, seed {seed}: evaluation", total=len(found))
        results = {}
        for policy_name, policy in found.items():
            behaviour, traced = policy.with_adapt(policy.adapt, seed=seed), policy.adapts and agent.members > 1
            results[policy_name] = rollout(behaviour, env, trace=traced)
            if policy_name in (algorithm, f"{algorithm}, committed", f"{algorithm}, held") and traced:
                for which in LIFE[:1] if policy_name.endswith("committed") else LIFE:
                    again = rollout(behaviour, env, keep_belief=True)
                    if which in TOLD:
                        results[f"{policy_name}, {which} episode"] = again
            progress.advance(task)
    for policy_name, result in results.items():
        lines += [
            {
                "algorithm": algorithm,
                "policy": policy_name,
                "seed": seed,
                "episode": i,
                "return": float(result.returns[i]),
                "length": int(result.lengths[i]),
            }
            for i in range(episodes)
        ]
        if result.beliefs:
            beliefs[policy_name] = trace_of(result)
    return lines, beliefs


def trace_of(result: Rollout) -> dict[str, Any]:
    """Members that still count, exp(entropy), and who is believed in, at some steps of each episode and at its last."""
    beliefs = np.stack(result.beliefs)  # [T + 1, episodes, K]
    entropy = -(beliefs * np.log(np.maximum(beliefs, 1e-30))).sum(-1)
    effective = np.exp(entropy)  # [T + 1, episodes]
    episodes = np.arange(beliefs.shape[1])
    steps = {
        str(t): {"effective": float(effective[t, running].mean()), "episodes": int(running.sum())}
        for t in TRACED
        if (running := result.lengths >= t).any()
    }
    last = {"effective": float(effective[result.lengths, episodes].mean()), "episodes": len(episodes)}
    return {
        "effective_members": steps | {"last": last},
        "mean_belief_at_last": beliefs[result.lengths, episodes].mean(0).round(4).tolist(),
        "curve": [
            [t, round(float(effective[t, running].mean()), 3)]
            for t in range(0, len(beliefs), 10)
            if (running := result.lengths >= t).any()
        ],
        "first_episode": [[round(float(b), 3) for b in row] for row in beliefs[: result.lengths[0] + 1 : 10, 0]],
    }
