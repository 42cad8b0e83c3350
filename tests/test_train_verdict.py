"""What `apev train` says at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from apev.cli import main
from apev.envs.fleet.customers import customers_log


def test_training_ends_with_held_out_errors_and_what_to_try_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    customers_log(60, seed=0)[0].save(tmp_path / "log.npz")
    words = ["--data", str(tmp_path / "log.npz"), "--updates", "3", "--kinds", "1"]
    main(["train", *words, "--out", str(tmp_path / "adaptive"), "--members", "2"])
    told = " ".join(capsys.readouterr().out.split())
    assert "TD error:" in told
    assert "on rows held out" in told
    assert "Next:" in told
    assert "apev fqe" in told
    main(["train", *words, "--out", str(tmp_path / "bc"), "--agent", "bc"])
    told = " ".join(capsys.readouterr().out.split())
    assert "TD error" not in told  # nothing was held out
    assert "Next:" in told


def test_fqe_at_the_end_shows_adaptive_frozen_and_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apev.valuation.estimate.LEAST_UPDATES", 16)
    monkeypatch.setattr("apev.valuation.estimate.MOST_UPDATES", 16)
    customers_log(40, seed=0)[0].save(tmp_path / "log.npz")
    words = ["--data", str(tmp_path / "log.npz"), "--updates", "3", "--kinds", "1", "--members", "2", "--fqe"]
    main(["train", *words, "--out", str(tmp_path / "run")])
    told = capsys.readouterr().out
    for name in ("ape-v", "frozen", "the log"):
        assert any(line.strip().startswith(name) for line in told.splitlines())
    assert "dapting" in told
    assert "Next:" in told
