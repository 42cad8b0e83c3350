"""C51 (Bellemare et al., 2017): deep Q-learning of whole return distributions, with K independent members.

    Z_k(s, a)  on atoms -31, -30.5, ..., 9                      a softmax a member, state and action
    y_k        = project(r + gamma Z-_k(s', argmax_a' E Z-_k(s', a')))
    L          = sum_k w_k  - sum_i y_k,i log p_k,i(s, a)       cross-entropy

It stands beside `DQN`: the policy and the belief only see expected values. `C51LCB` is the paper's conservative ensemble on
top of it. Where a batch holds whole contexts (`PrioritisedSampler`), each picture is encoded once for all the transitions that
show it, and `backup_depth` looks further ahead than one step (see `backups.py`).

What helps to learn and to generalise, and is off in the paper's setting: `pool` and `ranking` find out which way to go long
before values are right; `augment` shows every context under a random symmetry; `views` lets a trained network look at a
picture under several symmetries, each a member of its own. Views cost no training and disagree where the network is unsure:
hypotheses for the belief to tell apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apev.agents.discrete.base import of_rows, take
from apev.agents.distributional import symmetries
from apev.agents.distributional.backups import Graph, deep_target, returns_target
from apev.agents.distributional.base import CategoricalAgent, take_logits
from apev.data.batch import Batch
from apev.nn.qnets import CategoricalEnsemble


class C51(CategoricalAgent):
    """K return distributions, each the target of its own."""

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step for all networks."""
        self.check_batch(batch)
        if self.config.augment:
            batch = symmetries.augmented(batch, len(self.trains_on), self.generator)
        features, target_features = self.encode_batch(batch)
        if features is not None and not self.layout.vector_dim:  # rows with one picture share their logits too
            table = self.table(self.net, features)  # [K, P, A, N]
            logits = table[:, batch.obs.picture, batch.action]  # [K, B, N]
            with torch.no_grad():
                slow = table.detach() if self.config.target_rate == 1 else self.table(self.target, target_features)
                target_p = self.targets(batch, slow.softmax(-1))
        else:
            logits = take_logits(self.net.logits(of_rows(features, batch.obs), batch.obs.vector), batch.action)
            with torch.no_grad():
                rows = of_rows(target_features, batch.next_obs)
                next_p = self.target.logits(rows, batch.next_obs.vector).softmax(-1)  # [K, B, A, N]
                next_p = take_logits(next_p, self.next_action(next_p @ self.net.atoms, None))
                target_p = self.one_step_target(batch, next_p)
        return self.learn(batch, logits, target_p)

    def table(self, net: CategoricalEnsemble, features: Tensor | None) -> Tensor:
        """Logits of every picture of a batch and every action: [K, P, A, N]."""
        assert features is not None
        return net.logits(features, features.new_zeros(features.shape[1], 0))

    def targets(self, batch: Batch, table: Tensor) -> Tensor:
        """y: [K, B, N] from the distributions [K, P, A, N] of the batch's pictures."""
        c, atoms = self.config, self.net.atoms
        if c.backup_depth == 0:
            return returns_target(batch, c.members, atoms)
        q = table @ atoms
        action = self.next_action(q, None)
        if c.backup_depth == 1:
            return self.one_step_target(batch, take_logits(table, action)[:, batch.next_obs.picture])
        graph = Graph.of(batch, q.shape[-1], c.gamma, c.reward_shift)
        return deep_target(batch, graph, table, action, self.planning_value(q, action), c.backup_depth, atoms)

    def planning_value(self, q: Tensor, action: Tensor) -> Tensor:
        """What members maximise where they plan, [M, P] for M policies: each its own value of its own action."""
        return take(q, action)
