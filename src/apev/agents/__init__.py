"""Agents: pure learning code, one file an algorithm. `registry.py` says what algorithms there are; they are listed here."""

from apev.agents.agent import Agent, BeliefConfig
from apev.agents.continuous.anchored import AnchoredAPEVSAC, AnchoredSACConfig
from apev.agents.continuous.apev import APEVSAC, APEVSACConfig
from apev.agents.continuous.bc import BC, BCConfig
from apev.agents.continuous.cql import CQL, CQLConfig
from apev.agents.continuous.edac import EDAC, EDACConfig
from apev.agents.continuous.iql import IQL, IQLConfig
from apev.agents.continuous.rem import REM, REMConfig
from apev.agents.continuous.sac import SAC, SACConfig
from apev.agents.continuous.td3bc import TD3BC, TD3BCConfig
from apev.agents.discrete.apev import APEV, APEVConfig
from apev.agents.discrete.base import DQNConfig
from apev.agents.discrete.bc import DiscreteBC, DiscreteBCConfig
from apev.agents.discrete.cql import DiscreteCQL, DiscreteCQLConfig
from apev.agents.discrete.dqn import DQN
from apev.agents.discrete.iql import DiscreteIQL, DiscreteIQLConfig
from apev.agents.discrete.lcb import LCB, LCBConfig
from apev.agents.discrete.rem import DiscreteREM, DiscreteREMConfig
from apev.agents.distributional.apev import APEVC51, APEVC51Config
from apev.agents.distributional.base import C51Config
from apev.agents.distributional.c51 import C51
from apev.agents.distributional.lcb import C51LCB, C51LCBConfig
from apev.agents.history.gru import (
    GRUBC,
    GRUIQL,
    GRUBCConfig,
    GRUDiscreteBC,
    GRUDiscreteBCConfig,
    GRUDiscreteIQL,
    GRUDiscreteIQLConfig,
    GRUIQLConfig,
)
from apev.agents.history.stacked import (
    StackedBC,
    StackedBCConfig,
    StackedDiscreteBC,
    StackedDiscreteBCConfig,
    StackedDiscreteIQL,
    StackedDiscreteIQLConfig,
    StackedIQL,
    StackedIQLConfig,
)
from apev.agents.registry import AGENTS, ALGORITHMS, Algorithm, Variant, find, register, register_agent

RETURNS_SHARE = 0.1  # without it, values of the first thousands of updates mislead the actors (results/bases)
SUPPORT = 0.3  # of the likeliest action in a state: less likely ones are never chosen, which a small log needs

register(
    Algorithm(
        name="ape-v",
        label="APE-V",
        colour="#e8590c",
        about="adapts: a value function for each explanation of the log, and a belief over them",
        discrete=Variant(APEV, APEVConfig, "ape-v", {"support": SUPPORT}),
        continuous=Variant(
            TD3BC,
            TD3BCConfig,
            "td3-bc",
            {"members": 2, "returns_share": RETURNS_SHARE},
            base="td3-bc",
            other_bases=(
                Variant(APEVSAC, APEVSACConfig, "ape-v-sac", base="sac-n"),
                Variant(AnchoredAPEVSAC, AnchoredSACConfig, "ape-v-sac-anchored", base="sac-n-anchored"),
            ),
        ),
        adapts=True,
    )
)
register(
    Algorithm(
        name="dqn",
        label="DQN ensemble",
        colour="#1c7ed6",
        about="independent value functions; members=1 is plain DQN",
        discrete=Variant(DQN, DQNConfig, "dqn", {"support": SUPPORT}),
        adapts=True,
    )
)
register(
    Algorithm(
        name="lcb",
        label="LCB ensemble",
        colour="#3b8ea5",
        about="a conservative ensemble: mean less beta standard deviations",
        discrete=Variant(LCB, LCBConfig, "lcb"),
    )
)
register(
    Algorithm(
        name="sac",
        label="SAC",
        colour="#66a80f",
        about="soft actor-critic with two critics",
        continuous=Variant(SAC, SACConfig, "sac"),
    )
)
register(
    Algorithm(
        name="sac-n",
        label="SAC-N",
        colour="#1c7ed6",
        about="SAC with the minimum of ten critics (critics=N)",
        continuous=Variant(SAC, SACConfig, "sac", {"critics": 10}),
    )
)
register(
    Algorithm(
        name="edac",
        label="EDAC",
        colour="#845ef7",
        about="SAC-N whose critics' gradients are kept apart",
        continuous=Variant(EDAC, EDACConfig, "edac"),
    )
)
register(
    Algorithm(
        name="td3-bc",
        label="TD3+BC",
        colour="#0c8599",
        about="follows the values and stays close to what the log does",
        continuous=Variant(TD3BC, TD3BCConfig, "td3-bc"),
    )
)
register(
    Algorithm(
        name="rem",
        label="REM",
        colour="#d6336c",
        about="random mixtures of an ensemble obey one Bellman equation",
        discrete=Variant(DiscreteREM, DiscreteREMConfig, "discrete-rem"),
        continuous=Variant(REM, REMConfig, "rem"),
    )
)
register(
    Algorithm(
        name="cql",
        label="CQL",
        colour="#099268",
        about="values of actions that the log does not take are pushed down",
        discrete=Variant(DiscreteCQL, DiscreteCQLConfig, "discrete-cql"),
        continuous=Variant(CQL, CQLConfig, "cql"),
    )
)
register(
    Algorithm(
        name="iql",
        label="IQL",
        colour="#b8860b",
        about="clones the log's better actions",
        discrete=Variant(DiscreteIQL, DiscreteIQLConfig, "discrete-iql"),
        continuous=Variant(IQL, IQLConfig, "iql"),
    )
)
register(
    Algorithm(
        name="bc",
        label="BC",
        colour="#868e96",
        about="behaviour cloning: does as the log does",
        discrete=Variant(DiscreteBC, DiscreteBCConfig, "discrete-bc"),
        continuous=Variant(BC, BCConfig, "bc"),
    )
)
register(
    Algorithm(
        name="bc-stacked",
        label="BC, five steps stacked",
        colour="#a0695b",
        about="behaviour cloning that reads its last five steps too",
        discrete=Variant(StackedDiscreteBC, StackedDiscreteBCConfig, "discrete-bc-stacked"),
        continuous=Variant(StackedBC, StackedBCConfig, "bc-stacked"),
    )
)
register(
    Algorithm(
        name="iql-stacked",
        label="IQL, five steps stacked",
        colour="#5f7d00",
        about="IQL that reads its last five steps too",
        discrete=Variant(StackedDiscreteIQL, StackedDiscreteIQLConfig, "discrete-iql-stacked"),
        continuous=Variant(StackedIQL, StackedIQLConfig, "iql-stacked"),
    )
)
register(
    Algorithm(
        name="bc-gru",
        label="BC, GRU",
        colour="#5b7fb0",
        about="behaviour cloning with a GRU over the episode",
        discrete=Variant(GRUDiscreteBC, GRUDiscreteBCConfig, "discrete-bc-gru"),
        continuous=Variant(GRUBC, GRUBCConfig, "bc-gru"),
    )
)
register(
    Algorithm(
        name="iql-gru",
        label="IQL, GRU",
        colour="#ae3ec9",
        about="IQL with a GRU over the episode",
        discrete=Variant(GRUDiscreteIQL, GRUDiscreteIQLConfig, "discrete-iql-gru"),
        continuous=Variant(GRUIQL, GRUIQLConfig, "iql-gru"),
    )
)

# Of these only experiments make use: they learn from pictures of mazes.
register_agent("c51", C51, C51Config, experiment=True)
register_agent("c51-lcb", C51LCB, C51LCBConfig, experiment=True)
register_agent("ape-v-c51", APEVC51, APEVC51Config, experiment=True)

__all__ = [
    "AGENTS",
    "ALGORITHMS",
    "APEV",
    "APEVC51",
    "APEVSAC",
    "BC",
    "C51",
    "C51LCB",
    "CQL",
    "DQN",
    "EDAC",
    "GRUBC",
    "GRUIQL",
    "IQL",
    "LCB",
    "REM",
    "SAC",
    "TD3BC",
    "APEVC51Config",
    "APEVConfig",
    "APEVSACConfig",
    "Agent",
    "Algorithm",
    "AnchoredAPEVSAC",
    "AnchoredSACConfig",
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
    "GRUBCConfig",
    "GRUDiscreteBC",
    "GRUDiscreteBCConfig",
    "GRUDiscreteIQL",
    "GRUDiscreteIQLConfig",
    "GRUIQLConfig",
    "IQLConfig",
    "LCBConfig",
    "REMConfig",
    "SACConfig",
    "StackedBC",
    "StackedBCConfig",
    "StackedDiscreteBC",
    "StackedDiscreteBCConfig",
    "StackedDiscreteIQL",
    "StackedDiscreteIQLConfig",
    "StackedIQL",
    "StackedIQLConfig",
    "TD3BCConfig",
    "Variant",
    "find",
    "register",
]
