"""Agents: pure learning code, one file an algorithm."""

from apev.agents.agent import Agent
from apev.agents.apev import APEV, APEVConfig
from apev.agents.dqn import DQN, DQNConfig
from apev.agents.lcb import LCB, LCBConfig

REGISTRY: dict[str, tuple[type[DQN], type[DQNConfig]]] = {
    "dqn": (DQN, DQNConfig),
    "lcb": (LCB, LCBConfig),
    "ape-v": (APEV, APEVConfig),
}
"""Agents by the name they have in files and on the command line."""

__all__ = ["APEV", "DQN", "LCB", "REGISTRY", "APEVConfig", "Agent", "DQNConfig", "LCBConfig"]
