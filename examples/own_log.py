"""Your own log: arrays in, a policy out, and a table of what it is worth.

python examples/own_log.py
"""

import gymnasium
import numpy as np

import apev


def play(episodes: int = 200) -> apev.Dataset:
    """Rows as you may have them: here a controller that balances a pole, and presses a wrong button now and then."""
    env, rng, rows = gymnasium.make("CartPole-v1"), np.random.default_rng(0), []
    for episode in range(episodes):
        obs, over = env.reset(seed=episode)[0], False
        while not over:
            action = int(obs[2] + obs[3] > 0) if rng.random() < 0.7 else int(rng.integers(2))
            next_obs, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward, next_obs, terminated, truncated and not terminated))
            obs, over = next_obs, terminated or truncated
    observations, actions, rewards, following, terminals, cuts = map(np.array, zip(*rows, strict=True))
    return apev.Dataset.from_arrays(observations, actions, rewards, terminals, cuts, next_observations=following)


def main(updates: int = 2000, episodes: int = 20) -> apev.Policy:
    """Train by cloning, and show the table."""
    policy = apev.train(play(), "bc", updates=updates)
    print(apev.evaluate(policy, "CartPole-v1", episodes=episodes))
    return policy


if __name__ == "__main__":
    main()
