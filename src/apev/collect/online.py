"""Online SAC, the teacher whose attempts become data; the agent is the one of `agents/sac.py`.

A folder holds

    config.json                 what was asked for
    replay/                     every transition since the first step: the agent learns from it, medium-replay data is it
    curve.jsonl                 the greedy policy's return every `eval_every` steps
    policies/0005000/           the policy then
    checkpoints/                everything else the coming steps depend on, saved between two episodes

Each episode starts from a seed that follows from its number, so that a run which was killed goes on from its last checkpoint
and ends with the same data as one that never stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from rich.console import Console

from apev.agents import SAC, SACConfig
from apev.checkpoint import LATEST, Progress, load_checkpoint, save_checkpoint
from apev.collect.replay import Replay
from apev.data.batch import Layout
from apev.envs.make import make
from apev.files import append_line, read_lines, write_json
from apev.loop import Interrupted, check_settings, keep_lines_until
from apev.policy import Policy
from apev.progress import progress_bar
from apev.rollout import GymnasiumBatch, rollout
from apev.signals import Stop, stop_on_signal


@dataclass(frozen=True)
class OnlineConfig:
    """How the teacher learns."""

    steps: int = 1_000_000
    """Environment steps, one gradient step each."""
    random_steps: int = 5000
    """Steps with uniformly random actions before it acts itself."""
    batch_size: int = 256
    """Transitions an update."""
    eval_every: int = 5000
    """Steps between two evaluations; each keeps the policy."""
    eval_episodes: int = 10
    """Episodes an evaluation."""
    checkpoint_every: int = 10_000
    """Steps between two checkpoints, which wait for the end of an episode."""


def layout_of(env: gymnasium.Env[Any, Any]) -> Layout:
    """What an agent must know of this environment."""
    seen, acted = env.observation_space, env.action_space
    if not isinstance(seen, gymnasium.spaces.Box) or not isinstance(acted, gymnasium.spaces.Box):
        raise ValueError(
            f"{env.spec.id if env.spec else env} has observations {seen} and actions {acted}. "
            "Fix: name an environment where both are a Box of numbers."
        )
    if len(seen.shape) != 1 or len(acted.shape) != 1 or not np.isfinite([acted.low, acted.high]).all():
        raise ValueError(f"observations {seen}, actions {acted}. Fix: vectors, and actions with finite bounds.")
    low, high = (tuple(float(x) for x in bound) for bound in (acted.low, acted.high))
    return Layout((("observation", seen.shape[0]),), None, None, 0, bare=True, action_low=low, action_high=high)


class OnlineSAC:
    """A teacher at work in one environment; `run` takes it to a number of steps or to a return."""

    def __init__(
        self,
        environment: str,
        folder: Path,
        config: OnlineConfig,
        agent: SACConfig,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings`: of the environment, plain values."""
        self.environment, self.folder, self.config, self.seed = environment, folder, config, seed
        self.settings = dict(settings or {})
        self.env = make(environment, **self.settings)
        self.layout = layout_of(self.env)
        self.agent = SAC(self.layout, agent, seed=seed)
        self.replay = Replay(folder / "replay", config.steps, self.layout, config.batch_size, seed)
        self.test = GymnasiumBatch(lambda: make(environment, **self.settings), config.eval_episodes, seed=10_000 + seed)
        self.console = Console(stderr=True)

    def run(self, target: float | None = None, *, resume: bool = False) -> list[dict[str, Any]]:
        """Train until `config.steps`, or until evaluations reach `target`; returns the curve, from the untrained policy on."""
        c, checkpoint = self.config, self.folder / LATEST
        about = {"environment": self.environment, "seed": self.seed, "agent_config": asdict(self.agent.config)}
        about |= {"settings": self.settings} if self.settings else {}
        about["online"] = {k: v for k, v in asdict(c).items() if k != "steps"}
        if checkpoint.exists():
            if not resume:
                raise FileExistsError(f"{self.folder} already holds a teacher. Fix: --resume, or name another --out.")
            check_settings(self.folder, about)
            load_checkpoint(checkpoint, self.agent, self.replay)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "config.json", about)
        curve_file = self.folder / "curve.jsonl"
        keep_lines_until(curve_file, Progress(len(self.replay)))
        curve = read_lines(curve_file) if curve_file.exists() else []
        if not curve:
            curve.append(self.evaluate())
            append_line(curve_file, curve[0])
        if any(reached(curve[: i + 1], target) for i in range(len(curve))):
            return curve
        saved = len(self.replay)
        with stop_on_signal() as stop, progress_bar(self.console) as progress:
            task = progress.add_task(f"SAC in {self.environment}", total=c.steps, completed=saved)
            while len(self.replay) < c.steps:
                for line in self.episode(stop):
                    append_line(curve_file, line)
                    curve.append(line)
                    progress.update(task, description=f"SAC in {self.environment}: return {line['return']:,.0f}")
                progress.update(task, completed=len(self.replay))
                if stop.asked:
                    raise Interrupted(f"stopped; --resume goes on from step {saved:,}")
                done = reached(curve, target) or len(self.replay) >= c.steps
                if done or len(self.replay) - saved >= c.checkpoint_every:
                    self.replay.flush()
                    save_checkpoint(checkpoint, self.agent, self.replay, Progress(len(self.replay)))
                    saved = len(self.replay)
                if done:
                    break
        return curve

    def episode(self, stop: Stop) -> list[dict[str, Any]]:
        """One episode, with an update a step; the evaluations that fell due. Cut short where the budget ends or Ctrl-C came."""
        c, replay, lines = self.config, self.replay, []
        obs, _ = self.env.reset(seed=(self.seed * 1_000_003 + replay.episodes) % 2**31)
        over = False
        while not over and not stop.asked:
            action = self.random_action() if len(replay) < c.random_steps else self.drawn_action(obs)
            after, reward, ended, cut, _ = self.env.step(action)
            over = bool(ended or cut or len(replay) + 1 == c.steps)
            replay.add(obs, action, float(reward), after, bool(ended), over and not ended)
            obs = after
            if len(replay) > c.random_steps:
                self.agent.update(replay.sample())
            if len(replay) % c.eval_every == 0:
                lines.append(self.evaluate())
        return lines

    def random_action(self) -> np.ndarray:
        """Uniform within the bounds."""
        low, high = torch.tensor(self.layout.action_low), torch.tensor(self.layout.action_high)
        return (low + (high - low) * torch.rand(len(low), generator=self.agent.generator)).numpy()

    def drawn_action(self, obs: Any) -> np.ndarray:
        """As the agent would, with its noise."""
        seen = self.layout.read(obs[None])
        return self.agent.act(seen, torch.zeros(1, 1), greedy=False)[0].numpy()

    def evaluate(self) -> dict[str, Any]:
        """The greedy policy's mean return; the policy is kept. Training's random numbers are not touched."""
        update, before = len(self.replay), self.agent.generator.get_state()
        policy = Policy(self.agent)
        returns = rollout(policy, self.test).returns
        self.agent.generator.set_state(before)
        policy.save(self.folder / "policies" / f"{update:07d}")
        return {"update": update, "return": float(returns.mean()), "returns": [round(float(r), 3) for r in returns]}


def reached(curve: list[dict[str, Any]], target: float | None) -> bool:
    """Whether the last three evaluations are, on average, good enough to stop: one alone may be luck."""
    recent = [line["return"] for line in curve[-3:]]
    return target is not None and len(recent) == 3 and sum(recent) / 3 >= target
