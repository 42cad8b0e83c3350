"""Does a policy keep its wits for a million steps? python reliability/soak.py --out results/reliability/soak.json

Policies of untrained agents run in 1,000 environments for 1,000 steps. Most steps are ordinary. Others are invalid (NaN,
infinite, wrong shapes and lengths, impossible flags and actions), extreme (finite, but so large that networks may overflow),
or hold nonsense where nobody looks (rows that are not active). What must hold, every time:

    refused    an invalid step ends in an error, and leaves every belief exactly as it was; the right step then counts
    accepted   beliefs are finite and on the simplex; rows that are not active, or not reset, keep theirs bit for bit
    extreme    one or the other
    memory     the process does not grow in the second half of the steps

The last line is JSON; the exit code is 1 if anything did not hold.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

# oneDNN compiles code for every number of rows and keeps the last thousand of them, hundreds of megabytes for 1,000
# environments that are shared among actors: a leak of ours would drown in it. Read when apev is imported.
os.environ.setdefault("APEV_ONEDNN", "0")

import numpy as np
import torch
import tyro
from common import bar, keep, tell
from forks import resident
from samples import continuous, discrete, untrained

from apev.policy import Policy

POLICIES: dict[str, tuple[str, str, Any]] = {  # agent, log, adapt
    "discrete": ("ape-v", "discrete", "bayes"),
    "committed": ("dqn", "discrete", "commit"),
    "continuous": ("ape-v-sac", "continuous", "bayes"),
}
REFUSALS = (ValueError, TypeError, KeyError)  # a RuntimeError too, if it says what to do
GROWTH = 8 << 20  # bytes: an allocator's noise
KEPT = 20  # examples of what did not hold


@dataclass(frozen=True)
class Options:
    """Run policies for long, with invalid and extreme values mixed in."""

    environments: int = 1000
    """Side by side."""
    steps: int = 1000
    """Of each."""
    seed: int = 0
    """Decides everything."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write all numbers to this JSON file."""


@dataclass
class Soak:
    """One policy, and what happened to it."""

    name: str
    policy: Policy
    count: int
    rng: np.random.Generator
    counts: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)

    @property
    def width(self) -> int:
        """Of an observation."""
        return self.policy.agent.layout.vector_dim

    # ------------------------------------------------------------------ ordinary values

    def obs(self) -> np.ndarray:
        """What the environments show."""
        return self.rng.normal(size=(self.count, self.width)).astype(np.float32)

    def executed(self) -> np.ndarray:
        """Actions that somebody else chose."""
        layout = self.policy.agent.layout
        if layout.action_dim:
            return self.rng.uniform(-1, 1, (self.count, layout.action_dim)).astype(np.float32)
        return self.rng.integers(0, layout.num_actions, self.count)

    def outcome(self) -> dict[str, Any]:
        """The arguments of an ordinary `observe`."""
        ended = self.rng.random(self.count) < 0.02
        return {"reward": self.rng.normal(size=self.count), "next_obs": self.obs(), "terminated": ended}

    def spoil(self, array: np.ndarray, *values: float) -> np.ndarray:
        """The array as floats, with one of these values in a few places."""
        spoiled = np.array(array, dtype=np.float64)
        flat = spoiled.reshape(-1)
        flat[self.rng.integers(0, flat.size, self.rng.integers(1, 4))] = self.rng.choice(values)
        return spoiled

    # ------------------------------------------------------------------ invalid and extreme values

    def invalid_observations(self, obs: np.ndarray) -> Any:
        """What no policy may act on."""
        n, width = obs.shape
        return self._pick(
            lambda: self.spoil(obs, np.nan, np.inf, -np.inf),
            lambda: obs[:, :-1],
            lambda: np.concatenate([obs, obs], axis=1),
            lambda: obs[:-1],
            lambda: obs[None],
            lambda: obs.astype(str),
            lambda: [None] * n,
            lambda: {"x": obs},
            lambda: obs.reshape(-1),
            lambda: np.zeros((0, width), np.float32),
        )

    def invalid_outcome(self, good: dict[str, Any]) -> dict[str, Any]:
        """An `observe` that must be refused."""
        n = self.count
        bad = dict(good)
        which = self.rng.choice(["reward", "next_obs", "terminated", "action", "active"], p=[0.3, 0.25, 0.2, 0.15, 0.1])
        if which == "reward":
            reward = good["reward"]
            bad[which] = self._pick(
                lambda: self.spoil(reward, np.nan, np.inf, -np.inf),
                lambda: reward[:, None],
                lambda: reward[:-1],
                lambda: np.append(reward, 0.0),
                lambda: float(reward[0]),
                lambda: None,
                lambda: reward.astype(str),
                lambda: np.tile(reward[:, None], (1, self.policy.members)),
                lambda: reward + 1j,
            )
        elif which == "next_obs":
            bad[which] = self.invalid_observations(good["next_obs"])
        elif which == "terminated":
            ended = good["terminated"]
            bad[which] = self._pick(
                lambda: self.spoil(ended, np.nan, np.inf, 2, -1, 0.5),
                lambda: ended[:, None],
                lambda: ended[:-1],
                lambda: None,
                lambda: ["no"] * n,
            )
        elif which == "action":
            done = self.executed()
            over = 0 if self.policy.agent.layout.action_dim else 1e9  # continuous ones may be as large as they like
            bad[which] = self._pick(
                lambda: self.spoil(done, np.nan, np.inf, *((over, -1, 0.5) if over else ())),
                lambda: done[:-1],
                lambda: done[None],
                lambda: done.astype(str),
                lambda: np.zeros((n, 7)),
            )
        else:
            bad[which] = self._pick(
                lambda: np.ones(n - 1, dtype=bool),
                lambda: np.ones((n, 1), dtype=bool),
                lambda: np.full(n, np.nan),
                lambda: np.full(n, 2),
                lambda: "all",
            )
        return bad

    def extreme_outcome(self, good: dict[str, Any]) -> dict[str, Any]:
        """Finite values that a network may or may not bear."""
        large = (1e6, 1e12, 1e20, -1e30, 3e38, -3e38)
        which = self.rng.choice(["reward", "next_obs"])
        return good | {which: self.spoil(good[which], *large)}

    def invalid_mask(self) -> Any:
        """A mask that `reset` must refuse."""
        n = self.count
        return self._pick(
            lambda: np.ones(n + 1, dtype=bool),
            lambda: np.ones((n, 2), dtype=bool),
            lambda: np.full(n, np.nan),
            lambda: [True],
            lambda: np.full(n, 3),
            lambda: "all",
        )

    def _pick(self, *ways: Callable[[], Any]) -> Any:
        return ways[self.rng.integers(len(ways))]()

    # ------------------------------------------------------------------ what must hold

    def expect(self, holds: bool, what: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.counts["broken"] += 1
            self.broken[what[:200]] += 1

    def refuse(self, call: Callable[[], Any], what: Callable[[], str]) -> None:
        """The call must end in an error and change no belief."""
        before = self.policy.state.log_belief.clone()
        told = self._error(call)
        self.counts["refused" if told else "accepted_invalid"] += 1
        self.expect(bool(told), f"accepted: {what()}")
        self.expect(torch.equal(before, self.policy.state.log_belief), f"refused, but the belief moved: {what()}")

    def _error(self, call: Callable[[], Any]) -> str:
        try:
            call()
        except Exception as error:
            ours = isinstance(error, REFUSALS) or (isinstance(error, RuntimeError) and "Fix:" in str(error))
            self.expect(ours, f"raw error {error!r:.200}")
            return repr(error)
        return ""

    def check(self, before: torch.Tensor, untouched: np.ndarray | None, what: str) -> None:
        """Beliefs are finite and on the simplex; these rows have not moved."""
        now = self.policy.state.log_belief
        weights = now.double().exp()
        self.expect(bool(torch.isfinite(now).all()), f"belief not finite after {what}")
        self.expect(bool(((weights.sum(-1) - 1).abs() < 1e-4).all()), f"belief off the simplex after {what}")
        if untouched is not None:
            rows = torch.as_tensor(untouched)
            self.expect(torch.equal(before[rows], now[rows]), f"rows that are left alone moved after {what}")

    # ------------------------------------------------------------------ one step

    def turn(self) -> None:
        """One step; a valid call that fails is noted, and all begin anew."""
        try:
            self.step()
        except Exception as error:
            self.expect(False, f"a valid call failed: {error!r:.200}")
            self.policy.reset(num_envs=self.count)

    def step(self) -> None:
        """Act, observe, perhaps reset; some of it wrong."""
        policy, rng, n = self.policy, self.rng, self.count
        obs = self.obs()
        if rng.random() < 0.1 and policy.state.obs is not None:  # a policy that has seen nothing takes any number of rows
            wrong = self.invalid_observations(obs)
            self.refuse(lambda: policy.act(wrong), lambda: f"act({_told(wrong)})")
        if rng.random() < 0.05:
            self._extreme_act(obs)
        before = policy.state.log_belief.clone()
        action = np.asarray(policy.act(obs, deterministic=bool(rng.random() < 0.7)))
        self.counts["acts"] += 1
        self._check_actions(action)
        self.expect(torch.equal(before, policy.state.log_belief), "act() moved the belief")
        good = self.outcome()
        if rng.random() < 0.3:
            bad = self.invalid_outcome(good)
            self.refuse(lambda: policy.observe(**bad), lambda: f"observe({_told(bad)})")
        if rng.random() < 0.1:
            extreme = self.extreme_outcome(good)
            told = self._error(lambda: policy.observe(**extreme))
            self.counts["extreme_refused" if told else "extreme_accepted"] += 1
            if told:
                self.expect(torch.equal(before, policy.state.log_belief), f"refused, but the belief moved: {_told(extreme)}")
            else:
                self.check(before, None, f"observe({_told(extreme)})")
                return
        untouched = None
        if rng.random() < 0.3:
            active = rng.random(n) < 0.8
            good["active"], untouched = active, ~active
            if untouched.any() and rng.random() < 0.5:  # nonsense where nobody looks
                for name in ("reward", "next_obs", "terminated"):
                    good[name] = np.array(good[name], dtype=np.float64)
                    good[name][untouched] = rng.choice([np.nan, np.inf, 3e38])
        if rng.random() < 0.3:
            good["action"] = self.executed()
        told = self._error(lambda: policy.observe(**good))
        self.expect(not told, f"refused a valid step: {told}: {_told(good)}")
        self.counts["accepted"] += not told
        self.check(before, untouched, "observe")
        if rng.random() < 0.1:
            again = self.outcome()
            self.refuse(lambda: policy.observe(**again), lambda: "observe() again without act()")
        self._reset(good["terminated"])

    def _extreme_act(self, obs: np.ndarray) -> None:
        spoiled = self.spoil(obs, 1e6, 1e12, 1e20, -1e30, 3e38)
        before = self.policy.state.log_belief.clone()
        found: list[Any] = []
        told = self._error(lambda: found.append(self.policy.act(spoiled)))
        self.counts["extreme_refused" if told else "extreme_accepted"] += 1
        self.expect(torch.equal(before, self.policy.state.log_belief), f"act({_told(spoiled)}) moved the belief")
        if found:
            self._check_actions(np.asarray(found[0]))

    def _check_actions(self, action: np.ndarray) -> None:
        layout = self.policy.agent.layout
        if layout.action_dim:
            fits = action.shape == (self.count, layout.action_dim) and bool(np.isfinite(action).all())
            low, high = np.array(layout.action_low), np.array(layout.action_high)
            fits = fits and bool(((action >= low - 1e-3) & (action <= high + 1e-3)).all())
        else:
            fits = action.shape == (self.count,) and bool(((action >= 0) & (action < layout.num_actions)).all())
        self.expect(fits, f"actions out of range: {_told(action)}")

    def _reset(self, ended: np.ndarray) -> None:
        policy, rng = self.policy, self.rng
        if rng.random() < 0.05:
            mask, keep = self.invalid_mask(), bool(rng.random() < 0.5)
            self.refuse(lambda: policy.reset(mask, keep_belief=keep), lambda: f"reset({_told(mask)}, keep_belief={keep})")
        if rng.random() < 0.01:
            self.refuse(lambda: policy.reset(num_envs=0), lambda: "reset(num_envs=0)")
        if rng.random() < 0.02:
            policy.reset(num_envs=self.count)
            self.counts["resets"] += 1
            return
        mask = np.nan_to_num(np.asarray(ended, dtype=np.float64), posinf=1.0) == 1
        if mask.any():
            before = policy.state.log_belief.clone()
            keep = bool(rng.random() < 0.2)
            policy.reset(mask, keep_belief=keep)
            self.counts["resets"] += 1
            self.check(before, None if keep else ~mask, "reset")
            if keep:
                self.expect(torch.equal(before, policy.state.log_belief), "reset(keep_belief=True) moved the belief")


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_told(item)}" for key, item in value.items())
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        odd = value[~(np.abs(value) < 100)] if value.dtype.kind == "f" else value[:0]
        return f"{value.dtype}{list(value.shape)}" + (f" with {odd.reshape(-1)[0]}" if odd.size else "")
    return repr(value)[:60]


def make(name: str, environments: int, seed: int) -> Soak:
    """A policy of an untrained agent."""
    agent, log, adapt = POLICIES[name]
    policy = Policy(untrained(agent, {"discrete": discrete, "continuous": continuous}[log]()), adapt, seed=seed)
    policy.reset(num_envs=environments)
    return Soak(name, policy, environments, np.random.default_rng([seed, len(name)]))


def soak(options: Options, show: bool = True) -> dict[str, Any]:
    """Run every policy; counts, growth in bytes, and what did not hold."""
    counts: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    growth: dict[str, float] = {}
    began = time.monotonic()
    with bar(show) as progress:
        for name in POLICIES:
            task = progress.add_task(name, total=options.steps)
            run = make(name, options.environments, options.seed)
            warm = 0
            for step in range(options.steps):
                run.turn()
                progress.update(task, advance=1, refresh=step % 20 == 19)
                if step == options.steps // 2:
                    gc.collect()
                    warm = resident()
            gc.collect()
            growth[name] = round((resident() - warm) / 1e6, 2)
            counts.update(run.counts)
            broken.update({f"{name}: {what}": times for what, times in run.broken.items()})
    flat = all(megabytes * 1e6 < GROWTH for megabytes in growth.values())
    names = ("acts", "accepted", "refused", "accepted_invalid", "extreme_accepted", "extreme_refused", "resets", "broken")
    return {
        "environments": options.environments,
        "steps": options.steps,
        "seed": options.seed,
        "policies": list(POLICIES),
        **{name: counts[name] for name in names},
        "memory_flat": flat,
        "growth_mb": growth,
        "seconds": round(time.monotonic() - began, 1),
        "examples": dict(broken.most_common(KEPT)),
    }


def main(options: Options) -> None:
    """Run it, and end with the line of JSON."""
    if options.environments < 2 or options.steps < 10:
        raise SystemExit("too few. Fix: at least --environments 2 --steps 10.")
    torch.set_num_threads(1)
    answer = soak(options)
    for what, times in answer["examples"].items():
        tell(f"{times} x {what}")
    words = f"--environments {options.environments} --steps {options.steps} --seed {options.seed}"
    keep(options.out, answer, f"python reliability/soak.py {words}")
    print(json.dumps({key: value for key, value in answer.items() if key != "examples"}))
    if answer["broken"] or not answer["memory_flat"]:
        sys.exit(1)


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
