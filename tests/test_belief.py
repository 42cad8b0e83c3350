"""The belief: always on the simplex, equal to the closed-form posterior where there is one, and never NaN."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from narrow import there
from scipy import stats
from torch import Tensor

from apev import belief as beliefs
from apev.belief import TAIL, BeliefFilter, Likelihood

FAST = settings(max_examples=40, deadline=None)

members = st.integers(1, 7)


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers that float32 holds, so that nothing is rounded before the filter sees it."""
    return st.floats(float(np.float32(low)), float(np.float32(high)), width=32, allow_subnormal=False)


@st.composite
def rows(draw: Any, values: st.SearchStrategy[float], count: int = 1, batch: int = 3) -> list[Tensor]:
    """`count` tensors [batch, K] of one K."""
    shape = (batch, draw(members))
    return [torch.from_numpy(draw(hnp.arrays(np.float32, shape, elements=values))) for _ in range(count)]


@st.composite
def filters(draw: Any, members: int) -> BeliefFilter:
    scale = draw(st.none() | hnp.arrays(np.float32, members, elements=floats(1e-6, 1e6)))
    return BeliefFilter(
        draw(st.sampled_from(["paper", "calibrated", "gaussian", "student"])),
        temperature=draw(floats(1e-3, 1e3)),
        forgetting=draw(floats(0, 1)),
        floor=draw(st.sampled_from([0.0, 0.01, 0.9 / members])),
        scale=None if scale is None else torch.from_numpy(scale),
    )


def on_simplex(log_belief: Tensor) -> bool:
    weights = log_belief.exp()
    total = torch.allclose(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-5)
    return total and not bool(log_belief.isnan().any()) and bool((weights >= 0).all())


# ---------------------------------------------------------------------- properties of the update


@FAST
@given(st.data())
def test_any_finite_input_stays_on_the_simplex(data: st.DataObject) -> None:
    # Log-weights down to -1e13: what a member has that was refuted as hard as can be, ten times, without a floor.
    log_belief, errors = data.draw(rows(floats(-20, 0), 2))
    log_belief = beliefs.normalise(log_belief * data.draw(st.sampled_from([1.0, 1e2, 1e5])))
    errors = errors * data.draw(st.sampled_from([0.0, 1e-30, 1.0, 1e6, 1e18]))
    filter = data.draw(filters(errors.shape[1]))
    new = filter.update(log_belief, errors)
    assert on_simplex(new)
    assert bool((new.exp() >= filter.floor * (1 - 1e-4)).all())
    assert on_simplex(filter.update(new, errors.flip(-1)))


def test_belief_stays_on_the_simplex_when_a_buried_member_is_the_only_one_unsurprised() -> None:
    """Two members refute a third beyond recall, then err wildly themselves: 1e12 of surprise swallows a log 2."""
    log_belief = beliefs.normalise(torch.tensor([[-2e12, 0.0, 0.0]]))
    new = BeliefFilter("paper").update(log_belief, torch.tensor([[0.0, 1e9, 1e9]]))
    torch.testing.assert_close(new.exp(), torch.tensor([[0.0, 0.5, 0.5]]))


def test_a_very_cold_filter_is_not_nan() -> None:
    """A temperature near 0 is a hard choice; equally hopeless members share the belief."""
    new = BeliefFilter(temperature=1e-30).update(beliefs.uniform(3, 1), torch.tensor([[1e8, 1e8, 1e8]]))
    torch.testing.assert_close(new.exp(), torch.full((1, 3), 1 / 3))


@FAST
@given(st.data())
def test_update_is_permutation_equivariant(data: st.DataObject) -> None:
    log_belief, errors = data.draw(rows(floats(-5, 5), 2))
    log_belief = beliefs.normalise(log_belief)
    K = errors.shape[1]
    filter = data.draw(filters(K))
    order = torch.tensor(data.draw(st.permutations(range(K))))
    shuffled = BeliefFilter(
        filter.likelihood,
        filter.temperature,
        filter.forgetting,
        filter.floor,
        None if filter.scale is None else filter.scale[order],
    )
    expected = filter.update(log_belief, errors)[:, order]
    torch.testing.assert_close(
        shuffled.update(log_belief[:, order], errors[:, order]).exp(), expected.exp(), atol=1e-6, rtol=1e-4
    )


@FAST
@given(st.data())
def test_posterior_of_members_that_predict_a_distribution_is_exact(data: st.DataObject) -> None:
    """A member that predicts mu_k, give or take sigma_k, errs by x - mu_k: the filter must be Bayes' rule."""
    K = data.draw(st.integers(2, 6))
    equal = data.draw(st.booleans())
    sigma = np.full(K, data.draw(floats(0.25, 4))) if equal else data.draw(hnp.arrays(np.float64, K, elements=floats(0.25, 4)))
    mu = data.draw(hnp.arrays(np.float64, K, elements=floats(-3, 3)))
    prior = data.draw(hnp.arrays(np.float64, K, elements=floats(0.01, 1)))
    seen = data.draw(hnp.arrays(np.float64, 4, elements=floats(-3, 3)))
    log_belief = beliefs.normalise(torch.tensor(prior).log()).float()
    # With equal scales the normaliser cancels, so that the calibrated form is exact, too.
    exact: list[Likelihood] = ["gaussian", "student", "calibrated"] if equal else ["gaussian", "student"]
    likelihood = data.draw(st.sampled_from(exact))
    filter = BeliefFilter(likelihood, scale=torch.tensor(sigma).float())
    for x in seen:
        log_belief = filter.update(log_belief, torch.tensor(x - mu).float())
    density = stats.t(TAIL, mu, sigma) if likelihood == "student" else stats.norm(mu, sigma)
    posterior = prior * density.pdf(seen[:, None]).prod(0)
    np.testing.assert_allclose(log_belief.exp(), posterior / posterior.sum(), atol=1e-4)


def test_paper_likelihood_is_the_printed_one() -> None:
    new = BeliefFilter("paper").update(torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([1.0, 0.0, -0.5]))
    weights = np.array([0.5, 0.3, 0.2]) * np.exp([-1.0, 0.0, -0.25])
    np.testing.assert_allclose(new.exp(), weights / weights.sum(), rtol=1e-5)


def test_calibrated_likelihood_measures_errors_in_units_of_the_members_scale() -> None:
    filter = BeliefFilter(scale=torch.tensor([2.0, 0.5]))
    new = filter.update(beliefs.uniform(2), torch.tensor([2.0, 0.5]))
    torch.testing.assert_close(new, beliefs.uniform(2))  # both one sigma off: no evidence, whatever the width
    gaussian = BeliefFilter("gaussian", scale=torch.tensor([2.0, 0.5])).update(beliefs.uniform(2), torch.tensor([2.0, 0.5]))
    np.testing.assert_allclose(gaussian.exp(), [0.2, 0.8], rtol=1e-5)  # the narrow member predicted more sharply


@FAST
@given(st.data())
def test_equal_errors_leave_the_belief_unchanged(data: st.DataObject) -> None:
    (log_belief,) = data.draw(rows(floats(-20, 0)))
    log_belief = beliefs.normalise(log_belief)
    error = data.draw(floats(-1e20, 1e20))
    scale = data.draw(st.none() | floats(1e-3, 1e3))
    K = log_belief.shape[1]
    filter = BeliefFilter(
        data.draw(st.sampled_from(["paper", "calibrated", "gaussian", "student"])),
        scale=None if scale is None else torch.full((K,), scale),
    )
    torch.testing.assert_close(filter.update(log_belief, torch.full_like(log_belief, error)), log_belief, atol=1e-5, rtol=1e-5)


@FAST
@given(st.data())
def test_order_of_evidence_does_not_matter_without_forgetting(data: st.DataObject) -> None:
    log_belief, *evidence = data.draw(rows(floats(-3, 3), 6))
    log_belief = beliefs.normalise(log_belief)
    order = data.draw(st.permutations(evidence))
    filter = BeliefFilter(temperature=data.draw(floats(0.5, 5)))
    one = other = log_belief
    for first, second in zip(evidence, order, strict=True):
        one, other = filter.update(one, first), filter.update(other, second)
    torch.testing.assert_close(one.exp(), other.exp(), atol=1e-4, rtol=1e-3)


@FAST
@given(st.data())
def test_smaller_errors_are_never_believed_less(data: st.DataObject) -> None:
    (errors,) = data.draw(rows(floats(-1e3, 1e3)))
    new = BeliefFilter(floor=0.01).update(beliefs.uniform(errors.shape[1], 3), errors)
    best = errors.abs().argmin(-1, keepdim=True)
    assert bool((new.gather(-1, best) >= new.amax(-1, keepdim=True) - 1e-5).all())


# ---------------------------------------------------------------------- floor, forgetting, temperature, masks


def test_a_floored_member_comes_back_and_one_without_floor_takes_as_long_as_it_was_refuted() -> None:
    refuted, supported = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    weights = {}
    for floor in (0.0, 0.01):
        filter = BeliefFilter("paper", floor=floor)
        log_belief = beliefs.uniform(2, 1)
        for _ in range(20):
            log_belief = filter.update(log_belief, refuted)
        for _ in range(3):
            log_belief = filter.update(log_belief, supported)
        weights[floor] = float(log_belief.exp()[0, 0])
    assert weights[0.01] > 0.9
    assert weights[0.0] < 1e-6


@FAST
@given(st.integers(2, 8), floats(0.01, 0.99))
def test_floor_is_kept_exactly_for_a_refuted_member(K: int, share: float) -> None:
    filter = BeliefFilter("paper", floor=share / K)
    errors = torch.full((1, K), 50.0)
    errors[0, 0] = 0
    weights = filter.update(beliefs.uniform(K, 1), errors).exp()[0]
    torch.testing.assert_close(weights[1:], torch.full((K - 1,), share / K))
    torch.testing.assert_close(weights[0], torch.tensor(1 - (K - 1) * share / K))


def test_forgetting_tends_to_uniform_without_evidence() -> None:
    log_belief = beliefs.normalise(torch.tensor([[0.0, -3.0, -30.0]]))
    filter = BeliefFilter(forgetting=0.1)
    distance = [float((log_belief.exp() - 1 / 3).abs().sum())]
    for _ in range(100):
        log_belief = filter.update(log_belief, torch.zeros(1, 3))
        distance.append(float((log_belief.exp() - 1 / 3).abs().sum()))
    assert distance[-1] < 1e-2
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(distance))
    once = BeliefFilter(forgetting=1.0).update(log_belief, torch.tensor([[1.0, 1.0, 0.0]]))
    torch.testing.assert_close(once, BeliefFilter().update(beliefs.uniform(3, 1), torch.tensor([[1.0, 1.0, 0.0]])))


def test_temperature_divides_the_evidence() -> None:
    errors = torch.tensor([[1.0, 2.0]])
    for temperature in (0.5, 1.0, 4.0):
        new = BeliefFilter("paper", temperature=temperature).update(beliefs.uniform(2, 1), errors)
        assert float(new[0, 0] - new[0, 1]) == pytest.approx(3 / temperature, rel=1e-5)


def test_mask_leaves_rows_alone_to_the_bit() -> None:
    log_belief = beliefs.sample_dirichlet(0.5, 6, 4, torch.Generator().manual_seed(0))
    mask = torch.tensor([True, False, True, False, False, True])
    filter = BeliefFilter(forgetting=0.3, floor=0.02)
    errors = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)) * 5
    new = filter.update(log_belief, errors, mask)
    assert torch.equal(new[~mask], log_belief[~mask])
    assert torch.equal(new[mask], filter.update(log_belief, errors)[mask])


def test_update_carries_no_gradient_and_changes_nothing_in_place() -> None:
    log_belief, errors = beliefs.uniform(3, 2).requires_grad_(), torch.ones(2, 3, requires_grad=True)
    before = log_belief.detach().clone()
    assert not BeliefFilter(floor=0.1, forgetting=0.1).update(log_belief, errors).requires_grad
    assert torch.equal(log_belief, before)


# ---------------------------------------------------------------------- where beliefs start


def test_uniform_and_one_hot() -> None:
    assert beliefs.uniform(4).shape == (4,)
    assert beliefs.uniform(4, 3).shape == (3, 4)
    assert beliefs.uniform(4, (2, 3)).shape == (2, 3, 4)
    torch.testing.assert_close(beliefs.uniform(4, 3).exp(), torch.full((3, 4), 0.25))
    hot = beliefs.one_hot(torch.tensor([2, 0]), 3)
    torch.testing.assert_close(hot.exp(), torch.eye(3)[[2, 0]])
    assert bool(hot.isfinite().all())
    assert on_simplex(hot)


@pytest.mark.parametrize("alpha", [1e-3, 0.01, 0.1, 1.0, 10.0])
def test_dirichlet_has_finite_logs_and_the_right_moments(alpha: float) -> None:
    K, n = 5, 20_000
    drawn = beliefs.sample_dirichlet(alpha, n, K, torch.Generator().manual_seed(3))
    assert drawn.shape == (n, K)
    assert bool(drawn.isfinite().all())
    assert on_simplex(drawn)
    weights = drawn.exp().double().numpy()
    variance = (1 / K) * (1 - 1 / K) / (K * alpha + 1)
    np.testing.assert_allclose(weights.mean(0), 1 / K, atol=5 * math.sqrt(variance / n))
    np.testing.assert_allclose(weights.var(0), variance, rtol=0.06)
    assert np.cov(weights[:, 0], weights[:, 1])[0, 1] == pytest.approx(-variance / (K - 1), rel=0.15)


def test_dirichlet_marginal_is_the_beta_distribution() -> None:
    weights = beliefs.sample_dirichlet(0.5, 5000, 3, torch.Generator().manual_seed(4)).exp()[:, 0]
    assert stats.kstest(weights.numpy(), stats.beta(0.5, 1.0).cdf).pvalue > 0.01


def test_dirichlet_is_the_same_for_the_same_generator_and_leaves_the_global_one_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (beliefs.sample_dirichlet(0.1, 8, 4, torch.Generator().manual_seed(s)) for s in (7, 7, 8))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------------- what a belief says


def test_indices_are_drawn_by_their_chances() -> None:
    chances = torch.tensor([0.5, 0.0, 0.2, 0.3])
    drawn = beliefs.draw_index(chances.expand(20_000, 4), torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]].numpy(), [10_000, 4000, 6000]).pvalue > 0.001


def test_known_values_of_entropy_effective_members_and_confidence() -> None:
    cases = torch.stack([beliefs.uniform(4), beliefs.one_hot(torch.tensor(2), 4), torch.tensor([0.5, 0.5, 0, 0]).log()])
    torch.testing.assert_close(beliefs.entropy(cases), torch.tensor([math.log(4), 0.0, math.log(2)]))
    torch.testing.assert_close(beliefs.effective_members(cases), torch.tensor([4.0, 1.0, 2.0]))
    torch.testing.assert_close(beliefs.confidence(cases), torch.tensor([0.25, 1.0, 0.5]))


@FAST
@given(rows(floats(-1e4, 0)))
def test_effective_members_lie_between_one_and_all_of_them(drawn: list[Tensor]) -> None:
    log_belief = beliefs.normalise(drawn[0])
    effective = beliefs.effective_members(log_belief)
    K = log_belief.shape[1]
    assert bool(((effective >= 1 - 1e-4) & (effective <= K * (1 + 1e-4))).all())
    assert bool((beliefs.confidence(log_belief) >= 1 / K - 1e-5).all())


# ---------------------------------------------------------------------- calibration


def test_calibrate_measures_the_root_mean_square_of_each_member() -> None:
    errors = torch.tensor([[3.0, 1.0], [-4.0, 1.0]])
    filter = BeliefFilter("paper", temperature=2.0, forgetting=0.1, floor=0.05).calibrate(errors)
    torch.testing.assert_close(filter.scale, torch.tensor([math.sqrt(12.5), 1.0]))
    assert (filter.likelihood, filter.temperature, filter.forgetting, filter.floor) == ("calibrated", 2.0, 0.1, 0.05)


def test_calibrate_finds_the_likeliest_scale_of_heavy_tails_and_one_outlier_hardly_moves_it() -> None:
    errors = torch.from_numpy(stats.t(TAIL, scale=[0.5, 4.0]).rvs((4000, 2), random_state=0)).float()
    errors[7, 0] = math.nan
    found = BeliefFilter("student", floor=0.05).calibrate(errors)
    assert (found.likelihood, found.floor) == ("student", 0.05)
    known = [column[~column.isnan()].numpy() for column in errors.T]
    likeliest = [stats.t.fit(column, fdf=TAIL, floc=0)[2] for column in known]
    scale = there(found.scale)
    np.testing.assert_allclose(scale, likeliest, rtol=1e-3)
    np.testing.assert_allclose(torch.nanmean(found.squares(errors), 0).sqrt(), scale, rtol=1e-5)
    shocked = found.calibrate(torch.cat([errors, torch.full((1, 2), 1e6)])).scale
    assert shocked is not None
    np.testing.assert_allclose(shocked, scale, rtol=2e-3)
    assert bool(found.squares(torch.tensor([[0.0, 1e30]])).isfinite().all())


def test_calibrate_ignores_nan_and_gives_an_unmeasured_member_the_mean_square_of_the_others() -> None:
    nan = math.nan
    filter = BeliefFilter().calibrate(torch.tensor([[1.0, nan, nan], [nan, nan, 7.0], [1.0, nan, nan]]))
    torch.testing.assert_close(filter.scale, torch.tensor([1.0, 5.0, 7.0]))


def test_calibrate_gives_a_perfect_member_a_finite_scale() -> None:
    filter = BeliefFilter().calibrate(torch.zeros(3, 2))
    assert filter.scale is not None
    assert bool((filter.scale > 0).all())
    assert on_simplex(filter.update(beliefs.uniform(2, 1), torch.tensor([[1.0, 0.0]])))


@FAST
@given(st.data())
def test_calibrating_makes_the_filter_indifferent_to_the_unit_of_reward(data: st.DataObject) -> None:
    held_out, errors = data.draw(rows(floats(-10, 10), 2))
    assume(bool((held_out.square().mean(0) > 1e-3).all()))
    unit = data.draw(floats(1e-2, 1e3))
    log_belief = beliefs.uniform(errors.shape[1], 3)
    one = BeliefFilter().calibrate(held_out).update(log_belief, errors)
    other = BeliefFilter().calibrate(held_out * unit).update(log_belief, errors * unit)
    torch.testing.assert_close(one.exp(), other.exp(), atol=1e-4, rtol=1e-3)


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"likelihood": "exact"}, "likelihood.*calibrated.*'exact'"),
        ({"temperature": 0.0}, "temperature must be positive, got 0"),
        ({"temperature": math.nan}, "temperature"),
        ({"forgetting": -0.1}, r"forgetting.*\[0, 1\]"),
        ({"forgetting": 1.5}, "forgetting"),
        ({"floor": -0.01}, "floor"),
        ({"floor": 1.0}, "floor"),
        ({"scale": torch.tensor([1.0, 0.0])}, r"scale.*positive.*calibrate\(\)"),
        ({"scale": torch.tensor([1.0, math.nan])}, "scale"),
    ],
)
def test_bad_settings_are_named(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BeliefFilter(**settings_)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"floor 0.3 leaves nothing.*4 members.*floor < 1/4"):
        BeliefFilter(floor=0.3).update(beliefs.uniform(4, 1), torch.zeros(1, 4))
    for alpha in (0.0, -1.0):
        with pytest.raises(ValueError, match="concentration must be positive"):
            beliefs.sample_dirichlet(alpha, 2, 3)
    for errors in (torch.zeros(3), torch.zeros(0, 3)):
        with pytest.raises(ValueError, match=r"TD errors \[n, K\] with n > 0"):
            BeliefFilter().calibrate(errors)
    with pytest.raises(ValueError, match="no held-out TD error is a number"):
        BeliefFilter().calibrate(torch.full((2, 3), math.nan))
