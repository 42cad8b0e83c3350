"""Where a command computes: products by another library are as exact, and the same in every thread."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from apev.agents import DQN, DQNConfig
from apev.data.batch import Layout
from apev.machine import quick_products
from apev.policy import Policy

SWITCH = getattr(torch.backends.mkldnn, "matmul", None)


def test_quick_products_keep_every_bit_of_a_number() -> None:
    quick_products()
    x = torch.rand(3, 64, 64)
    assert torch.equal(torch.bmm(x, torch.eye(64).expand(3, 64, 64)), x)


def test_quick_products_are_as_exact_as_torchs() -> None:
    quick_products()
    a, b = torch.randn(2, 128, 300), torch.randn(2, 300, 128)
    assert (a @ b - a.double() @ b.double()).abs().max() < 1e-4


def test_policies_in_two_threads_agree_to_the_last_bit() -> None:
    agent = DQN(Layout((("observation", 8),), None, None, 4, bare=True), DQNConfig(members=5, hidden=(256, 256)))
    obs = np.random.default_rng(0).normal(size=(512, 8)).astype(np.float32)

    def play(turn: int) -> np.ndarray:
        policy = Policy(agent)
        policy.reset(num_envs=len(obs))
        for _ in range(5):
            policy.act(obs)
            policy.observe(np.ones(len(obs)), obs, np.zeros(len(obs)))
        return policy.belief

    alone = play(0)
    with ThreadPoolExecutor(2) as pool:
        for belief in pool.map(play, range(8)):
            np.testing.assert_array_equal(belief, alone)


@pytest.mark.skipif(SWITCH is None, reason="torch has no switch of oneDNN's precision before 2.9")
@pytest.mark.parametrize("precision", ["tf32", "ieee", "bf16"])
def test_what_the_user_asked_of_torch_is_kept(precision: str) -> None:
    told = f"import torch; s = torch.backends.mkldnn.matmul; s.fp32_precision = '{precision}'; import apev.nn.ensemble"
    done = subprocess.run(
        [sys.executable, "-c", f"{told}; print(s.fp32_precision)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "APEV_ONEDNN": "0"},
    )
    assert done.stdout.strip() == precision
