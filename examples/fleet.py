"""A fleet of machines, some wired the wrong way round: is there anything to adapt to, and what does adapting earn?

python examples/fleet.py
"""

import apev
from apev.envs.fleet import pendulum_log


def main(machines: int = 20, updates: int = 900, episodes: int = 10) -> apev.Policy:
    """Ask the log, train, and compare with a policy that is the same for all machines."""
    log, _ = pendulum_log(machines)  # which way round each is wired is not in it
    found = apev.kinds(log)
    print(found)

    # The kinds are known now; training need not look for them again.
    labels = [int(kind) for kind in found.kind]
    policy = apev.train(log, updates=updates, kinds=labels if found.count > 1 else 1)
    pooled = apev.train(log, "td3-bc", updates=updates)
    table = apev.evaluate({"apev": policy, "td3-bc": pooled}, "apev/PendulumFleet-v0", episodes=episodes)
    print(table)
    return policy


if __name__ == "__main__":
    main()
