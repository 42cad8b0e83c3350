"""Quick versions against plain ones: every kernel computes what a few lines of ordinary torch do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apev.nn import kernels
from apev.nn.ensemble import EnsembleLinear, EnsembleMLP, NormedMLP
from apev.nn.kernels import Groups


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", "gpu"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On a GPU rows ask all networks, where counting them would make the processor wait."""
    if request.param == "gpu":
        monkeypatch.setattr(kernels, "asks_all", lambda device: True)
    return str(request.param)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("outputs", [1, 2, 20])  # one, few and many columns are multiplied in other ways
def test_a_few_members_at_a_time_give_the_values_and_gradients_of_all_at_once(outputs: int, frozen: bool) -> None:
    net, x = EnsembleMLP(5, 3, (700, 600), outputs), torch.randn(5, 500, 3, requires_grad=True)  # so wide that each goes alone
    wanted = [x] if frozen else [x, *net.parameters()]
    quick, plain = net(x, frozen=frozen), kernels.plain_mlp(x, [*net.parameters()])
    torch.testing.assert_close(quick, plain)
    for mine, expected in zip(*(torch.autograd.grad(q.square().sum(), wanted) for q in (quick, plain)), strict=True):
        torch.testing.assert_close(mine, expected)
    net(x, frozen=frozen).sum().backward()
    assert all((p.grad is None) == frozen for p in net.parameters())
    with torch.no_grad():
        torch.testing.assert_close(net(x), plain)


def test_layer_norm_is_torchs_for_every_member() -> None:
    net, x = NormedMLP(3, 4, (8, 6), 2), torch.randn(3, 50, 4, requires_grad=True)
    for k, found in enumerate(net(x)):
        h = x[k]
        for i, layer in enumerate(net.layers):
            assert isinstance(layer, EnsembleLinear)
            h = h @ layer.weight[k] + layer.bias[k]
            h = h if i == 2 else torch.nn.LayerNorm(h.shape[1], elementwise_affine=False)(h).relu()
        torch.testing.assert_close(found, h)
    net(x, frozen=True).sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("hidden", [(), (8,), (300, 200, 400)])
def test_activations_are_those_of_every_layer(hidden: tuple[int, ...]) -> None:
    net, x = EnsembleMLP(3, 4, hidden, 2), torch.randn(3, 50, 4)
    quick, plain = (compute(x, [*net.parameters()]) for compute in (kernels.activations, kernels.plain_activations))
    assert [h.shape[2] for h in quick] == [*hidden, 2]
    for mine, expected in zip(quick, plain, strict=True):
        torch.testing.assert_close(mine, expected)
        assert not mine.requires_grad


@pytest.mark.parametrize("inner", [1, 2, 40])
@pytest.mark.parametrize("columns", [1, 15, 16, 40])
@pytest.mark.parametrize("into", [False, True])
def test_a_product_is_a_product(inner: int, columns: int, into: bool) -> None:
    a, b = torch.randn(3, 20, inner), torch.randn(3, inner, columns)
    out = torch.empty(3, 20, columns) if into else None
    found = kernels.product(a, b, out=out)
    torch.testing.assert_close(found, a @ b)
    assert out is None or torch.equal(out, found)


@pytest.mark.usefixtures("device")
def test_the_gradient_of_the_chosen_output_is_autograds() -> None:
    net, x = EnsembleMLP(5, 3, (8, 6), 2), torch.randn(40, 3)
    member, output = torch.randint(4, (40,)), torch.randint(2, (40,))  # nobody asks the last one
    parameters = [*net.parameters()]
    given = kernels.activations(x.expand(5, -1, -1), parameters)
    expected = kernels.plain_chosen_gradient(x, parameters, member, output)
    torch.testing.assert_close(kernels.chosen_gradient(given, parameters, member, output), expected)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("kind", [EnsembleMLP, NormedMLP])
def test_the_smallest_of_what_is_asked_has_its_own_gradient_and_trains_nothing(kind: type[EnsembleMLP]) -> None:
    net, x = kind(5, 3, (8, 6), 2), torch.randn(40, 3, requires_grad=True)
    asked = torch.stack([torch.randperm(5)[:3] for _ in range(40)])
    output = torch.randint(2, (40,))
    quick, plain = (answer(net, x, asked, output) for answer in (kernels.smallest, kernels.plain_smallest))
    torch.testing.assert_close(quick, plain)
    assert not torch.allclose(quick, net(x)[asked[:, 0], torch.arange(40), output])
    torch.testing.assert_close(*(torch.autograd.grad(q.square().sum(), x, retain_graph=True)[0] for q in (quick, plain)))
    quick.sum().backward()
    assert all(p.grad is None for p in net.parameters())
    again = torch.cat([asked, asked[:, :1]], 1)  # a member that is asked twice counts once
    torch.testing.assert_close(kernels.smallest(net, x, again, output), quick)


@pytest.mark.parametrize("own", [(), (0,), (2,), (0, 2)])  # which parts are each member's own
def test_parts_are_joined_whether_members_share_them_or_not(own: tuple[int, ...]) -> None:
    widths = (2, 3, 1)
    parts = [torch.randn(*([4] if i in own else []), 6, width) for i, width in enumerate(widths)]
    given = [parts[0], None, *parts[1:]]
    joined = kernels.joined(given, 4)
    assert torch.equal(joined, kernels.plain_joined(given, 4))
    assert joined.shape == (4, 6, 6)
    for k in range(4):
        assert torch.equal(joined[k], torch.cat([part[k] if part.ndim == 3 else part for part in parts], 1))
    net = EnsembleMLP(4, 6, (5,), 2)
    torch.testing.assert_close(net(*given), net(joined))


def test_what_all_members_share_is_not_copied_for_each() -> None:
    shared, own = torch.randn(6, 2), torch.randn(4, 6, 2)
    assert kernels.joined([shared], 4).data_ptr() == shared.data_ptr()
    assert kernels.joined([shared, shared], 4).stride(0) == 0
    assert kernels.joined([None, own], 4) is own


def test_gradients_by_the_input_and_their_own_gradients_are_those_of_differentiating_twice() -> None:
    net, x = EnsembleMLP(3, 5, (8, 6, 7), 2), torch.randn(3, 10, 5)
    quick, plain = net.input_gradients(x, slice(2, 4)), kernels.plain_input_gradients(x, [*net.parameters()], slice(2, 4))
    torch.testing.assert_close(quick, plain)
    weights = [*net.parameters()][::2]
    for mine, expected in zip(*(torch.autograd.grad(g.pow(3).sum(), weights) for g in (quick, plain)), strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("kind", [EnsembleMLP, NormedMLP])
def test_asking_one_member_gives_what_asking_all_gives(kind: type[EnsembleMLP]) -> None:
    net, rows, member = kind(4, 3, (8,), 2), torch.randn(9, 3), torch.tensor([0, 2, 2, 1, 0, 0, 2, 1, 2])
    torch.testing.assert_close(kernels.ask_one(net, rows, member), kernels.plain_ask_one(net, rows, member))
    with torch.no_grad():  # one row goes another way
        torch.testing.assert_close(kernels.ask_one(net, rows[1:2], member[1:2]), net(rows)[2, 1:2])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
@settings(deadline=None, max_examples=60)
def test_groups_ask_every_row_of_its_own_network(index: list[int]) -> None:
    torch.manual_seed(0)
    net, rows = EnsembleMLP(5, 3, (4,), 2), torch.randn(len(index), 3)
    groups = Groups.of(torch.tensor(index), 5)
    everything = net(rows.expand(5, -1, -1))
    torch.testing.assert_close(groups.join(net(groups.split(rows))), everything[torch.tensor(index), torch.arange(len(index))])
    assert groups.slots.shape[1] == max(index.count(g) for g in range(5))


@pytest.mark.parametrize(("members", "hidden", "outputs"), [(2, (256, 256), 6), (9, (256, 256), 3), (3, (16,), 20), (4, (), 2)])
def test_one_row_asks_one_member_and_no_other(members: int, hidden: tuple[int, ...], outputs: int) -> None:
    net = EnsembleMLP(members, 7, hidden, outputs)
    with torch.no_grad():
        for member in range(members):
            row, asked = torch.randn(1, 7), torch.tensor([member])
            torch.testing.assert_close(kernels.ask_one(net, row, asked), kernels.plain_ask_one(net, row, asked))
    poisoned = EnsembleMLP(2, 7, (256, 256), 6)
    for parameter in poisoned.parameters():
        parameter.data[0] = torch.nan
    with torch.no_grad():
        assert bool(kernels.ask_one(poisoned, torch.randn(1, 7), torch.tensor([1])).isfinite().all())
