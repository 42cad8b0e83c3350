"""Where a command computes."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

TRIES = 9  # of a pass with one thread and with all
WORTH_IT = 0.9  # all threads must take no longer than this share of what one takes


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where to compute."""

    device: str = "cpu"
    """'cpu', or 'cuda' for a GPU."""
    threads: int | None = None
    """CPU threads. Unless given: as many as there are cores, or one where that is faster because the others are busy; a run
    that is resumed takes as many as it began with."""

    def use(self) -> None:
        """Set the number of threads; keep memory; check the device."""
        keep_memory()
        if self.threads is not None:
            if self.threads < 1:
                raise ValueError(f"--threads {self.threads}. Fix: at least 1.")
            torch.set_num_threads(self.threads)
        else:
            choose_threads()
        try:
            torch.device(self.device)
        except RuntimeError:
            raise ValueError(f"--device {self.device}: torch knows no such device. Fix: cpu or cuda.") from None
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"--device {self.device}: torch sees no GPU here. Fix: --device cpu, or a CUDA build of torch.")


@cache
def choose_threads() -> int:
    """As many threads as torch would take, or one where that is faster; tried once, on a network's forward and backward pass.

    Threads that wait for each other run at a quarter of their speed when another process has one of their cores. Whoever set
    OMP_NUM_THREADS has chosen already.
    """
    most = torch.get_num_threads()
    if most == 1 or "OMP_NUM_THREADS" in os.environ:
        return most
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten())
    pictures = torch.ones(32, 3, 32, 32)
    seconds: dict[int, list[float]] = {1: [], most: []}
    for _ in range(TRIES):
        for count, found in seconds.items():
            torch.set_num_threads(count)
            began = time.perf_counter()
            net(pictures).sum().backward()
            found.append(time.perf_counter() - began)
    typical = {count: sorted(found)[TRIES // 2] for count, found in seconds.items()}
    chosen = most if typical[most] < WORTH_IT * typical[1] else 1
    torch.set_num_threads(chosen)
    if chosen == 1:
        print("one thread: the other cores are busy, and waiting for them costs more (--threads)", file=sys.stderr)
    return chosen


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


def quick_products() -> None:
    """Have products of float32 matrices computed by the library that is fastest here, as exactly as ever; asked for once.

    torch gives them to MKL, which is slower than oneDNN on AMD's processors, and asks oneDNN only where lower precision is
    allowed. Without tile registers (AMX) oneDNN has none for float32, and computes in float32 all the same. The switch holds
    for the whole process, so it is set before the first product of ours and then left alone: every thread computes alike. A
    setting of the user's own is kept, and APEV_ONEDNN=0 in the environment keeps torch as it is.
    """
    switch = _onednn()
    if switch is not None and switch.fp32_precision in ("none", "ieee") and os.environ.get("APEV_ONEDNN") != "0":
        switch.fp32_precision = "bf16"


@cache
def _onednn() -> Any:
    """torch's switch of oneDNN's precision where its products are quicker than MKL's and, tried once, exact; else None."""
    switch = getattr(torch.backends.mkldnn, "matmul", None)
    capabilities = getattr(torch.cpu, "get_capabilities", None)  # older versions of torch have neither
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    if switch is None or capabilities is None or not both:
        return None
    processor = capabilities()
    if not processor.get("cpu_name", "").startswith("AMD") or not processor.get("avx512_f") or processor.get("amx_tile"):
        return None
    x, one = torch.linspace(0, 1, 64 * 64).view(64, 64), torch.eye(64)
    before, switch.fp32_precision = switch.fp32_precision, "bf16"
    exact = torch.equal(x @ one, x)
    switch.fp32_precision = before
    return switch if exact else None
