"""Files that take long begin first, so that no worker is left alone with one at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

LONG = (
    "export",
    "benchmarks",
    "readme",
    "cells",
    "worlds",
    "d4rl",
    "experiments",
    "data_spread",
    "packaging",
    "sac",
    "fqe",
    "examples",
    "loop",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files; the tests of each stay as they are."""
    rank = {f"test_{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(Path(item.path).name, len(rank)))
