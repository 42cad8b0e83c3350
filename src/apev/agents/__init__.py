"""Agents: pure learning code, one file an algorithm."""

from typing import Any

from apev.agents.agent import Agent, BeliefConfig
from apev.agents.apev import APEV, APEVConfig
from apev.agents.apev_sac import APEVSAC, APEVSACConfig
from apev.agents.dqn import DQN, DQNConfig
from apev.agents.lcb import LCB, LCBConfig
from apev.agents.sac import SAC, SACConfig

REGISTRY: dict[str, tuple[type[Agent], type[Any]]] = {
    "dqn": (DQN, DQNConfig),
    "lcb": (LCB, LCBConfig),
    "ape-v": (APEV, APEVConfig),
    "sac": (SAC, SACConfig),
    "ape-v-sac": (APEVSAC, APEVSACConfig),
}
"""Agents by the name they have in files and on the command line."""

__all__ = [
    "APEV",
    "APEVSAC",
    "DQN",
    "LCB",
    "REGISTRY",
    "SAC",
    "APEVConfig",
    "APEVSACConfig",
    "Agent",
    "BeliefConfig",
    "DQNConfig",
    "LCBConfig",
    "SACConfig",
]
