"""The networks: K members as one are the K members one by one; pictures are encoded once; wildcards find what is hidden."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from agent_contract import build, puzzle
from by_hand import linear
from torch import nn

from apev import belief as beliefs
from apev.agents import APEV
from apev.data import Dataset, Observations, Sampler
from apev.nn import ensemble, kernels
from apev.nn.encoders import door_encoder, impala_encoder
from apev.nn.ensemble import EncoderEnsemble, EnsembleLinear, EnsembleMLP, scale_pixels
from apev.nn.qnets import QEnsemble
from apev.worlds.endings import UNKNOWN, kinds_of_contexts

K, B, A = 3, 7, 4
SEES_PICTURES = ("ape-v", "dqn", "lcb")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pictures(count: int = B, size: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_ensemble_linear_is_a_linear_layer_a_member() -> None:
    layer, x = EnsembleLinear(K, 5, 2), torch.randn(K, B, 5)
    for k in range(K):
        torch.testing.assert_close(layer(x)[k], x[k] @ layer.weight[k] + layer.bias[k])


def test_ensemble_linear_starts_in_the_range_of_torch_linear() -> None:
    layer = EnsembleLinear(50, 16, 8)
    for parameter in (layer.weight, layer.bias):
        assert float(parameter.detach().abs().max()) <= 0.25
        assert float(parameter.detach().std()) == pytest.approx(0.25 / 3**0.5, rel=0.1)


def test_ensemble_mlp_is_an_mlp_a_member() -> None:
    mlp, x = EnsembleMLP(K, 5, (6, 7), 2), torch.randn(K, B, 5)
    for k in range(K):
        h = x[k]
        for i, layer in enumerate(map(linear, mlp.layers)):
            h = h @ layer.weight[k] + layer.bias[k]
            h = h.relu() if i < 2 else h
        torch.testing.assert_close(mlp(x)[k], h)


def test_large_products_give_what_plain_layers_give_and_so_do_their_gradients() -> None:
    net, x = EnsembleMLP(4, 23, (256, 256), 1), torch.randn(4, 256, 23)
    expected, given = kernels.plain_mlp(x, [*net.parameters()]), net(x)
    torch.testing.assert_close(given, expected)
    weights = list(net.parameters())
    by_weight, right = (torch.autograd.grad(out.sum(), weights) for out in (given, expected))
    torch.testing.assert_close(by_weight, right, rtol=1e-4, atol=1e-4)


def test_members_start_different_and_train_apart() -> None:
    mlp, x = EnsembleMLP(K, 5, (6,), 2), torch.randn(1, B, 5).expand(K, -1, -1)
    q = mlp(x)
    assert not torch.allclose(q[0], q[1])
    q[1].sum().backward()
    for parameter in mlp.parameters():
        assert parameter.grad is not None
        assert bool((parameter.grad[[0, 2]] == 0).all())
        assert bool((parameter.grad[1] != 0).any())


def test_pixels_are_scaled_to_minus_one_to_one_without_touching_the_original() -> None:
    raw = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3)
    torch.testing.assert_close(scale_pixels(raw).flatten(), torch.tensor([-1.0, -0.6, 1.0]))
    assert raw.flatten().tolist() == [0, 51, 255]


def test_encoder_ensemble_runs_every_encoder_on_every_picture() -> None:
    both = EncoderEnsemble(2, lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 5)))
    features = both(pictures())
    assert features.shape == (2, B, 5)
    torch.testing.assert_close(features[1], both.encoders[1](pictures().float() * 2 / 255 - 1))


def test_a_few_pictures_at_a_time_are_encoded_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = EncoderEnsemble(2, lambda: impala_encoder(3, 16, 16, features=5))
    shown = pictures(size=16)
    found = {}
    for pixels in (2**17, 3 * 16 * 16, 1):
        monkeypatch.setattr(ensemble, "PIXELS", pixels)
        net.zero_grad()
        features = net(shown)
        features.square().sum().backward()
        found[pixels] = [features.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
        assert len(found[pixels]) == 1 + len(list(net.parameters()))
    for part in (3 * 16 * 16, 1):
        for one, whole in zip(found[part], found[2**17], strict=True):
            torch.testing.assert_close(one, whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 8), (5, 7), (2, 2), (1, 1), (1, 40)])
def test_encoder_reads_pictures_of_any_size(height: int, width: int) -> None:
    encoder = door_encoder(2, height, width, features=6)
    assert encoder(torch.zeros(3, 2, height, width)).shape == (3, 6)


def test_encoder_is_the_papers() -> None:
    kinds = [type(layer) for layer in door_encoder()]
    assert kinds == [nn.Conv2d, nn.ReLU, nn.AvgPool2d] * 3 + [nn.Flatten, nn.Linear]
    last = door_encoder()[-1]
    assert isinstance(last, nn.Linear)
    assert (last.in_features, last.out_features) == (32 * 4 * 4, 10)


@pytest.mark.parametrize("prior_scale", [0.0, 2.0])
@pytest.mark.parametrize("kind", ["none", "input", "anchored"])
@pytest.mark.parametrize("shape", [None, (3, 8, 8)])
@pytest.mark.parametrize("vector_dim", [0, 2])
def test_values_have_their_shape_for_every_kind_of_observation(
    vector_dim: int, shape: tuple[int, int, int] | None, kind: Any, prior_scale: float
) -> None:
    if not vector_dim and not shape:
        return
    net = QEnsemble(K, A, vector_dim, shape, belief=kind, hidden=(8,), prior_scale=prior_scale)
    features = net.encode(pictures() if shape else None)
    assert (features is None) == (shape is None)
    assert net(features, torch.randn(B, vector_dim), torch.full((B, K), 1 / K)).shape == (K, B, A)
    assert net(features, torch.randn(B, vector_dim), torch.full((K, B, K), 1 / K)).shape == (K, B, A)


@pytest.mark.parametrize("kind", ["input", "anchored"])
def test_only_conditioned_values_depend_on_the_belief_and_each_row_on_its_own(kind: Any) -> None:
    vector = torch.randn(B, 2)
    flat, peaked = torch.full((B, K), 1 / K), torch.eye(K)[torch.arange(B) % K]
    plain, conditioned = QEnsemble(K, A, 2, hidden=(8,)), QEnsemble(K, A, 2, hidden=(8,), belief=kind)
    assert torch.equal(plain(None, vector, flat), plain(None, vector, peaked))
    assert not torch.allclose(conditioned(None, vector, flat), conditioned(None, vector, peaked))
    mixed = torch.where(torch.arange(B)[:, None] < 3, flat, peaked)
    torch.testing.assert_close(conditioned(None, vector, mixed)[:, :3], conditioned(None, vector, flat)[:, :3])
    own = torch.stack([flat, peaked, flat])  # [K, B, K]: a belief a member
    torch.testing.assert_close(conditioned(None, vector, own)[1], conditioned(None, vector, peaked)[1])
    torch.testing.assert_close(conditioned(None, vector, own)[2], conditioned(None, vector, flat)[2])


@pytest.mark.parametrize("shape", [None, (3, 8, 8)])
def test_anchored_values_are_the_plain_ones_where_a_member_is_trusted_alone(shape: tuple[int, int, int] | None) -> None:
    net, vector = QEnsemble(K, A, 2, shape, hidden=(8,), belief="anchored"), torch.randn(B, 2)
    features = net.encode(pictures() if shape else None)
    certain = torch.eye(K)[:, None].expand(-1, B, -1)  # member k asked under e_k
    torch.testing.assert_close(net(features, vector, certain), net.plain(features, vector))
    flat = torch.full((B, K), 1 / K)
    assert not torch.allclose(net(features, vector, flat), net.plain(features, vector))
    net(features, vector, flat).sum().backward()
    assert all(p.grad is None for name, p in net.named_parameters() if not name.startswith("correction."))


@pytest.mark.parametrize("prior_scale", [0.0, 1.0])
def test_blind_members_cannot_tell_pictures_apart(prior_scale: float) -> None:
    net = QEnsemble(K, A, 2, (3, 8, 8), blind=2, hidden=(8,), prior_scale=prior_scale)
    vector, belief = torch.randn(B, 2), torch.full((B, K), 1 / K)
    one, other = (net(net.encode(pictures(seed=s)), vector, belief) for s in (1, 2))
    assert not torch.allclose(one[0], other[0])
    assert torch.equal(one[1:], other[1:])
    assert net.encoder is not None
    assert len(net.encoder.encoders) == K - 2


def test_random_prior_is_added_and_never_trained() -> None:
    net = QEnsemble(K, A, 2, (3, 8, 8), hidden=(8,), prior_scale=3.0)
    for layer in map(linear, net.heads.layers):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    belief, vector = torch.full((B, K), 1 / K), torch.randn(B, 2)
    q = net(net.encode(pictures()), vector, belief)
    assert not torch.allclose(q[0], q[1])  # all that is left is the prior, and members differ in it
    q.sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.requires_grad == (not name.startswith("prior."))
        assert not (name.startswith("prior.") and parameter.grad is not None)
    net.prior_scale = 6.0
    torch.testing.assert_close(net(net.encode(pictures()), vector, belief), 2 * q)


# ---------------------------------------------------------------------- wildcards


def hidden_kinds(ends: bool = True) -> tuple[Dataset, np.ndarray]:
    """60 episodes of three kinds that look alike: only action m ends one of kind m. Nobody says which is which.

    Every tenth episode is cut off before it ends (all of them, unless `ends`).
    """
    rng = np.random.default_rng(0)
    kind = rng.permutation(np.repeat(np.arange(3), 20))
    rows: list[tuple[np.ndarray, int, float, bool, bool]] = []
    for episode in range(60):
        wrong = np.delete(np.arange(3), kind[episode])
        steps = [int(a) for a in rng.choice(wrong, size=3)]
        if ends and episode % 10:
            steps.append(int(kind[episode]))
        for t, action in enumerate(steps):
            last, right = t == len(steps) - 1, action == kind[episode]
            rows.append((np.array([1.0]), action, float(right), bool(right), last and not bool(right)))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Dataset.from_arrays(*columns, next_observations=columns[0], num_actions=3), kind


def test_kinds_of_contexts_are_found_by_how_episodes_end() -> None:
    data, kind = hidden_kinds()
    found = kinds_of_contexts(data, 3, seed=1)
    known = np.arange(60) % 10 > 0
    assert (found[~known] == UNKNOWN).all()
    names = [set(found[known & (kind == m)].tolist()) for m in range(3)]
    assert all(len(name) == 1 for name in names), names
    assert set.union(*names) == {0, 1, 2}
    np.testing.assert_array_equal(kinds_of_contexts(data, 3, seed=1), found)


def test_more_wildcards_than_kinds_do_no_harm() -> None:
    data, kind = hidden_kinds()
    found = kinds_of_contexts(data, 7)
    known = found != UNKNOWN
    assert found.max() < 7
    assert all(len(set(kind[known & (found == m)].tolist())) <= 1 for m in range(7))


def test_wildcards_need_episodes_that_end() -> None:
    data, _ = hidden_kinds(ends=False)
    with pytest.raises(ValueError, match=r"wildcards need episodes that end.*Fix: wildcards=0"):
        build("ape-v", {"wildcards": 2}, data)
    build("ape-v", {"wildcards": 0}, data)


def test_each_wildcard_learns_the_world_of_its_kind() -> None:
    data, kind = hidden_kinds()
    agent = build("ape-v", {"members": 2, "wildcards": 3, "gamma": 0.0, "hidden": (16,), "lr": 1e-2}, data)
    assert isinstance(agent, APEV)
    sampler = Sampler(data, batch_size=128, seed=0)
    batch = sampler.sample()
    weight, _ = agent.row_weights(batch)
    torch.testing.assert_close(weight[2:].sum(0), (agent.kinds[batch.group] != UNKNOWN).float())  # one owner, or none
    for _ in range(120):
        agent.update(sampler.sample())
    with torch.no_grad():
        q = agent.plain_values(None, Observations(torch.ones(1, 1)))[2:, 0]  # [M, A]
    for m in range(3):
        owner = int(agent.kinds[np.flatnonzero((kind == m) & (np.arange(60) % 10 > 0))[0]])
        torch.testing.assert_close(q[owner], torch.eye(3)[m], atol=0.15, rtol=0)


# ---------------------------------------------------------------------- pictures


def count_encoded(net: QEnsemble) -> list[int]:
    """The list to which every pass through the encoders adds its number of pictures."""
    counts: list[int] = []
    assert net.encoder is not None
    net.encoder.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))
    return counts


def film() -> Dataset:
    """A log whose picture changes at every step: all p in step p, three steps an episode."""
    row = np.arange(30)
    frames = (row[:, None, None, None] * np.full((1, 8, 8, 3), 8)).astype(np.uint8)
    last = row % 3 == 2
    return Dataset.from_arrays({"image": frames, "v": np.eye(2)[row % 2]}, row % 2, row / 9, last, np.zeros_like(last))


@pytest.mark.parametrize("name", SEES_PICTURES)
def test_a_picture_that_many_rows_share_is_encoded_once_an_update(name: str) -> None:
    agent = build(name, {"members": 2}, puzzle("dict"))
    online, target = count_encoded(agent.net), count_encoded(agent.target)
    sampler = Sampler(puzzle("dict"), batch_groups=5, per_group=8)
    batch = sampler.sample()
    assert len(batch.action) == 40
    agent.update(batch)
    assert (online, target) == ([5], [])


@pytest.mark.parametrize("name", SEES_PICTURES)
def test_pictures_that_change_are_encoded_once_by_each_network(name: str) -> None:
    data = film()
    assert not data.shared_pictures
    agent = build(name, {"members": 2}, data)
    online, target = count_encoded(agent.net), count_encoded(agent.target)
    agent.update(Sampler(data, batch_size=12).sample())
    assert (online, target) == ([12], [12])


@pytest.mark.parametrize("name", SEES_PICTURES)
def test_shared_and_separate_pictures_give_the_same_loss_and_gradient(name: str) -> None:
    batch = Sampler(puzzle("dict"), batch_groups=4, per_group=3, seed=2).sample()
    pictures, picture = batch.obs.pictures, batch.obs.picture
    assert pictures is not None
    assert picture is not None
    apart = torch.arange(12)
    unshared = replace(
        batch,
        obs=replace(batch.obs, pictures=pictures[picture], picture=apart),
        next_obs=replace(batch.next_obs, pictures=pictures[picture], picture=apart),
        shares_pictures=False,
    )
    losses, grads = [], []
    for one in (batch, unshared):
        agent = build(name, {"members": 2, "bootstrap": 1.0}, puzzle("dict"))
        losses.append(float(agent.update(one)["loss"]))
        assert agent.net.encoder is not None
        grads.append([p.grad for p in agent.net.encoder.parameters()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for shared, separate in zip(*grads, strict=True):
        assert shared is not None
        assert bool((shared != 0).any())
        torch.testing.assert_close(shared, separate, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", SEES_PICTURES)
def test_td_errors_show_each_row_its_own_picture_before_and_after_the_step(name: str) -> None:
    data = film()
    agent = build(name, {"members": 2}, data)
    sampler = Sampler(data)
    batch = sampler.batch(torch.tensor([3, 0, 4]))  # pictures 3, 0, 4 and after the step 4, 1, 5
    log_belief = beliefs.uniform(2, 3)
    together = agent.td_errors(batch, log_belief)
    for i, row in enumerate((3, 0, 4)):
        torch.testing.assert_close(together[i : i + 1], agent.td_errors(sampler.batch(torch.tensor([row])), log_belief[:1]))
    assert batch.obs.pictures is not None
    features = agent.encode(batch.obs.pictures)
    torch.testing.assert_close(agent.td_errors(batch, log_belief, features), together)
    frozen = replace(batch, next_obs=replace(batch.next_obs, picture=batch.obs.picture))
    assert not torch.allclose(agent.td_errors(frozen, log_belief), together)
