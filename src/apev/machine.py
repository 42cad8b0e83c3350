"""Where a command computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where to compute."""

    device: str = "cpu"
    """'cpu', or 'cuda' for a GPU."""
    threads: int | None = None
    """CPU threads; as many as there are cores unless given."""

    def use(self) -> None:
        """Set the number of threads; check the device."""
        if self.threads is not None:
            if self.threads < 1:
                raise ValueError(f"--threads {self.threads}. Fix: at least 1.")
            torch.set_num_threads(self.threads)
        try:
            torch.device(self.device)
        except RuntimeError:
            raise ValueError(f"--device {self.device}: torch knows no such device. Fix: cpu or cuda.") from None
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"--device {self.device}: torch sees no GPU here. Fix: --device cpu, or a CUDA build of torch.")
