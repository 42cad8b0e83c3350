"""Environments with a hidden kind: which machine, which customer.

The kind stays the same through a context, and no agent sees it. True kinds are returned beside a log, never in it.
"""

from apev.envs.fleet.customers import customers_frame, customers_log, exact_values
from apev.envs.fleet.pendulum import pendulum_log
from apev.envs.fleet.wiring import wired
from apev.envs.fleet.worn import worn_log

__all__ = ["customers_frame", "customers_log", "exact_values", "pendulum_log", "wired", "worn_log"]
