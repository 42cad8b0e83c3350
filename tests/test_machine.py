"""Where a command computes: products by another library are as exact, and nobody's settings are touched."""

from __future__ import annotations

import pytest
import torch

from apev.machine import quick_products

SWITCH = getattr(torch.backends.mkldnn, "matmul", None)


def test_quick_products_keep_every_bit_of_a_number() -> None:
    x = torch.rand(3, 64, 64)
    with quick_products():
        assert torch.equal(torch.bmm(x, torch.eye(64).expand(3, 64, 64)), x)


def test_quick_products_are_as_exact_as_torchs() -> None:
    a, b = torch.randn(2, 128, 300), torch.randn(2, 300, 128)
    right = a.double() @ b.double()
    with quick_products():
        assert (a @ b - right).abs().max() < 1e-4


@pytest.mark.skipif(SWITCH is None, reason="torch has no switch of oneDNN's precision before 2.9")
@pytest.mark.parametrize("precision", ["none", "ieee", "bf16"])
def test_what_the_user_asked_of_torch_is_kept(precision: str) -> None:
    assert SWITCH is not None
    before, SWITCH.fp32_precision = SWITCH.fp32_precision, precision
    try:
        with pytest.raises(KeyboardInterrupt), quick_products():
            raise KeyboardInterrupt
        assert SWITCH.fp32_precision == precision
    finally:
        SWITCH.fp32_precision = before
    assert torch.get_float32_matmul_precision() == "highest"
