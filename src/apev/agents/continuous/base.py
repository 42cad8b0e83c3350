"""What agents of continuous actions share: actions scaled to [-1, 1], networks started as published, files."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from apev.agents.agent import Agent, check_pictures
from apev.data.batch import Layout
from apev.data.dataset import Dataset
from apev.nn.ensemble import EnsembleLinear, EnsembleMLP


class ContinuousAgent(Agent):
    """An agent that reads vectors and acts in a box; its networks see actions in [-1, 1]."""

    deployed: tuple[str, ...]  # the networks a deployed policy needs
    targets: dict[str, str] = {}  # noqa: RUF012 (networks that follow others slowly: {follower: followed})
    rates: dict[str, float] = {}  # noqa: RUF012 (how fast, where that is not config.target_rate)
    middle: Tensor  # [A] of the action's range
    reach: Tensor  # [A] half of it

    def __init__(self, layout: Layout, config: Any, *, members: int = 1, seed: int = 0) -> None:
        super().__init__()
        if not layout.action_dim:
            raise ValueError("this agent needs continuous actions. Fix: give actions [N, A] of floats, or pick another agent.")
        check_pictures(layout.picture, discrete=False)
        self.layout, self.config, self.members = layout, config, members
        self.measured = members
        self.register_buffer("scale", torch.ones(members))
        low, high = torch.tensor(layout.action_low), torch.tensor(layout.action_high)
        self.register_buffer("middle", (low + high) / 2, persistent=False)
        self.register_buffer("reach", (high - low) / 2, persistent=False)
        self.generator = torch.Generator().manual_seed(seed + 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.build()
            self.make_worlds()

    @classmethod
    def for_data(cls, dataset: Dataset, config: Any, *, seed: int = 0) -> Self:
        """An untrained agent for this log."""
        return cls(Layout.of(dataset), config, seed=seed)

    def build(self) -> None:
        """Make the networks; called once, under the agent's seed."""
        raise NotImplementedError

    def encode(self, pictures: Tensor | None) -> Tensor | None:
        """There are no pictures."""
        return None

    def to_unit(self, action: Tensor) -> Tensor:
        """Actions of the environment in [-1, 1]."""
        return (action - self.middle) / self.reach

    def from_unit(self, action: Tensor) -> Tensor:
        """Actions in [-1, 1] as the environment takes them."""
        return self.middle + self.reach * action

    def noise(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal numbers; from the agent's own generator unless another is handed in."""
        return torch.randn(like.shape, generator=generator or self.generator, device=like.device)

    # ------------------------------------------------------------------ learning

    def descend(self, loss: Tensor) -> None:
        """One step of the optimiser; then the target networks follow."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for follower, followed in self.targets.items():
                slow, fast = self.get_submodule(follower), self.get_submodule(followed)
                rate = self.rates.get(follower, self.config.target_rate)
                torch._foreach_lerp_(list(slow.parameters()), list(fast.parameters()), rate)

    # ------------------------------------------------------------------ deployment

    def policy_state(self) -> dict[str, Tensor]:
        """The deployed networks and numbers, and the filter's scales."""
        return {name: self.state_dict()[name] for name in self._deployed_names()} | {"scale": self.scale} | self.worlds_state()

    def load_policy_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `policy_state` gave."""
        own = self.state_dict()
        with torch.no_grad():
            for name in [*self._deployed_names(), *self.worlds_state()]:
                own[name].copy_(state[name])
        for pair in self.targets.items():  # of a network and its slow copy one is deployed
            given, other = pair if pair[0] in self.deployed else pair[::-1]
            self.get_submodule(other).load_state_dict(self.get_submodule(given).state_dict())
        self.scale.copy_(state["scale"])

    def _deployed_names(self) -> list[str]:
        return [name for name in self.state_dict() if name.split(".")[0] in self.deployed]


def start_as_published(net: EnsembleMLP, last: float) -> None:
    """Biases .1 and a last layer near zero, as SAC-N's authors start their networks."""
    with torch.no_grad():
        layers = [layer for layer in net.layers if isinstance(layer, EnsembleLinear)]
        for layer in layers:
            layer.bias.fill_(0.1)
        layers[-1].weight.uniform_(-last, last)
        layers[-1].bias.uniform_(-last, last)


def parameters(*parts: nn.Module) -> list[nn.Parameter]:
    """All parameters of these networks, in order."""
    return [p for part in parts for p in part.parameters()]
