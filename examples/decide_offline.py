"""Which policy to deploy, without an environment: values from the log alone, and how far to trust them.

python examples/decide_offline.py
"""

import apev
from apev.envs.fleet import customers_log


def main(customers: int = 1000, updates: int = 300, fit: int | None = 300) -> str:
    """Train on one part of the log, value on the other; returns the name of the policy to deploy."""
    log, _ = customers_log(customers)
    learn, judge = log.split(0.3, seed=0)  # whole customers: none is in both
    policies = {
        "ape-v": apev.train(learn, updates=updates),
        "bc": apev.train(learn, "bc", updates=updates),
        "cql": apev.train(learn, "cql", updates=updates),
    }
    found = apev.fqe(policies, judge, updates=fit)
    print(found)

    # The surest, not the luckiest: the highest lower end of an interval.
    best = max(found.rows, key=lambda row: row.value.low)
    print(f"\ndeploy {best.name}: {best.value}, {best.coverage.little_known:.0%} of its actions are hardly known to the log")
    if best.verdict:
        print(best.verdict)
    return best.name


if __name__ == "__main__":
    main()
