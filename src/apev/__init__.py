"""Offline reinforcement learning that keeps adapting after deployment.

log = apev.Dataset.load("log.npz")
policy = apev.train(log, "ape-v", out="runs/mine")
print(apev.evaluate(policy, "CartPole-v1"))
policy = apev.load("runs/mine")
"""

__version__ = "0.2.0"

from apev.api import evaluate, train
from apev.data import Dataset
from apev.policy import Policy, load
from apev.sb3 import as_sb3
from apev.tuning import tune
from apev.valuation import fqe
from apev.worlds import Kinds, kinds

__all__ = ["Dataset", "Kinds", "Policy", "__version__", "as_sb3", "evaluate", "fqe", "kinds", "load", "train", "tune"]
