from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from agent_contract import AgentContract
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import there

from apev.agents import APEVC51, C51, C51LCB, APEVC51Config, C51Config, C51LCBConfig
from apev.agents.distributional import symmetries
from apev.agents.distributional.backups import Graph, plan, project
from apev.agents.distributional.ranking import ranking_loss
from apev.data import Sampler
from apev.data.batch import Layout
from apev.data.prioritised import PrioritisedSampler
from apev.data.returns import logged_returns
from apev.experiments.procgen.log import log_mazes, make_mazes
from apev.experiments.procgen.maze import Maze
from apev.experiments.procgen.world import BatchedMaze
from apev.nn.encoders import impala_encoder
from apev.nn.qnets import CategoricalEnsemble
from apev.policy import Policy
from apev.rollout import rollout

MAZES = [maze for maze in make_mazes(0, 40, "easy") if maze.size <= 5][:4]
LOG = log_mazes(MAZES, "simple")
RETURNS = logged_returns(LOG, 0.99, -1.0)
SMALL: dict[str, Any] = {"features": 16, "lr": 1e-3}


class TestC51(AgentContract):
    agent = "c51"
    settings = {"members": 2, "reward_shift": 0.0}  # noqa: RUF012


class TestC51LCB(AgentContract):
    agent = "c51-lcb"
    settings = {"members": 2, "reward_shift": 0.0, "beta": 0.1}  # noqa: RUF012


# ---------------------------------------------------------------------- projection


def test_projection_by_hand() -> None:
    atoms = torch.tensor([0.0, 1.0, 2.0])
    half = torch.tensor([0.5, 0.25, 0.25])
    # 0.5 + 0.5 z: returns 0.5, 1, 1.5. Half of the first and of the last fall to their neighbours.
    moved = project(half, torch.tensor(0.5), torch.tensor(0.5), atoms)
    torch.testing.assert_close(moved, torch.tensor([0.25, 0.25 + 0.25 + 0.125, 0.125]))
    # 1.75 whatever comes after, as at an end; and far outside, all on the last atom.
    torch.testing.assert_close(project(half, torch.tensor(1.75), torch.tensor(0.0), atoms), torch.tensor([0.0, 0.25, 0.75]))
    torch.testing.assert_close(project(half, torch.tensor(9.0), torch.tensor(0.9), atoms), torch.tensor([0.0, 0.0, 1.0]))
    torch.testing.assert_close(project(half, torch.tensor(-9.0), torch.tensor(0.9), atoms), torch.tensor([1.0, 0.0, 0.0]))


def slow_projection(p: np.ndarray, gain: float, fade: float, atoms: np.ndarray) -> np.ndarray:
    """As C51's Algorithm 1 is printed."""
    low, high, width = atoms[0], atoms[-1], atoms[1] - atoms[0]
    m = np.zeros(len(atoms))
    for j, z in enumerate(atoms):
        b = min((np.clip(gain + fade * z, low, high) - low) / width, len(atoms) - 1)
        lower, upper = int(np.floor(b)), int(np.ceil(b))
        if lower == upper:
            m[lower] += p[j]
        else:
            m[lower] += p[j] * (upper - b)
            m[upper] += p[j] * (b - lower)
    return m


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.floats(-40, 20), st.floats(0, 1), st.integers(2, 81))
def test_projection_is_the_printed_one(seed: int, gain: float, fade: float, count: int) -> None:
    atoms = np.linspace(-31, 9, count)
    p = np.random.default_rng(seed).dirichlet(np.ones(count))
    ours = project(*(torch.tensor(x, dtype=torch.float64) for x in (p, gain, fade, atoms)))
    np.testing.assert_allclose(ours, slow_projection(p, gain, fade, atoms), atol=1e-9)
    assert float(ours.sum()) == pytest.approx(1)


# ---------------------------------------------------------------------- plans


def slow_plan(maze: Maze, value: np.ndarray, depth: int, gamma: float = 0.99) -> np.ndarray:
    """V after `depth` backups within a maze, cell by cell."""
    v = value.astype(np.float64)
    for _ in range(depth):
        v = np.array(
            [
                max(9.0 if maze.following[c, a] == maze.count else -1 + gamma * v[maze.following[c, a]] for a in range(4))
                for c in range(maze.count)
            ]
        )
    return v


@pytest.mark.parametrize("depth", [1, 2, 3, 60])
def test_a_plan_is_so_many_backups(depth: int) -> None:
    maze, batch = MAZES[0], Sampler(LOG).batch(torch.from_numpy(np.flatnonzero(LOG.group == 0)))
    value = torch.randn(2, maze.count, generator=torch.Generator().manual_seed(depth)).double()
    graph = Graph.of(batch, 4, 0.99, -1.0)
    graph = replace(graph, reward=graph.reward.double(), discount=graph.discount.double())
    found = plan(graph, value, depth + 1)
    ours = found.reward + found.discount * value.gather(1, found.end)
    for member in range(2):
        np.testing.assert_allclose(ours[member], slow_plan(maze, value[member].numpy(), depth), atol=1e-5)


def test_without_logged_steps_a_plan_is_the_value_itself() -> None:
    batch = Sampler(LOG).batch(torch.tensor([0]))  # one transition: what follows it has no step in the batch
    graph = Graph.of(batch, 4, 0.9)
    found = plan(graph, torch.zeros(1, len(there(batch.obs.pictures))), 5)
    alone = ~graph.logged.any(1)
    assert bool(alone.any()) or len(alone) == 1
    assert torch.equal(found.end[0, alone], torch.arange(len(alone))[alone])
    assert bool((found.discount[0, alone] == 1).all())


@pytest.mark.parametrize("kind", [C51, C51LCB, APEVC51])
def test_deep_backups_arrive_at_the_logs_own_returns(kind: Any) -> None:
    config = {C51: C51Config, C51LCB: C51LCBConfig, APEVC51: APEVC51Config}[kind]
    agent = kind.for_data(LOG, config(backup_depth=80, **SMALL))
    rows = torch.arange(len(LOG))
    batch = Sampler(LOG).batch(rows)
    known = agent.encode(batch.obs.pictures)
    if kind is APEVC51:
        _, group = torch.unique(batch.group, return_inverse=True)
        drawn = agent.draw_beliefs(2 * 4).view(2, 4, 2).exp()
        target = agent.deep_target(batch, known, drawn, group, torch.randint(2, (len(rows),)))
    else:
        target = agent.targets(batch, agent.table(agent.net, known).softmax(-1))
    expected = torch.from_numpy(RETURNS).expand(2, -1)
    torch.testing.assert_close(target @ agent.net.atoms, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", [C51, APEVC51])
def test_targets_look_so_many_logged_steps_ahead(kind: Any, depth: int) -> None:
    """The logged step, depth - 1 best steps of the log after it, then what the network says."""
    config = {C51: C51Config, APEVC51: APEVC51Config}[kind]
    agent = kind.for_data(LOG, config(members=1, backup_depth=depth, low=-61.0, atoms=141, **SMALL))
    maze, batch = MAZES[0], Sampler(LOG).batch(torch.from_numpy(np.flatnonzero(LOG.group == 0)))
    known = agent.encode(batch.obs.pictures)
    sure = torch.ones(maze.count, 1)
    if kind is C51:
        table = agent.table(agent.net, known).softmax(-1)
        target = agent.targets(batch, table)
    else:
        table = agent.net.logits(known, torch.zeros(maze.count, 0), sure).softmax(-1)
        rows = torch.zeros(len(batch.action), dtype=torch.int64)
        target = agent.deep_target(batch, known, torch.ones(1, 1, 1), rows, rows)
        if depth == 1:
            target = agent.shallow_target(batch, known, torch.ones(len(batch.action), 1))
    value = (table @ agent.net.atoms)[0].amax(-1).detach().numpy()
    ahead = slow_plan(maze, value, depth - 1)
    after = maze.following[batch.obs.picture, batch.action]
    expected = np.where(after == maze.count, 9.0, -1 + 0.99 * np.append(ahead, 0.0)[after])
    np.testing.assert_allclose((target[0] @ agent.net.atoms).detach(), expected, atol=0.1)  # the lowest atom cuts a little off


def test_one_step_targets_by_hand() -> None:
    agent = C51.for_data(LOG, C51Config(members=1, **SMALL))
    batch = PrioritisedSampler(LOG, 1).sample()
    table = agent.table(agent.net, agent.encode(batch.obs.pictures)).softmax(-1)
    q = table @ agent.net.atoms
    expected = batch.reward - 1 + 0.99 * (1 - batch.terminated) * q[0].amax(-1)[batch.next_obs.picture]
    ours = agent.targets(batch, table)[0] @ agent.net.atoms
    torch.testing.assert_close(ours, expected, atol=0.05, rtol=0)  # the lowest atom cuts a little off


# ---------------------------------------------------------------------- learning


def test_loss_by_hand() -> None:
    """One picture, one action: the cross-entropy of the two atoms around the known return."""
    agent = C51.for_data(LOG, C51Config(members=1, backup_depth=0, **SMALL))
    batch = PrioritisedSampler(LOG, 1, pictures=1, returns=RETURNS).sample()
    p = agent.table(agent.net, agent.encode(batch.obs.pictures)).softmax(-1)[0, 0].detach()  # [A, N]
    loss = 0.0
    for action, value in zip(batch.action.tolist(), there(batch.returns).tolist(), strict=True):
        place = (value + 31) / 0.5
        lower = int(place)
        upper = min(lower + 1, 80)  # a return on the last atom has nothing above
        loss -= (1 - place + lower) * float(p[action, lower].log()) + (place - lower) * float(p[action, upper].log())
    assert float(agent.update(batch)["loss"]) == pytest.approx(loss / len(batch.action), rel=1e-4)


def test_ranking_loss_by_hand() -> None:
    """In each state the divergence of the actions' softmax; a row alone in its state has nothing to rank."""
    batch = PrioritisedSampler(LOG, 1, pictures=3, returns=RETURNS).sample()
    returns, picture = there(batch.returns), there(batch.obs.picture)
    q = torch.randn(1, len(batch.action), generator=torch.Generator().manual_seed(0))
    found = ranking_loss(batch, q, q, 4)[0]
    for state in range(3):
        mine = picture == state
        p, ours = (np.exp(2 * v[mine].double().numpy()) for v in (returns, q[0]))
        p, ours = p / p.sum(), ours / ours.sum()
        np.testing.assert_allclose(found[mine], np.full(4, (p * np.log(p / ours)).sum()), rtol=1e-4)
    torch.testing.assert_close(ranking_loss(batch, returns[None], q, 4)[0], torch.zeros(len(batch.action)), atol=1e-5, rtol=0)
    alone = batch.action == 0
    few = replace(
        batch,
        action=batch.action[alone],
        returns=returns[alone],
        obs=replace(batch.obs, picture=picture[alone]),
    )
    torch.testing.assert_close(ranking_loss(few, q[:, alone], q[:, alone], 4), torch.zeros(1, 3))


def test_the_scale_is_that_of_the_policys_own_steps() -> None:
    agent = C51.for_data(LOG, C51Config(members=2, **SMALL))
    batch = Sampler(LOG).batch(torch.arange(len(LOG)))
    flat = torch.full((len(LOG), 2), 0.5).log()
    own = agent.act(batch.obs, flat) == batch.action
    assert 0 < int(own.sum()) < len(LOG)
    errors = agent.td_errors(batch, flat)
    agent.calibrate([batch])
    torch.testing.assert_close(agent.scale, errors[own].square().mean(0).sqrt())
    assert not torch.allclose(agent.scale, errors.square().mean(0).sqrt(), rtol=1e-4)


@pytest.mark.parametrize("pool", [False, True])
def test_pictures_are_enlarged_for_the_encoder(pool: bool) -> None:
    agent = C51.for_data(LOG, C51Config(members=1, enlarged=96, pool=pool, **SMALL))
    pictures = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8)
    larger = torch.nn.functional.interpolate(pictures.float(), size=(96, 96), mode="bilinear")
    expected = there(agent.net.encoder)(larger)
    torch.testing.assert_close(agent.encode(pictures), expected)
    batch = PrioritisedSampler(LOG, 1).sample()
    assert torch.isfinite(agent.update(batch)["loss"])


def test_a_pooled_encoder_reads_the_largest_of_every_channel() -> None:
    encoder, picture = impala_encoder(pool=True), torch.rand(2, 3, 64, 64)
    assert sum(p.numel() for p in encoder.parameters()) == 622_144 - (2048 - 32) * 256
    places = encoder[:-5](picture)  # before pooling
    assert places.shape == (2, 32, 8, 8)
    torch.testing.assert_close(encoder(picture), encoder[-2](places.amax((2, 3)).relu()).relu())


@pytest.mark.parametrize("depth", [0, 1, 40])
@pytest.mark.parametrize("kind", [C51, APEVC51])
def test_a_tiny_log_is_learned(kind: Any, depth: int) -> None:
    data = log_mazes(MAZES[:1], "simple")
    config = {C51: C51Config, APEVC51: APEVC51Config}[kind](members=2, backup_depth=depth, features=32, lr=3e-3)
    agent = kind.for_data(data, config)
    sampler = PrioritisedSampler(data, 1, returns=logged_returns(data, 0.99, -1.0) if depth == 0 else None)
    for _ in range(60 if depth != 1 else 5):
        metrics = agent.update(sampler.sample())
    if depth != 1:  # one step at a time takes too long for a test; that it runs and is finite is checked
        env = BatchedMaze(MAZES[:1], copies=2)
        assert rollout(Policy(agent, "uniform"), env).success.all()
    assert all(bool(torch.isfinite(value)) for value in metrics.values())


def test_with_known_returns_the_conservative_ensemble_trains_like_the_plain_one() -> None:
    trained = []
    for kind, config in ((C51, C51Config), (C51LCB, C51LCBConfig)):
        agent = kind.for_data(LOG, config(backup_depth=0, **SMALL), seed=3)
        sampler = PrioritisedSampler(LOG, 2, pictures=4, returns=RETURNS, seed=1)
        for _ in range(3):
            agent.update(sampler.sample())
        trained.append(agent.net.state_dict())
    assert all(torch.equal(trained[0][key], trained[1][key]) for key in trained[0])


def test_backup_depth_zero_asks_for_returns() -> None:
    agent = C51.for_data(LOG, C51Config(backup_depth=0, **SMALL))
    with pytest.raises(ValueError, match="logged_returns"):
        agent.update(PrioritisedSampler(LOG, 1).sample())


@pytest.mark.parametrize(
    "wrong",
    [{"backup_depth": -1}, {"views": 9}, {"judged_by": "gut"}, {"low": 9.0}, {"atoms": 1}, {"members": 0}],
)
def test_senseless_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Fix"):
        C51.for_data(LOG, C51Config(**wrong))


@pytest.mark.parametrize("wrong", [{"views": 2}, {"concentration": 0.0}, {"surprise": "home"}, {"beliefs": 0}])
def test_senseless_settings_of_apev_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Fix"):
        APEVC51.for_data(LOG, APEVC51Config(**wrong))


def test_symmetries_need_steps_in_a_square() -> None:
    layout = Layout((), "observation", (3, 8, 8), 3)
    with pytest.raises(ValueError, match="left, down, up, right"):
        C51(layout, C51Config(augment=True))


# ---------------------------------------------------------------------- symmetries and views


def test_symmetries_map_steps_as_they_map_pictures() -> None:
    """A dot that moves by an action, seen under a symmetry, moves by the action's image."""
    for symmetry in range(symmetries.COUNT):
        for action, (dx, dy) in enumerate(symmetries.MOVES):
            pictures = torch.zeros(2, 1, 5, 5)
            pictures[0, 0, 2, 2] = pictures[1, 0, 2 - dy, 2 + dx] = 1  # rows go down, y goes up
            seen = symmetries.transform(pictures, symmetry)
            row, column = (int(v) for v in seen[1, 0].nonzero()[0])
            after = symmetries.MOVES.index((column - 2, 2 - row))
            assert int(symmetries.ACTION_AFTER[symmetry, action]) == after


def test_every_picture_under_its_own_symmetry() -> None:
    pictures = torch.randint(255, (16, 3, 6, 6), dtype=torch.uint8)
    each = symmetries.transform_each(pictures, torch.arange(16) % 8)
    for i in range(16):
        assert torch.equal(each[i], symmetries.transform(pictures[i], i % 8))


def test_views_of_a_turned_world_are_views_of_the_world() -> None:
    """What view 0 says of a turned picture about the turned action is what that view says of the picture itself."""
    agent = C51.for_data(LOG, C51Config(members=2, views=8, **SMALL))
    assert agent.members == 16
    batch = PrioritisedSampler(LOG, 1).sample()
    q = agent.values(agent.encode(batch.obs.pictures), batch.obs, torch.ones(1))  # [16, B, A]
    for view in (1, 6):
        turned = replace(batch.obs, pictures=symmetries.transform(there(batch.obs.pictures), view))
        seen = agent.values(agent.encode(turned.pictures), turned, torch.ones(1))[:2]
        action = symmetries.ACTION_AFTER[view]
        torch.testing.assert_close(q[2 * view : 2 * view + 2], seen[:, :, action], atol=1e-4, rtol=1e-4)


def test_augmented_levels_are_the_same_worlds() -> None:
    """A symmetry moves pictures and actions together: rows keep their level, reward and end, and all four actions."""
    agent = C51.for_data(LOG, C51Config(augment=True, **SMALL))
    batch = PrioritisedSampler(LOG, 3).sample()
    other = symmetries.augmented(batch, LOG.num_groups, agent.generator)
    assert torch.equal(other.reward, batch.reward)
    assert torch.equal(there(other.next_obs.picture), there(batch.next_obs.picture))
    order = torch.stack([torch.bincount(other.action[other.obs.picture == p], minlength=4) for p in range(3)])
    assert bool((order == order[:, :1]).all())
    assert there(other.obs.pictures).shape == there(batch.obs.pictures).shape


# ---------------------------------------------------------------------- surprise


def closed_way(graph: Graph, best: list[int]) -> list[int]:
    """The pictures that the best steps from the first one lead around; none where they lead to the cheese."""
    picture, visited = 0, list[int]()
    while picture not in visited:
        visited.append(picture)
        if not bool(graph.discount[picture, best[picture]]):
            return []
        picture = int(graph.following[picture, best[picture]])
    return visited[visited.index(picture) :]


def test_surprise_in_a_loop_adds_up() -> None:
    """Around a closed way a member's TD errors along its own best steps sum to the number of steps, without discount."""
    batch = PrioritisedSampler(LOG, 1).sample()
    for seed in range(20):  # some untrained members find the cheese
        agent = C51.for_data(LOG, C51Config(members=1, gamma=1.0, **SMALL), seed=seed)
        features = agent.encode(batch.obs.pictures)
        q = (agent.table(agent.net, features).softmax(-1) @ agent.net.atoms)[0]
        loop = closed_way(Graph.of(batch, 4, 1.0), q.argmax(-1).tolist())
        if loop:
            break
    assert loop
    picture, after = there(batch.obs.picture), there(batch.next_obs.picture)
    rows = torch.tensor([int(((picture == c) & (batch.action == q[c].argmax())).nonzero()[0]) for c in loop])
    step = replace(
        batch,
        obs=replace(batch.obs, vector=batch.obs.vector[rows], picture=picture[rows]),
        next_obs=replace(batch.next_obs, vector=batch.next_obs.vector[rows], picture=after[rows]),
        action=batch.action[rows],
        reward=batch.reward[rows],
        terminated=batch.terminated[rows],
    )
    errors = agent.td_errors(step, torch.zeros(len(rows), 1), features)
    assert float(errors.sum()) == pytest.approx(len(loop), abs=1e-3)


def test_the_categorical_surprise_is_a_likelihood() -> None:
    agent = C51.for_data(LOG, C51Config(members=2, judged_by="categorical", **SMALL))
    batch = PrioritisedSampler(LOG, 1).sample()
    errors = agent.td_errors(batch, torch.zeros(len(batch.action), 2))
    likelihood = agent.filter.log_likelihood(errors).exp()
    table = agent.table(agent.net, agent.encode(batch.obs.pictures)).softmax(-1)
    now = table[:, batch.obs.picture, batch.action]
    best = (table @ agent.net.atoms).argmax(-1)
    row, then = 5, there(batch.next_obs.picture)
    after = table[torch.arange(2), then[row], best[:, then[row]]]
    fade = 0.99 * (1 - batch.terminated[row])
    seen = project(after, (batch.reward[row] - 1).expand(2), fade.expand(2), agent.net.atoms)
    torch.testing.assert_close(likelihood[row], (now[:, row] * seen).sum(-1), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("where", ["paper", "certain"])
def test_apev_is_surprised_where_it_says(where: Literal["paper", "certain"]) -> None:
    agent = APEVC51.for_data(LOG, APEVC51Config(surprise=where, **SMALL))
    batch = PrioritisedSampler(LOG, 1).sample()
    rows = len(batch.action)
    one, other = (torch.tensor([[w, 1 - w]]).log().expand(rows, 2) for w in (0.9, 0.2))
    same = torch.allclose(agent.td_errors(batch, one), agent.td_errors(batch, other))
    assert same == (where == "certain")


# ---------------------------------------------------------------------- networks


def test_impala_is_the_published_network() -> None:
    encoder = impala_encoder()
    assert sum(p.numel() for p in encoder.parameters()) == 622_144
    assert encoder(torch.zeros(2, 3, 64, 64)).shape == (2, 256)
    shapes = [tuple(p.shape) for p in encoder.parameters() if p.ndim == 4]
    blocks = [(16, 3), *[(16, 16)] * 4, (32, 16), *[(32, 32)] * 4, (32, 32), *[(32, 32)] * 4]
    assert shapes == [(*block, 3, 3) for block in blocks]


def test_the_readout_is_linear_and_reads_the_belief() -> None:
    net = CategoricalEnsemble(2, 4, 0, (3, 64, 64), belief=True)
    assert [tuple(p.shape) for p in net.readout.parameters()] == [(2, 258, 4 * 81), (2, 1, 4 * 81)]
    torch.testing.assert_close(net.atoms, torch.linspace(-31, 9, 81))
    q = net(net.encode(torch.zeros(3, 3, 64, 64, dtype=torch.uint8)), torch.zeros(3, 0), torch.tensor([[1.0, 0.0]] * 3))
    assert q.shape == (2, 3, 4)
    assert bool((q.abs() < 31).all())
