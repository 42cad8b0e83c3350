"""What is trained and tested in Locked Doors: the agents and their settings, the scales, and the rows of the table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from apev.agents import (
    APEVConfig,
    DiscreteBCConfig,
    DiscreteCQLConfig,
    DiscreteIQLConfig,
    DiscreteREMConfig,
    DQNConfig,
    LCBConfig,
)
from apev.behaviour import Adapt
from apev.belief import BeliefFilter
from apev.loop import Schedule

Scale = Literal["smoke", "demo", "short", "small", "cpu", "paper"]

OFFLINE = ("bc", "rem", "cql", "iql")
TRAINED = ("ape-v", "ensemble", "lcb", "ape-v-printed", *OFFLINE)
"""The agents that are trained; every policy of the table is one of them with a behaviour of its belief."""


@dataclass(frozen=True)
class Recipe:
    """Everything that defines a run of Locked Doors but the seed."""

    train_images: int | None = None  # None: all there are
    test_images: int | None = None
    starts: int = 1  # test episodes an image
    episodes_per_image: int = 6
    held_out: float = 0.05  # share of the training images no agent trains on: the filter's scales are measured there
    batch_groups: int = 32
    per_group: int = 16
    eval_images: int = 500  # test images of the learning curves
    schedule: Schedule = field(default_factory=Schedule)
    agents: tuple[str, ...] = TRAINED
    configs: dict[str, DQNConfig] = field(default_factory=dict)  # of agents that differ from CONFIGS

    def config(self, name: str) -> DQNConfig:
        """The configuration of agent `name`."""
        return (CONFIGS | self.configs)[name]


GAMMA = 0.9
"""The discount of the demo and the short scale. The paper's is .98 (its table of hyper-parameters); there a failure is worth
-50, and after few updates the rare failures drown the few steps that tell one way from another. All agents have the same."""
PAPER_GAMMA = 0.98
"""The paper's discount, at the scales that train for long."""

PRINTED = replace(APEVConfig.paper(), gamma=GAMMA, target_rate=DQNConfig.target_rate)
"""APE-V as the paper prints it, but for the discount and the rate of the target network, which all agents share."""

BEST = APEVConfig(gamma=GAMMA, wildcards=4, temperature=0.5)
"""The recipe that teaches adaptation: members that are wrong in training too, surprise under certainty, beliefs from evidence,
wildcards."""

TRAINED_OUT = replace(BEST, gamma=PAPER_GAMMA, bootstrap=1.0, wildcard_weight=0.1)
"""The same at the paper's discount. Where members are seldom wrong, wildcards that count as much as they do mislead more than
they help: they weigh a tenth until what is seen is refuted, and members train on every photograph."""

CONFIGS: dict[str, DQNConfig] = {
    "ensemble": DQNConfig(gamma=GAMMA, temperature=BEST.temperature),  # the same filter as ours when it adapts at evaluation
    "lcb": LCBConfig(gamma=GAMMA),
    "ape-v": BEST,
    "ape-v-printed": PRINTED,
    "bc": DiscreteBCConfig(gamma=GAMMA),
    "rem": DiscreteREMConfig(gamma=GAMMA),
    "cql": DiscreteCQLConfig(gamma=GAMMA),
    "iql": DiscreteIQLConfig(gamma=GAMMA),
}

PAPER_CONFIGS = {name: replace(config, gamma=PAPER_GAMMA) for name, config in CONFIGS.items()} | {"ape-v": TRAINED_OUT}

RECIPES: dict[Scale, Recipe] = {
    "smoke": Recipe(
        train_images=200,
        test_images=40,
        eval_images=40,
        batch_groups=16,
        schedule=Schedule(updates=60, log_every=10, eval_every=30, checkpoint_every=30),
    ),
    "demo": Recipe(
        starts=5,
        eval_images=200,
        schedule=Schedule(updates=1000, eval_every=250, checkpoint_every=250, lr_decay=True),
        agents=("ensemble", "ape-v"),
    ),
    "small": Recipe(
        train_images=3000,
        schedule=Schedule(updates=16_000, eval_every=4000, checkpoint_every=500),  # 170 passes over the photographs
        configs=PAPER_CONFIGS,
    ),
    "short": Recipe(
        schedule=Schedule(updates=5000, eval_every=1000, checkpoint_every=500, lr_decay=True),
        agents=("ape-v", "ensemble", "lcb", *OFFLINE),
    ),
    "cpu": Recipe(
        schedule=Schedule(updates=15_000, eval_every=3000, checkpoint_every=500, lr_decay=True),  # 25 passes over 19,000
        configs=PAPER_CONFIGS,
    ),
    "paper": Recipe(
        batch_groups=256,
        per_group=1,
        schedule=Schedule(updates=250_000, eval_every=10_000, checkpoint_every=5_000),
        configs={name: replace(config, target_rate=0.005) for name, config in PAPER_CONFIGS.items()},
    ),
}


@dataclass(frozen=True)
class Entry:
    """A row of the table: which agent, and what its belief does."""

    agent: str
    adapt: Adapt
    filter: BeliefFilter | None = None  # None: the agent's own
    greedy: bool = False  # else actions are drawn, which breaks near ties at random: greedy policies can walk in circles


POLICIES: dict[str, Entry] = {
    "ape-v": Entry("ape-v", "bayes"),
    "ape-v-committed": Entry("ape-v", "commit"),
    "ape-v-greedy": Entry("ape-v", "bayes", greedy=True),
    "ape-v-printed": Entry("ape-v-printed", "bayes"),
    "ape-v-frozen": Entry("ape-v", "uniform"),  # the paper's central ablation: the same agent, its belief frozen at uniform
    "ape-v-eval-only": Entry("ensemble", "bayes"),
    "ape-v-eval-only-printed": Entry("ensemble", "bayes", BeliefFilter("paper")),
    "ape-v-eval-only-committed": Entry("ensemble", "commit"),
    "random-member": Entry("ensemble", "random-member"),
    "random-member-step": Entry("ensemble", "random-member-step"),
    "average": Entry("ensemble", "uniform"),
    "average-greedy": Entry("ensemble", "uniform", greedy=True),
    "single": Entry("ensemble", "member:0"),  # members train independently, so one of them is a single DQN
    "lcb": Entry("lcb", "uniform"),
    **{name: Entry(name, "uniform") for name in OFFLINE},
}
