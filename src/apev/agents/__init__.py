"""Agents: pure learning code, one file an algorithm."""

from typing import Any

from apev.agents.agent import Agent, BeliefConfig
from apev.agents.apev import APEV, APEVConfig
from apev.agents.dqn import DQN, DQNConfig
from apev.agents.lcb import LCB, LCBConfig

REGISTRY: dict[str, tuple[type[Agent], type[Any]]] = {
    "dqn": (DQN, DQNConfig),
    "lcb": (LCB, LCBConfig),
    "ape-v": (APEV, APEVConfig),
}
"""Agents by the name they have in files and on the command line."""

__all__ = ["APEV", "DQN", "LCB", "REGISTRY", "APEVConfig", "Agent", "BeliefConfig", "DQNConfig", "LCBConfig"]
