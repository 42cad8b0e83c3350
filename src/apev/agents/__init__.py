"""Agents: pure learning code, one file an algorithm."""

from typing import Any

from apev.agents.agent import Agent, BeliefConfig
from apev.agents.apev import APEV, APEVConfig
from apev.agents.apev_c51 import APEVC51, APEVC51Config
from apev.agents.apev_sac import APEVSAC, APEVSACConfig
from apev.agents.bc import BC, BCConfig
from apev.agents.c51 import C51, C51LCB, C51Config, C51LCBConfig
from apev.agents.cql import CQL, CQLConfig
from apev.agents.discrete_bc import DiscreteBC, DiscreteBCConfig
from apev.agents.discrete_cql import DiscreteCQL, DiscreteCQLConfig
from apev.agents.discrete_iql import DiscreteIQL, DiscreteIQLConfig
from apev.agents.discrete_rem import DiscreteREM, DiscreteREMConfig
from apev.agents.dqn import DQN, DQNConfig
from apev.agents.edac import EDAC, EDACConfig
from apev.agents.iql import IQL, IQLConfig
from apev.agents.lcb import LCB, LCBConfig
from apev.agents.rem import REM, REMConfig
from apev.agents.sac import SAC, SACConfig

REGISTRY: dict[str, tuple[type[Agent], type[Any]]] = {
    "dqn": (DQN, DQNConfig),
    "lcb": (LCB, LCBConfig),
    "ape-v": (APEV, APEVConfig),
    "discrete-bc": (DiscreteBC, DiscreteBCConfig),
    "discrete-rem": (DiscreteREM, DiscreteREMConfig),
    "discrete-cql": (DiscreteCQL, DiscreteCQLConfig),
    "discrete-iql": (DiscreteIQL, DiscreteIQLConfig),
    "bc": (BC, BCConfig),
    "c51": (C51, C51Config),
    "c51-lcb": (C51LCB, C51LCBConfig),
    "ape-v-c51": (APEVC51, APEVC51Config),
    "sac": (SAC, SACConfig),
    "edac": (EDAC, EDACConfig),
    "rem": (REM, REMConfig),
    "cql": (CQL, CQLConfig),
    "iql": (IQL, IQLConfig),
    "ape-v-sac": (APEVSAC, APEVSACConfig),
}
"""Agents by the name they have in files."""

DISCRETE = {name: name for name in ("ape-v", "dqn", "lcb")} | {n: f"discrete-{n}" for n in ("rem", "cql", "iql", "bc")}
CONTINUOUS = {"ape-v": "ape-v-sac", "sac-n": "sac"} | {name: name for name in ("sac", "edac", "rem", "cql", "iql", "bc")}
"""Agents by the name they have on the command line, for logs of discrete and of continuous actions."""

NAMED: dict[str, dict[str, Any]] = {"sac-n": {"critics": 10}}
"""What a name of the command line stands for beyond the agent: SAC-N is SAC with more critics."""


def registered(name: str, discrete: bool) -> str:
    """The name in REGISTRY of the agent called `name` that fits a log's actions."""
    fitting = DISCRETE if discrete else CONTINUOUS
    if name not in fitting:
        kind, choice = "discrete" if discrete else "continuous", ", ".join(fitting)
        raise ValueError(f"{name} does not learn from {kind} actions, which this log has. Fix: pick one of {choice}.")
    return fitting[name]


__all__ = [
    "APEV",
    "APEVC51",
    "APEVSAC",
    "BC",
    "C51",
    "C51LCB",
    "CONTINUOUS",
    "CQL",
    "DISCRETE",
    "DQN",
    "EDAC",
    "IQL",
    "LCB",
    "NAMED",
    "REGISTRY",
    "REM",
    "SAC",
    "APEVC51Config",
    "APEVConfig",
    "APEVSACConfig",
    "Agent",
    "BCConfig",
    "BeliefConfig",
    "C51Config",
    "C51LCBConfig",
    "CQLConfig",
    "DQNConfig",
    "DiscreteBC",
    "DiscreteBCConfig",
    "DiscreteCQL",
    "DiscreteCQLConfig",
    "DiscreteIQL",
    "DiscreteIQLConfig",
    "DiscreteREM",
    "DiscreteREMConfig",
    "EDACConfig",
    "IQLConfig",
    "LCBConfig",
    "REMConfig",
    "SACConfig",
    "registered",
]
