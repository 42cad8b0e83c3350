"""Your own environment: whatever Gymnasium can step, a function that makes it is enough.

python examples/own_environment.py
"""

from typing import Any

import gymnasium
import numpy as np

import apev


class Thermostat(gymnasium.Env[np.ndarray, Any]):
    """A room to keep at 20 degrees: heat or do not; it is cold outside."""

    observation_space = gymnasium.spaces.Box(-30.0, 60.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A room as it was found."""
        super().reset(seed=seed)
        self.temperature, self.time = float(self.np_random.uniform(10, 30)), 0
        return np.array([self.temperature], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Ten minutes."""
        self.temperature += 2.0 * action - 0.1 * (self.temperature - 5.0) / 2
        self.time += 1
        reward = -abs(self.temperature - 20.0) / 10
        return np.array([self.temperature], np.float32), reward, False, self.time == 50, {}


def log(episodes: int = 60) -> apev.Dataset:
    """Somebody who turns the knob at random, and mostly in the right direction."""
    env, rng, rows = Thermostat(), np.random.default_rng(0), []
    for episode in range(episodes):
        obs, over = env.reset(seed=episode)[0], False
        while not over:
            action = int(obs[0] < 20) if rng.random() < 0.6 else int(rng.integers(2))
            next_obs, reward, terminated, over, _ = env.step(action)
            rows.append((obs, action, reward, next_obs, terminated, over))
            obs = next_obs
    observations, actions, rewards, following, terminals, cuts = map(np.array, zip(*rows, strict=True))
    return apev.Dataset.from_arrays(observations, actions, rewards, terminals, cuts, next_observations=following)


def main(updates: int = 1500, episodes: int = 10) -> apev.Policy:
    """Two algorithms side by side."""
    data = log()
    policies = {name: apev.train(data, name, updates=updates) for name in ("bc", "cql")}
    print(apev.evaluate(policies, Thermostat, episodes=episodes))
    return policies["cql"]


if __name__ == "__main__":
    main()
