"""Roll-outs of a policy as a log."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console

from apev.envs.make import make
from apev.policy import Policy
from apev.progress import progress_bar

SIDE_BY_SIDE = 20  # environments that share a pass through the networks


def record(policy: Policy, environment: str, steps: int, seed: int, console: Console | None = None) -> dict[str, np.ndarray]:
    """`steps` transitions of whole episodes (the last one cut) with actions drawn from the policy."""
    envs = [make(environment) for _ in range(min(SIDE_BY_SIDE, steps))]
    episode = iter(range(steps + len(envs)))

    def start(env: Any) -> Any:
        return env.reset(seed=(seed * 1_000_003 + 500_000 + next(episode)) % 2**31)[0]

    running: list[list[tuple[Any, ...]]] = [[] for _ in envs]
    finished: list[list[tuple[Any, ...]]] = []
    seen = [start(env) for env in envs]
    policy.reset(num_envs=len(envs))
    count = rows = 0
    with progress_bar(console) as progress:
        task = progress.add_task(f"rolling out in {environment}", total=steps)
        while rows < steps:
            actions = policy.act(np.stack(seen), deterministic=False)
            for i, env in enumerate(envs):
                after, reward, ended, cut, _ = env.step(actions[i])
                running[i].append((seen[i], actions[i], float(reward), after, bool(ended), bool(cut and not ended)))
                seen[i] = after
                if ended or cut:
                    finished.append(running[i])
                    rows += len(running[i])
                    running[i], seen[i] = [], start(env)
            count += len(envs)
            progress.update(task, completed=min(count, steps))
            if count >= steps + sum(map(len, running)):
                break
    kept = [row for part in finished for row in part] + [row for part in running if part for row in cut_off(part)]
    columns = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    arrays = {name: np.array(column) for name, column in zip(columns, zip(*kept[:steps], strict=True), strict=True)}
    arrays["truncated"][-1] |= not arrays["terminated"][-1]
    return {name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in arrays.items()}


def cut_off(part: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """An episode that the recording ended."""
    return [*part[:-1], (*part[-1][:-1], True)]
