"""The policy: beliefs that follow the evidence, stay frozen, or are drawn; for one environment or many."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import linear

import apev
from apev import belief as beliefs
from apev.agents import DQN, DQNConfig
from apev.data import Batch, Layout, Observations
from apev.files import write_json
from apev.policy import Policy, PolicyState

K = 3
VECTOR = Layout(vectors=(("observation", 2),), picture=None, picture_shape=None, num_actions=3, bare=True)
PICTURE = Layout(vectors=(), picture="observation", picture_shape=(3, 8, 8), num_actions=3, bare=True)
BOTH = Layout(vectors=(("hint", 2),), picture="image", picture_shape=(3, 8, 8), num_actions=3)
ONE = np.array([1, 0], dtype=np.float32)
MANY = np.eye(2, dtype=np.float32)[[0, 1, 0, 1]]


def dqn(layout: Layout = VECTOR, **settings: Any) -> DQN:
    fixed: dict[str, Any] = {"members": K, "hidden": (16,), "features": 4, "likelihood": "paper"}
    return DQN(layout, DQNConfig(**(fixed | settings)))


@pytest.fixture
def agent() -> DQN:
    """A table: Q_k(s, a) = 1 where a = (k + s) % 3, else 0; nothing follows (gamma = 0)."""
    agent = dqn(hidden=(), gamma=0.0, floor=0.0)
    table = torch.zeros(K, 2, 3)
    for k in range(K):
        for s in range(2):
            table[k, s, (k + s) % 3] = 1
    with torch.no_grad():
        linear(agent.net.heads.layers[0]).weight.copy_(table)
        linear(agent.net.heads.layers[0]).bias.zero_()
    return agent


def bayes(belief: np.ndarray, errors: Any) -> np.ndarray:
    weights = belief * np.exp(-np.square(errors))
    normed: np.ndarray = weights / weights.sum(-1, keepdims=True)
    return normed


def frames(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(count, 8, 8, 3), dtype=np.uint8)


def count_encoded(agent: DQN) -> list[int]:
    counts: list[int] = []
    assert agent.net.encoder is not None
    agent.net.encoder.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))
    return counts


# ---------------------------------------------------------------------- the filter at work


def test_one_environment_is_told_without_a_batch_axis(agent: DQN) -> None:
    policy = Policy(agent)
    np.testing.assert_allclose(policy.belief, np.full(K, 1 / K))
    action = policy.act(ONE)
    assert isinstance(action, int)
    policy.observe(1.0, ONE, False)
    errors = np.array([1.0 * (action == k) for k in range(K)]) - 1  # gamma = 0: Q_k(s, a) - r
    np.testing.assert_allclose(policy.belief, bayes(np.full(K, 1 / K), errors), rtol=1e-5)
    policy.reset()
    np.testing.assert_allclose(policy.belief, np.full(K, 1 / K))


def test_many_environments_each_have_their_own_belief(agent: DQN) -> None:
    policy = Policy(agent)
    action = policy.act(MANY)
    assert action.shape == (4,)
    reward = np.array([1.0, 0.0, -1.0, 2.0])
    policy.observe(reward, MANY, np.zeros(4, dtype=bool))
    state = MANY.argmax(1)
    q = np.stack([(action == (k + state) % 3) for k in range(K)], axis=1).astype(float)
    np.testing.assert_allclose(policy.belief, bayes(np.full((4, K), 1 / K), q - reward[:, None]), rtol=1e-5)


def test_act_uses_the_belief_and_never_changes_it(agent: DQN) -> None:
    for member in range(K):
        policy = Policy(agent, f"member:{member}")
        before = policy.belief
        assert policy.act(MANY).tolist() == [(member + s) % 3 for s in MANY.argmax(1)]
        np.testing.assert_allclose(policy.belief, np.tile(before, (4, 1)))


def test_evidence_convinces_the_policy_of_the_right_member(agent: DQN) -> None:
    """In member 2's world action 2 pays in state 0; the others must be tried and dropped."""
    policy = Policy(agent)
    for _ in range(8):
        action = policy.act(ONE)
        policy.observe(float(action == 2), ONE, False)
    assert policy.act(ONE) == 2
    assert policy.belief.argmax() == 2
    assert policy.belief[2] > 0.9


def test_the_executed_action_counts_when_it_was_not_ours(agent: DQN) -> None:
    policy = Policy(agent, "bayes")
    policy.act(MANY)
    policy.observe(np.ones(4), MANY, np.zeros(4, dtype=bool), action=np.array([2, 2, 2, 2]))
    q = np.stack([(np.full(4, 2) == (k + MANY.argmax(1)) % 3) for k in range(K)], axis=1).astype(float)
    np.testing.assert_allclose(policy.belief, bayes(np.full((4, K), 1 / K), q - 1), rtol=1e-5)
    single = Policy(agent)
    single.act(ONE)
    single.observe(1.0, ONE, False, action=2)
    np.testing.assert_allclose(single.belief, policy.belief[0], rtol=1e-6)


def test_termination_matters_to_the_evidence() -> None:
    agent = dqn(gamma=0.9)
    ended, going_on = Policy(agent), Policy(agent)
    for policy, terminated in ((ended, True), (going_on, False)):
        policy.act(ONE)
        policy.observe(0.0, np.array([0, 5], dtype=np.float32), terminated)
    assert not np.allclose(ended.belief, going_on.belief, atol=1e-4)


def test_rows_that_are_not_active_are_left_alone(agent: DQN) -> None:
    policy = Policy(agent)
    policy.act(MANY)
    policy.observe(np.full(4, 3.0), MANY, np.zeros(4, dtype=bool), active=np.array([True, False, True, False]))
    np.testing.assert_allclose(policy.belief[[1, 3]], 1 / K)
    assert not np.allclose(policy.belief[[0, 2]], 1 / K)


def test_reset_of_some_environments(agent: DQN) -> None:
    policy = Policy(agent)
    policy.act(MANY)
    policy.observe(np.ones(4), MANY, np.zeros(4, dtype=bool))
    before = policy.belief
    policy.reset(np.array([False, True, False, True]))
    np.testing.assert_allclose(policy.belief[[1, 3]], 1 / K)
    np.testing.assert_array_equal(policy.belief[[0, 2]], before[[0, 2]])
    policy.reset([True] * 4, keep_belief=True)
    np.testing.assert_array_equal(policy.belief[[0, 2]], before[[0, 2]])


def test_keep_belief_carries_it_into_the_next_episode_but_not_the_last_step(agent: DQN) -> None:
    policy = Policy(agent)
    policy.act(ONE)
    policy.observe(1.0, ONE, True)
    before = policy.belief
    policy.reset(keep_belief=True)
    np.testing.assert_array_equal(policy.belief, before)
    with pytest.raises(RuntimeError, match="observe\\(\\) before act"):
        policy.observe(1.0, ONE, False)


def test_reset_says_how_many_environments_there_are(agent: DQN) -> None:
    policy = Policy(agent)
    policy.reset(num_envs=5)
    np.testing.assert_allclose(policy.belief, np.full((5, K), 1 / K))


def test_a_saved_filter_setting_is_the_agents(agent: DQN) -> None:
    assert Policy(agent).filter.likelihood == "paper"
    calibrated = dqn(likelihood="calibrated", temperature=2.0, floor=0.02, forgetting=0.1)
    filter = Policy(calibrated).filter
    assert (filter.likelihood, filter.temperature, filter.floor, filter.forgetting) == ("calibrated", 2.0, 0.02, 0.1)


# ---------------------------------------------------------------------- frozen and drawn beliefs


@pytest.mark.parametrize(
    ("adapt", "expected"),
    [
        ("uniform", [1 / 3] * 3),
        ("member:1", [0, 1, 0]),
        ("member:0", [1, 0, 0]),
        ([1, 1, 2], [0.25, 0.25, 0.5]),
        (np.array([0, 0, 1.0]), [0, 0, 1]),
    ],
)
def test_a_frozen_belief_never_changes(agent: DQN, adapt: Any, expected: list[float]) -> None:
    policy = Policy(agent, adapt)
    np.testing.assert_allclose(policy.belief, expected, atol=1e-6)
    for reward in (5.0, -5.0):
        policy.act(MANY)
        policy.observe(np.full(4, reward), MANY, np.zeros(4, dtype=bool))
        np.testing.assert_allclose(policy.belief, np.tile(expected, (4, 1)), atol=1e-6)
    policy.reset(np.array([True, False, True, False]))
    np.testing.assert_allclose(policy.belief, np.tile(expected, (4, 1)), atol=1e-6)


def test_a_word_says_where_the_belief_starts(agent: DQN) -> None:
    np.testing.assert_allclose(Policy(agent, "bayes").belief, 1 / K)
    np.testing.assert_allclose(Policy(agent, "uniform").belief, 1 / K)
    one = Policy(agent, "member:1")
    one.act(ONE)
    one.observe(9.0, ONE, False)
    np.testing.assert_allclose(one.belief, [0, 1, 0], atol=1e-6)


def test_one_random_member_an_episode(agent: DQN) -> None:
    policy = Policy(agent, "random-member", seed=3)
    drawn = []
    for _ in range(30):
        policy.reset(num_envs=20)
        first = policy.belief
        for _ in range(3):
            policy.act(MANY[[0] * 20])
            policy.observe(np.ones(20), MANY[[0] * 20], np.zeros(20, dtype=bool))
        np.testing.assert_array_equal(policy.belief, first)
        drawn.append(first.argmax(1))
        np.testing.assert_allclose(first.max(1), 1)
    counts = np.bincount(np.concatenate(drawn), minlength=K)
    assert counts.min() > 150  # 200 expected of each
    policy.reset(num_envs=20)
    before = policy.belief
    policy.reset(np.arange(20) < 10)
    np.testing.assert_array_equal(policy.belief[10:], before[10:])
    assert not np.array_equal(policy.belief[:10], before[:10])


def test_a_random_member_a_step(agent: DQN) -> None:
    policy = Policy(agent, "random-member-step", seed=3)
    policy.reset(num_envs=50)
    members = []
    for _ in range(12):
        action = policy.act(MANY[[0] * 50])
        members.append(policy.belief.argmax(1))
        np.testing.assert_array_equal(action, members[-1])  # in state 0 member k takes action k
        policy.observe(np.ones(50), MANY[[0] * 50], np.zeros(50, dtype=bool))
    assert np.bincount(np.concatenate(members), minlength=K).min() > 140
    assert np.all(np.stack(members).max(0) != np.stack(members).min(0))  # nobody keeps one


def test_a_committed_policy_changes_its_mind_at_odds_of_twenty(agent: DQN) -> None:
    policy = Policy(agent, "commit")
    policy.reset(num_envs=2)
    state_0, running = MANY[[0, 0]], np.zeros(2, dtype=bool)
    done = []
    for _ in range(5):
        done.append(policy.act(state_0).tolist())  # in state 0 member k takes action k
        policy.observe(np.zeros(2), state_0, running, active=[True, False])  # and expects 1 for it: odds fall by e
    assert done == [[2, 2]] * 3 + [[1, 2]] * 2  # e^3 > 20 > e^2
    assert policy.belief[0, 0] > 0.45
    policy.reset([True, False])
    assert policy.act(state_0).tolist() == [2, 2]
    policy.state.log_belief = torch.tensor([[0.05, 0.9, 0.05], [0.3, 0.6, 0.1]]).log()
    assert policy.act(state_0).tolist() == [2, 2]
    policy.reset(keep_belief=True)  # a new episode begins with whom the last one leaves most believed
    assert policy.act(state_0).tolist() == [1, 1]


def test_drawn_members_depend_on_the_seed_alone(agent: DQN) -> None:
    def drawn(seed: int) -> list[int]:
        policy = Policy(agent, "random-member", seed=seed)
        policy.reset(num_envs=30)
        return [int(k) for k in policy.belief.argmax(1)]

    torch.manual_seed(1)
    first = drawn(4)
    torch.manual_seed(2)
    assert drawn(4) == first
    assert drawn(5) != first


def test_with_adapt_shares_the_agent_and_keeps_the_filter(agent: DQN) -> None:
    policy = Policy(agent)
    other = policy.with_adapt("member:2")
    assert other.agent is agent
    np.testing.assert_allclose(other.belief, [0, 0, 1], atol=1e-6)
    policy.filter = beliefs.BeliefFilter("paper", temperature=7.0)
    assert policy.with_adapt("bayes").filter.temperature == 7.0


# ---------------------------------------------------------------------- predict


def test_predict_follows_the_protocol_of_recurrent_policies(agent: DQN) -> None:
    policy, twin = Policy(agent), Policy(agent)
    state: PolicyState | None = None
    start = np.ones(4, dtype=bool)
    for step in range(4):
        action, state = policy.predict(MANY, state, episode_start=start)
        if step == 2:
            twin.reset(start)
        np.testing.assert_array_equal(action, twin.act(MANY))
        np.testing.assert_allclose(policy.belief, twin.belief)
        for one in (policy, twin):
            one.observe(np.full(4, 0.5 * step), MANY, np.zeros(4, dtype=bool))
        start = np.array([True, False, True, False]) if step == 1 else np.zeros(4, dtype=bool)
    assert not np.allclose(policy.belief, 1 / K)


def test_predict_for_one_environment(agent: DQN) -> None:
    policy = Policy(agent)
    action, state = policy.predict(ONE, episode_start=True)
    assert isinstance(action, int)
    policy.observe(4.0, ONE, False)
    moved = policy.belief
    assert not np.allclose(moved, 1 / K)
    action, state = policy.predict(ONE, state, episode_start=False)
    np.testing.assert_array_equal(policy.belief, moved)
    policy.predict(ONE, state, episode_start=True)
    np.testing.assert_allclose(policy.belief, 1 / K)


def test_predict_may_start_more_or_fewer_environments_than_before(agent: DQN) -> None:
    policy = Policy(agent)
    for count in (4, 2, 3, 1):
        action, state = policy.predict(MANY[:count], episode_start=np.ones(count, dtype=bool))
        assert action.shape == (count,)
        np.testing.assert_allclose(state.log_belief.exp(), torch.full((count, K), 1 / K))
        policy.observe(np.ones(count), MANY[:count], np.zeros(count, dtype=bool))


def test_predict_draws_a_member_for_each_environment(agent: DQN) -> None:
    policy = Policy(agent, "random-member")
    _, state = policy.predict(MANY[[0] * 40], episode_start=np.ones(40, dtype=bool))
    assert len(state.log_belief.argmax(1).unique()) == K


def test_predict_can_sample_actions(agent: DQN) -> None:
    policy = Policy(agent)
    actions, _ = policy.predict(MANY[[0] * 200], deterministic=False)
    assert set(actions.tolist()) == {0, 1, 2}


# ---------------------------------------------------------------------- pictures


def test_pictures_are_encoded_again_only_when_they_change() -> None:
    agent = dqn(BOTH)
    counts = count_encoded(agent)
    policy = Policy(agent)
    shown = frames(4)
    for _ in range(3):
        policy.act({"image": shown.copy(), "hint": MANY})
        policy.observe(np.zeros(4), {"image": shown.copy(), "hint": MANY}, np.zeros(4, dtype=bool))
    assert counts == [4]
    policy.act({"image": frames(4, seed=1), "hint": MANY})
    assert counts == [4, 4]


def test_many_pictures_are_encoded_in_pieces() -> None:
    agent = dqn(PICTURE)
    counts = count_encoded(agent)
    whole = Policy(agent).act(frames(700))
    assert sum(counts) == 700
    assert max(counts) < 700
    np.testing.assert_array_equal(whole[-5:], Policy(agent).act(frames(700)[-5:]))


@pytest.mark.parametrize("layout", [PICTURE, BOTH], ids=["picture", "dict"])
def test_pictures_may_change_within_an_episode(layout: Layout) -> None:
    """Against TD errors asked of the agent directly, with the picture before and the one after."""
    agent = dqn(layout, gamma=0.9)
    films = [frames(4, seed=s) for s in range(4)]
    wrap = (lambda f: f) if layout is PICTURE else (lambda f: {"image": f, "hint": MANY})
    counts = count_encoded(agent)
    policy = Policy(agent)
    log_belief = beliefs.uniform(K, 4)
    for before, after in pairwise(films):
        action = policy.act(wrap(before))
        policy.observe(np.full(4, 0.3), wrap(after), np.zeros(4, dtype=bool))
        table = torch.from_numpy(np.concatenate([before, after])).permute(0, 3, 1, 2)
        vector = torch.from_numpy(MANY) if layout is BOTH else torch.zeros(4, 0)
        step = Batch(
            Observations(vector, table, torch.arange(4)),
            torch.from_numpy(action),
            torch.full((4,), 0.3),
            Observations(vector, table, torch.arange(4, 8)),
            torch.zeros(4),
            torch.zeros(4, dtype=torch.int64),
        )
        log_belief = policy.filter.update(log_belief, agent.td_errors(step, log_belief))
        np.testing.assert_allclose(policy.belief, log_belief.exp(), rtol=1e-4)
    assert counts.count(4) == 4  # each film frame once by the policy; the others are this test's own


def test_an_environment_may_draw_into_the_same_buffer() -> None:
    """Some environments return one array and change it in place: what was seen must not change with it."""
    agent = dqn(BOTH, gamma=0.9)
    buffer = {"image": frames(4), "hint": MANY.copy()}
    reused, fresh = Policy(agent), Policy(agent)
    for step in range(3):
        for key, value in {"image": frames(4, seed=step), "hint": MANY + step}.items():
            buffer[key][...] = value
        now = {key: value.copy() for key, value in buffer.items()}
        np.testing.assert_array_equal(reused.act(buffer), fresh.act(now))
        buffer["image"][...] = frames(4, seed=step + 1)
        buffer["hint"][...] = MANY + step + 1
        for policy, after in ((reused, buffer), (fresh, {key: value.copy() for key, value in buffer.items()})):
            policy.observe(np.ones(4), after, np.zeros(4, dtype=bool))
        np.testing.assert_allclose(reused.belief, fresh.belief, rtol=1e-5)


def test_one_picture_is_told_without_a_batch_axis() -> None:
    for layout, wrap in ((PICTURE, lambda f: f), (BOTH, lambda f: {"image": f, "hint": ONE})):
        agent = dqn(layout)
        policy = Policy(agent)
        action = policy.act(wrap(frames(1)[0]))
        assert isinstance(action, int)
        policy.observe(1.0, wrap(frames(1, seed=1)[0]), False)
        assert policy.belief.shape == (K,)


def test_a_single_number_is_an_observation_too() -> None:
    """Gymnasium's Discrete spaces give one integer; the data set stores such a column as width 1."""
    layout = Layout(vectors=(("observation", 1),), picture=None, picture_shape=None, num_actions=3, bare=True)
    policy = Policy(dqn(layout))
    batch = policy.act(np.array([3, 4]))
    assert batch.shape == (2,)
    single = Policy(dqn(layout))
    assert single.act(3) == batch[0]
    assert single.act(np.int64(4)) == batch[1]


# ---------------------------------------------------------------------- files


def test_save_and_load_keep_layout_and_settings(tmp_path: Path) -> None:
    agent = dqn(BOTH, hidden=(8, 4), prior_scale=0.5)
    agent.scale.copy_(torch.tensor([1.0, 2.0, 3.0]))
    Policy(agent).save(tmp_path)
    loaded = apev.load(tmp_path, adapt="member:1")
    assert loaded.agent.config == agent.config
    assert loaded.agent.layout == BOTH
    assert loaded.adapt == "member:1"
    for name, value in agent.policy_state().items():
        assert torch.equal(loaded.agent.policy_state()[name], value), name
    about = json.loads((tmp_path / "policy.json").read_text())
    assert (about["agent"], about["apev"]) == ("dqn", apev.__version__)


def test_load_names_the_mistake(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no policy.json.*begun training"):
        apev.load(tmp_path / "nowhere")
    Policy(dqn()).save(tmp_path / "run" / "policy")
    assert apev.load(tmp_path / "run").members == K  # a run folder will do
    about = json.loads((tmp_path / "run/policy/policy.json").read_text())
    about = {k: v for k, v in about.items() if k != "sha256"} | {"agent": "dreamer"}
    write_json(tmp_path / "run/policy/policy.json", about, checksum=True)
    with pytest.raises(ValueError, match="dreamer"):
        apev.load(tmp_path / "run")


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("adapt", "message"),
    [
        ("member:3", "adapt='member:3' names no member. Fix: member:0 to member:2"),
        ("member:-1", "is unknown. Fix: one of bayes"),
        ("members", "adapt='members' is unknown. Fix: one of bayes"),
        (True, "is no word. Fix: one of bayes"),
        (1, "is no word. Fix: one of bayes"),
        ([0.5, 0.5], "3 weights >= 0"),
        ([1.0, -1.0, 1.0], "3 weights >= 0"),
        ([0.0, 0.0, 0.0], "3 weights >= 0"),
    ],
)
def test_an_unknown_behaviour_is_refused(agent: DQN, adapt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Policy(agent, adapt)


@pytest.mark.parametrize("reading", [np.nan, np.inf])
def test_a_broken_reading_moves_nothing(agent: DQN, reading: float) -> None:
    with pytest.raises(ValueError, match="NaN, infinite"):
        Policy(agent).act(np.full(agent.layout.vector_dim, reading, dtype=np.float32))


def test_observe_needs_an_act_first(agent: DQN) -> None:
    with pytest.raises(RuntimeError, match=r"observe\(\) before act\(\).*call act\(obs\) first"):
        Policy(agent).observe(0.0, ONE, False)


@pytest.mark.parametrize(
    "mistake",
    [
        {"reward": np.zeros(3)},
        {"terminated": np.zeros(2, dtype=bool)},
        {"next_obs": MANY[:3]},
        {"action": np.zeros(5, dtype=int)},
        {"active": np.ones(3, dtype=bool)},
    ],
    ids=lambda mistake: next(iter(mistake)),
)
def test_columns_of_different_lengths_are_refused_by_name(agent: DQN, mistake: dict[str, Any]) -> None:
    policy = Policy(agent)
    policy.act(MANY)
    step = {"reward": np.zeros(4), "next_obs": MANY, "terminated": np.zeros(4, dtype=bool)}
    with pytest.raises(ValueError, match=next(iter(mistake))):
        policy.observe(**(step | mistake))


def test_a_mask_of_another_length_is_refused(agent: DQN) -> None:
    policy = Policy(agent)
    policy.act(MANY)
    with pytest.raises(ValueError, match="mask"):
        policy.reset(np.ones(3, dtype=bool))


def test_beliefs_of_running_episodes_are_not_lost_to_another_number_of_observations(agent: DQN) -> None:
    policy = Policy(agent)
    policy.act(MANY)
    with pytest.raises(ValueError, match=r"2 observations, but beliefs of 4 running episodes"):
        policy.act(MANY[:2])
    policy.reset(num_envs=2)
    assert len(policy.act(MANY[:2])) == 2


def test_an_executed_action_that_does_not_exist_is_refused(agent: DQN) -> None:
    policy = Policy(agent)
    policy.act(ONE)
    with pytest.raises(ValueError, match="action"):
        policy.observe(0.0, ONE, False, action=7)


def test_the_seed_of_a_policy_decides_what_is_drawn_and_the_agent_stays_as_it_is() -> None:
    agent = dqn(softness=5.0)
    before = agent.generator.get_state()

    def drawn(seed: int) -> list[int]:
        policy = Policy(agent, seed=seed)
        policy.reset(num_envs=4)
        return [int(a) for _ in range(8) for a in policy.act(MANY, deterministic=False)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert torch.equal(agent.generator.get_state(), before)  # a query is no part of training


def test_a_held_hypothesis_changes_between_episodes_alone(agent: DQN) -> None:
    policy, observations = Policy(agent, "hold"), np.zeros((2, 2), dtype=np.float32)

    def acted_on() -> list[int]:
        policy.act(observations)
        assert policy.state.trusted is not None
        return list(policy.state.trusted.tolist())

    policy.reset(num_envs=2)
    policy.state.log_belief = beliefs.one_hot(torch.tensor([0, 1]), agent.members)
    assert acted_on() == [0, 1]
    policy.state.log_belief = beliefs.one_hot(torch.tensor([1, 0]), agent.members)
    assert acted_on() == [0, 1]
    policy.reset([True, False], keep_belief=True)
    assert acted_on() == [1, 1]
