"""Every transition an online agent has seen, on disk from the first step: to learn from now, and to be data later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apev.data.batch import Batch, Layout, Observations


class Replay:
    """Columns of fixed length in mapped files, filled one row a step."""

    def __init__(self, folder: Path, capacity: int, layout: Layout, batch_size: int, seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "observations": (np.float32, (layout.vector_dim,)),
            "actions": (np.float32, (layout.action_dim,)),
            "rewards": (np.float32, ()),
            "next_observations": (np.float32, (layout.vector_dim,)),
            "terminated": (np.bool_, ()),
            "truncated": (np.bool_, ()),
        }
        self.columns: dict[str, np.memmap[Any, Any]] = {}
        for name, (dtype, width) in shapes.items():
            path, size = folder / f"{name}.bin", capacity * int(np.prod(width)) * np.dtype(dtype).itemsize
            with path.open("ab") as file:  # a longer run continues a shorter one: what is there stays
                file.truncate(max(size, path.stat().st_size))
            self.columns[name] = np.memmap(path, dtype, mode="r+", shape=(capacity, *width))
        self._tensors = {name: torch.from_numpy(column) for name, column in self.columns.items()}
        self.batch_size = batch_size
        self._count, self.episodes = 0, 0
        self._generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self._count

    def add(self, obs: Any, action: Any, reward: float, after: Any, terminated: bool, truncated: bool) -> None:
        """Write the next row."""
        values = (obs, action, reward, after, terminated, truncated)
        for column, value in zip(self.columns.values(), values, strict=True):
            column[self._count] = value
        self._count += 1
        self.episodes += terminated or truncated

    def sample(self) -> Batch:
        """A batch drawn uniformly from all rows."""
        rows = torch.randint(self._count, (self.batch_size,), generator=self._generator)
        drawn = {name: column.index_select(0, rows) for name, column in self._tensors.items()}
        return Batch(
            obs=Observations(drawn["observations"]),
            action=drawn["actions"],
            reward=drawn["rewards"],
            next_obs=Observations(drawn["next_observations"]),
            terminated=drawn["terminated"].float(),
            group=torch.zeros(self.batch_size, dtype=torch.int64),
        )

    def rows(self, count: int | None = None) -> dict[str, np.ndarray]:
        """Copies of the first `count` rows, all unless given."""
        return {name: np.array(column[: self._count if count is None else count]) for name, column in self.columns.items()}

    def flush(self) -> None:
        """Bring the rows to the disk."""
        for column in self.columns.values():
            column.flush()

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs besides the files."""
        return {"generator": self._generator.get_state(), "size": torch.tensor([self._count, self.episodes])}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where `state_dict` was taken; rows written after it are written anew."""
        self._generator.set_state(state["generator"].clone())
        self._count, self.episodes = (int(n) for n in state["size"])
