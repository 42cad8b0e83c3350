import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RELIABILITY = Path(__file__).parents[1] / "reliability"
HARMLESS = ("code_run", "outside_write", "outside_read", "crash", "hang", "memory", "raw_error")

# One child for each end a try can have; `use` stands for the commands of apev.
ENDS = """
import json, os, shutil, signal, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
import numpy as np
import damage, fuzz, tries
from common import scratch
from samples import Sample

def act(name, folder, given):
    if name == "raw_error":
        {}["column"]
    elif name == "library_error":
        int("seven")
    elif name == "escape":
        print("\\x1b[31m")
    elif name == "our_error":
        raise ValueError("column: is bad. Fix: mend it.")
    elif name == "missing":
        open(folder / "nowhere")
    elif name == "code_run":
        (folder / "canary").touch()
    elif name == "outside_read":
        (folder / "outside" / "secret").read_text()
    elif name == "outside_write":
        (folder / "outside" / "secret").write_text("x")
    elif name == "memory":
        np.ones(1 << 33)
    elif name == "used_memory":
        np.ones(55_000_000)  # below the limit of 0.5 GB, above three quarters of it
    elif name == "hang":
        time.sleep(60)
    elif name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)

NAMES = sys.argv[2].split(",")

class Pretended(tries.Bench):
    def __init__(self, root):
        self.root, self.store = root, root / "store"
        (root / "log.npz").write_text("log")
        self.samples, self.whole = [Sample("log", "npz", root / "log.npz")], {"log": ["same"]}

    def use(self, sample, folder, given, every, watch=None):
        name = NAMES[int(folder.name.rpartition("-")[2])]
        step = tries.through_main(name, lambda: act(name, folder, given), folder / "said.txt")
        return [step], ["other" if name == "loads_other" else "same"]

def prepare(rng, given, outside):
    (outside.folder / "secret").write_text("secret")
    return "nothing"

damage.choose = lambda rng, samples: (samples[0], "bytes", prepare)
root = scratch()
try:
    options = fuzz.Options(tries=len(NAMES), jobs=2, seconds=8, memory_gb=0.5)
    answer = fuzz.fuzz(options, Pretended(root), show=False)
finally:
    shutil.rmtree(root)
print(json.dumps(answer))
"""


def run(name: str, *words: str, timeout: int = 300) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, str(RELIABILITY / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_damaged_file_does_no_harm(tmp_path: Path) -> None:
    out = tmp_path / "fuzz.json"
    code, counts, said = run("fuzz.py", "--tries", "250", "--seed", "17", "--out", str(out))
    assert {name: counts[name] for name in HARMLESS} == dict.fromkeys(HARMLESS, 0), said
    assert code == 0
    assert counts["tries"] == 250 == sum(counts[name] for name in counts if name not in ("tries", "seed"))
    assert counts["our_error"] > 50
    assert counts["loads_equal"] > 10
    kept = json.loads(out.read_text())
    assert kept["unnoticed_damage"] == 0, kept["unnoticed"]
    assert kept["meta"]["command"].startswith("python reliability/fuzz.py")


def test_the_fuzzer_notices_every_end(tmp_path: Path) -> None:
    expected = {
        "loads_equal": "loads_equal",
        "loads_other": "loads_other",
        "raw_error": "raw_error",
        "library_error": "raw_error",
        "escape": "raw_error",
        "our_error": "our_error",
        "missing": "our_error",
        "code_run": "code_run",
        "outside_read": "outside_read",
        "outside_write": "outside_write",
        "memory": "memory",
        "used_memory": "memory",
        "hang": "hang",
        "crash": "crash",
    }
    command = [sys.executable, "-c", ENDS, str(RELIABILITY), ",".join(expected)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    found = {name: answer[name] for name in set(expected.values())}
    assert found == {name: list(expected.values()).count(name) for name in set(expected.values())}
    raw = {kind["error"]: kind for kind in answer["bad"] if kind["how"] == "raw_error"}
    assert set(raw) == {"KeyError", "ValueError", "TerminalEscape"}
    assert raw["KeyError"]["message"] == "'column'"
    assert raw["KeyError"]["repeat"] == "python reliability/fuzz.py --only 2 --seed 0"
    assert answer["harness"] == 0


def test_a_try_is_decided_by_its_seed_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RELIABILITY))
    import damage
    import samples
    from damage.outside import Outside, files_of, make_outside

    made = []
    kinds: dict[str, samples.Kind] = {"log.npz": "npz", "log.apev": "folder", "log.hdf5": "hdf5"}
    for name, kind in kinds.items():
        samples.discrete().save(tmp_path / name)
        made.append(samples.Sample(name, kind, tmp_path / name))
    make_outside(tmp_path / "store", made)

    def once(seed: int, number: int) -> tuple[str, str, dict[str, bytes]]:
        rng = random.Random(f"{seed}:{number}")
        sample, family, way = damage.choose(rng, made)
        place = tmp_path / "try"
        shutil.rmtree(place, ignore_errors=True)
        (place / "outside").mkdir(parents=True)
        given = place / sample.name
        shutil.copytree(sample.path, given) if sample.path.is_dir() else shutil.copy(sample.path, given)
        told = way(rng, given, Outside(tmp_path / "store", place / "outside", place / "canary"))
        there = {str(p): p.read_bytes() for p in files_of(given)} if given.exists() and not given.is_fifo() else {}
        return f"{sample.name} {family} {way.__name__}", told, there

    tries = [once(1, number) for number in range(40)]
    assert tries == [once(1, number) for number in range(40)]
    assert len({kind for kind, _, _ in tries}) > 15
    assert tries != [once(2, number) for number in range(40)]


def test_a_policy_keeps_its_belief_whatever_it_is_told(tmp_path: Path) -> None:
    code, counts, said = run("soak.py", "--environments", "50", "--steps", "120", "--out", str(tmp_path / "soak.json"))
    assert counts["broken"] == 0, said
    assert counts["accepted_invalid"] == 0
    assert counts["refused"] > 50
    assert counts["acts"] == 360
    assert code == 0 or not counts["memory_flat"]  # so short a run may still be warming up


def test_the_summary_holds_what_the_three_found(tmp_path: Path) -> None:
    meta = {"command": "python reliability/x.py", "commit": "0123"}
    ends = [*HARMLESS, "our_error", "loads_other", "loads_equal"]
    fuzz = {"tries": 7, "seed": 0, "limits": {}, "unnoticed_damage": 0} | dict.fromkeys(ends, 0) | {"our_error": 7}
    chaos = {"tries": 3, "lost": 0, "bit_equal": True, "lost_runs": []}
    soak: dict[str, Any] = dict.fromkeys(
        ("environments", "steps", "seed", "acts", "accepted", "refused", "accepted_invalid", "resets"), 1
    )
    soak |= {"extreme_accepted": 0, "extreme_refused": 0, "policies": [], "broken": 0, "memory_flat": True, "growth_mb": {}}
    for name, part in (("fuzz", fuzz), ("chaos", chaos), ("soak", soak)):
        (tmp_path / f"{name}.json").write_text(json.dumps(part | {"meta": meta}))
    code, told, _ = run("summary.py", "--folder", str(tmp_path))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert code == 0
    assert told["fuzz"]["tries"] == summary["fuzz"]["tries"] == 7
    assert summary["kills"] == {"tries": 3, "lost": 0, "bit_equal": True}
    assert summary["made_by"]["chaos"] == meta
    (tmp_path / "chaos.json").write_text(json.dumps(chaos | {"lost": 1, "meta": meta}))
    assert run("summary.py", "--folder", str(tmp_path))[0] == 1
    (tmp_path / "chaos.json").unlink()
    code, told, said = run("summary.py", "--folder", str(tmp_path))
    assert (code, list(told)) == (0, ["fuzz", "soak"])
    assert "chaos.json is not there yet" in said


@pytest.mark.slow
def test_a_training_survives_whatever_ends_it(tmp_path: Path) -> None:
    words = ("--kills", "60", "--side", "20", "--out", str(tmp_path / "chaos.json"))
    code, counts, said = run("chaos.py", *words, timeout=1800)
    assert counts["lost"] == 0, said
    assert counts["bit_equal"]
    assert counts["tries"] >= 60
    assert counts["while_writing"] >= 20
    assert code == 0
