"""Where a command computes."""

from __future__ import annotations

import ctypes
import sys
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
        """Set the number of threads; keep memory; check the device."""
        keep_memory()
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


def keep_memory() -> None:
    """Keep memory that is freed for the next update, instead of giving it back to the system and faulting it in again.

    An update of ten critics frees and takes some 40 MB: with glibc's defaults 2,000 page faults, a twelfth of its time.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3
        mallopt(mmap_threshold, 32 << 20)  # the most glibc accepts
        mallopt(trim_threshold, 1 << 30)
