"""Watch a policy change its mind: one episode of Locked Doors, step by step, with the belief over its members.

    python examples/watch_belief.py

The agent is trained for a minute on the photographs that are shipped in the package. It reads one that it has never seen, walks
to the door it believes in, and if that is locked believes in another member.
"""

import gymnasium
import numpy as np

import apev
import apev.envs  # registers apev/LockedDoors-v0
from apev.envs import Room, collect, load_images

MOVES = ("up", "right", "down", "left")


def main(updates: int = 300, steps: int = 50) -> list[np.ndarray]:
    """Train, then walk one room; returns the belief after every step."""
    images = load_images()
    log = apev.Dataset.from_arrays(**collect(images, Room(), 2, seed=0), num_actions=4)
    policy = apev.train(log, "ape-v", updates=updates, gamma=0.9, wildcards=4, temperature=0.5)
    env = gymnasium.make("apev/LockedDoors-v0")
    obs, _ = env.reset(seed=3)
    policy.reset()
    beliefs = []
    for step in range(steps):
        action = policy.act(obs, deterministic=False)
        obs, reward, terminated, truncated, _ = env.step(action)
        policy.observe(reward, obs, terminated)
        beliefs.append(policy.belief)
        weights = " ".join(f"{weight:.2f}" for weight in policy.belief)
        print(f"{step:2} {MOVES[action]:5}  belief {weights}")
        if terminated or truncated:
            print("the door was open" if terminated else "out of time")
            break
    return beliefs


if __name__ == "__main__":
    main()
