"""Pictures that a policy has seen, encoded once: an environment shows the same photograph step after step."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from apev.agents.agent import Agent
from apev.data.batch import Batch, Observations

CHUNK = 512  # pictures encoded at once: bounds memory when thousands of episodes start together


class Features:
    """Features [K, P, F] of a table of pictures; those are computed that are shown and were not before."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._pictures: Tensor | None = None
        self._features: Tensor | None = None
        self._encoded = torch.zeros(0, dtype=torch.bool)  # which pictures have features

    def of(self, obs: Observations) -> Tensor | None:
        """Features of the table that these observations point into; None where there are no pictures."""
        pictures = obs.pictures
        if pictures is None or obs.picture is None:
            return None
        if self._pictures is None or not same(self._pictures, pictures):
            self._features, self._encoded = None, torch.zeros(len(pictures), dtype=torch.bool, device=pictures.device)
        self._pictures = pictures  # the next look at the very same table compares nothing
        new = obs.picture[~self._encoded[obs.picture]].unique()
        for rows in new.split(CHUNK) if len(new) else ():
            part = self.agent.encode(pictures[rows])
            assert part is not None
            if self._features is None:
                self._features = part.new_zeros(len(part), len(pictures), part.shape[2])
            self._features[:, rows] = part
        self._encoded[new] = True
        return self._features

    def of_step(self, step: Batch) -> tuple[Batch, Tensor | None]:
        """The step with one table of pictures for both observations, and the features of that table."""
        seen, after = step.obs, step.next_obs
        features = self.of(seen)
        if after.pictures is None or seen.pictures is None or same(seen.pictures, after.pictures):
            return step, self.of(after)
        following = self.of(after)  # stays for the next act()
        assert features is not None
        assert following is not None
        assert after.picture is not None
        joined = replace(step, next_obs=replace(after, picture=after.picture + len(seen.pictures)))
        return joined, torch.cat([features, following], dim=1)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tables hold the same pictures."""
    return a is b or (a.shape == b.shape and torch.equal(a, b))
