"""From a table to a policy that adapts: customers of hidden segments, and what to offer them.

python examples/customers.py
"""

import apev
from apev.envs.fleet import customers_frame
from apev.envs.make import make

SEEN = ["visit", "age", "basket"]


def main(customers: int = 1000, updates: int = 600, episodes: int = 200) -> apev.Policy:
    """Read the table, train, compare with cloning, and watch one customer."""
    # A table with one row a visit: who, when, what was seen, which offer was made, what it earned.
    visits, _ = customers_frame(customers)
    print(visits.head(3).to_string(index=False))
    log = apev.Dataset.from_frame(visits, episode="customer", time="visit", observations=SEEN, action="offer", reward="reward")

    # Nobody wrote down the segments. Training looks for them, says what it found, and has a member for each.
    policy = apev.train(log, updates=updates)
    static = apev.train(log, "bc", updates=updates)
    print(apev.evaluate({"apev": policy, "bc": static}, "apev/Customers-v0", episodes=episodes))

    # One customer, visit by visit: the belief finds out what this one likes.
    env = make("apev/Customers-v0")
    obs, over = env.reset(seed=1)[0], False
    policy.reset()
    while not over:
        action = policy.act(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        policy.observe(reward, obs, terminated)
        weights = " ".join(f"{weight:.2f}" for weight in policy.belief)
        print(f"{policy.action_names[action]:9} earned {float(reward):5.2f}   belief {weights}")
        over = terminated or truncated
    return policy


if __name__ == "__main__":
    main()
