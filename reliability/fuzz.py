"""Can a file do harm? python reliability/fuzz.py --tries 10000 --seed 0 --out results/reliability/fuzz.json

Valid logs, policies, runs and results are damaged in every way we can think of (`damage/`), and each damaged copy is used as a
user would use it (`tries.py`), in a child of its own with limits on memory and time. A try is decided by the seed and its
number alone: `--only N` repeats one in the foreground, with tracebacks, and keeps its files.

The last line is JSON: how many tries ended how. The exit code is 1 if any of them did harm or met an error that is not ours.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import random
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import damage
import torch
import tyro
from common import bar, keep, scratch, tell
from forks import Ended, Limits, run_all
from tries import BAD, CLASSES, Bench, Step, TooLate, Try

SHOWN = 200  # kinds of bad ends in the file


@dataclass(frozen=True)
class Options:
    """Damage files in every way and see what becomes of who loads them."""

    tries: int = 1000
    """How many."""
    seed: int = 0
    """Decides every try, together with its number."""
    first: int = 0
    """The first number."""
    jobs: int = 2
    """Children at a time."""
    seconds: float = 20.0
    """Limit of a try."""
    memory_gb: float = 2.0
    """Limit of a try, beyond what the parent has."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write all numbers to this JSON file."""
    only: int | None = None
    """Repeat this try alone, with tracebacks."""
    keep: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/fuzz")
    """Where --only leaves the files."""


def limits_of(options: Options) -> Limits:
    """The limits of a try."""
    memory = int(options.memory_gb * (1 << 30))
    return Limits(memory=memory, resident=memory * 3 // 4, seconds=options.seconds)


def settle(bench: Bench, seed: int, index: int, ended: Ended, limits: Limits) -> Try:
    """The try a child was, whether or not it lived to tell."""
    answer = ended.answer or {}
    if ended.how == "done" and "harness" not in answer:
        found = Try(**(answer | {"steps": [Step(**step) for step in answer["steps"]]}))
        if ended.grown > limits.resident and CLASSES.index(found.how) > CLASSES.index("memory"):
            found.how = "memory"
            found.steps = [Step("all", "memory", "Resident", f"{ended.grown >> 20} MB")]
        return found
    sample, family, way = damage.choose(random.Random(f"{seed}:{index}"), bench.samples)
    folder = bench.root / f"try-{seed}-{index}"
    how = "code_run" if (folder / "canary").exists() else "harness" if answer else ended.how
    number = signal.Signals(ended.signal).name if ended.signal else "no answer"
    detail, doing = (path.read_text() if (path := folder / name).exists() else "" for name in ("detail.txt", "step.txt"))
    step = Step(doing, how, number, answer.get("harness", f"after {ended.seconds:.1f} s"))
    return Try(index, sample.name, sample.kind, family, way.__name__, detail, how, [step])


def fuzz(options: Options, bench: Bench, show: bool = True) -> dict[str, Any]:
    """Run the tries; counts, a table by kind and damage, and every kind of bad end with one try to repeat."""
    limits = limits_of(options)
    counts: Counter[str] = Counter(dict.fromkeys((*CLASSES, "harness"), 0))  # harness: the fuzzer itself failed
    table: dict[str, Counter[str]] = {}
    unnoticed: list[Try] = []
    kinds: dict[tuple[str, ...], dict[str, Any]] = {}
    gc.collect()
    gc.freeze()  # or every collection in a child would copy the parent's memory

    def work(index: int) -> dict[str, Any]:
        return bench.run(options.seed, index, limits).to_json()

    began = time.monotonic()
    with bar(show) as progress:
        task = progress.add_task("fuzz", total=options.tries)
        for index, ended in run_all(work, range(options.first, options.first + options.tries), options.jobs, limits):
            found = settle(bench, options.seed, index, ended, limits)
            shutil.rmtree(bench.root / f"try-{options.seed}-{index}", ignore_errors=True)
            counts[found.how] += 1
            table.setdefault(f"{found.kind} {found.family}", Counter())[found.how] += 1
            if found.how == "loads_other" and found.family == "bytes" and found.kind in ("folder", "policy", "run"):
                unnoticed.append(found)  # these carry checksums
            if found.how not in CLASSES or found.how in BAD:
                note(kinds, found, options.seed)
            bad = {name: counts[name] for name in BAD if counts[name]}
            progress.update(task, advance=1, description=f"fuzz {bad or ''}")
            if progress.tasks[0].completed % 10 == 0:
                progress.refresh()
    seconds = time.monotonic() - began
    worst = sorted(kinds.values(), key=lambda kind: -kind["tries"])
    return {
        "tries": options.tries,
        "seed": options.seed,
        **counts,
        "unnoticed_damage": len(unnoticed),  # of bytes in files that carry a checksum
        "tries_per_second": round(options.tries / seconds, 1),
        "limits": {"seconds": options.seconds, "memory_gb": options.memory_gb},
        "by_kind": {name: dict(table[name]) for name in sorted(table)},
        "bad_kinds": len(worst),
        "bad": worst[:SHOWN],
        "unnoticed": [{"try": t.index, "sample": t.sample, "damage": t.damage, "detail": t.detail} for t in unnoticed[:20]],
    }


def note(kinds: dict[tuple[str, ...], dict[str, Any]], found: Try, seed: int) -> None:
    """Count a bad end under its kind; the first of a kind is kept whole."""
    bad = next((step for step in found.steps if step.how == found.how), found.steps[-1])
    key = (found.how, found.kind, bad.name, bad.error, bad.place)
    if key in kinds:
        kinds[key]["tries"] += 1
        return
    kinds[key] = {
        "how": found.how,
        "tries": 1,
        "sample": found.sample,
        "damage": f"{found.family}: {found.damage}",
        "detail": found.detail,
        "command": bad.name,
        "error": bad.error,
        "message": bad.message[-1000:] if found.how == "harness" else bad.message[:300],
        "place": bad.place,
        "repeat": f"python reliability/fuzz.py --only {found.index} --seed {seed}",
    }


def repeat(options: Options, bench: Bench) -> Try:
    """One try in this very process, told step by step."""
    assert options.only is not None
    folder = (options.keep / f"{options.seed}-{options.only}").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("in", "out", "outside"):
        (folder / part).mkdir(parents=True)
    limits = limits_of(options)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(int(options.seconds) + 1)
    faulthandler.dump_traceback_later(options.seconds + 5, exit=True)  # for a library that never comes back to Python
    found = bench.run(options.seed, options.only, limits, folder)
    signal.alarm(0)
    faulthandler.cancel_dump_traceback_later()
    tell(f"{found.sample}: {found.family}, {found.damage}: {found.detail!r}")
    for step in found.steps:
        tell(f"--- {step.name}: {step.how}\n{step.trace or step.message}")
    tell(f"=> {found.how}; the files are in {options.keep}/{folder.name}")
    return found


def _too_late(number: int, frame: Any) -> None:
    raise TooLate("the try took too long")


def main(options: Options) -> None:
    """Make the samples, run the tries, end with the line of JSON."""
    if min(options.tries, options.jobs) < 1 or options.seconds <= 0 or options.memory_gb <= 0:
        raise SystemExit("counts and limits must be positive. Fix: e.g. --tries 1000 --jobs 2 --seconds 20.")
    torch.set_num_threads(1)  # no threads: a child has only the one that forked
    root = scratch()
    try:
        bench = Bench(root)
        if options.only is not None:
            found = repeat(options, bench)
            print(json.dumps({found.how: 1}))
            return
        answer = fuzz(options, bench)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for kind in answer["bad"]:
        tell(f"{kind['how']} x{kind['tries']}  {kind['sample']}, {kind['damage']} ({kind['detail']!r})")
        tell(f"    {kind['command']}: {kind['error']}: {kind['message']}  [{kind['place']}]\n    {kind['repeat']}")
    keep(options.out, answer, f"python reliability/fuzz.py --tries {options.tries} --seed {options.seed}")
    print(json.dumps({"tries": answer["tries"], **{name: answer[name] for name in CLASSES}, "seed": options.seed}))
    if any(answer[name] for name in (*BAD, "harness")):
        sys.exit(1)


if __name__ == "__main__":
    main(tyro.cli(Options, description=Options.__doc__))
