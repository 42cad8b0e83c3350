"""Does fitted Q evaluation rank policies as the environment does?

    python benchmarks/fqe.py --world customers
    python benchmarks/fqe.py --world pendulum
    python benchmarks/fqe.py --world d4rl --data hopper-medium-replay-v2.npz --env Hopper-v5
    python benchmarks/fqe.py --summary --page docs/offline-choice.md

Trains some policies on one log (algorithms, seeds, numbers of updates), values each from the log alone and plays each in the
environment. OUT/WORLD.json keeps every policy with the values of its resamples and its episodes; OUT/summary.json has
Spearman's rank correlation of each world in OUT, with a bootstrap interval over policies: of the lower ends of the values'
intervals, by which `apev fqe` and `apev tune` rank, and of the values themselves. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy.stats import spearmanr

import apev
from apev.experiments.common.provenance import provenance
from apev.experiments.common.tables import fill_table, markdown_rows
from apev.files import read_json, write_json

QUIET = Console(quiet=True)
DISCRETE = (
    ("bc", 0, 400),
    ("iql", 0, 50),
    ("ape-v", 0, 30),
    ("ape-v", 1, 150),
    ("ape-v", 2, 600),
    ("dqn", 0, 400),
    ("iql", 1, 400),
    ("cql", 0, 50),
    ("cql", 1, 400),
    ("rem", 0, 400),
    ("bc-gru", 0, 200),
    ("ape-v", 3, 5),
    ("iql", 2, 2),
    ("cql", 2, 2),
)
CONTINUOUS = (
    ("ape-v", 0, 200),
    ("ape-v", 1, 1500),
    ("td3-bc", 0, 200),
    ("td3-bc", 1, 1500),
    ("bc", 0, 100),
    ("bc", 1, 1000),
    ("iql", 0, 200),
    ("iql", 1, 1000),
    ("sac", 0, 300),
    ("bc-stacked", 0, 500),
    ("ape-v", 2, 500),
    ("ape-v", 3, 800),
)
WORLDS = {"customers": "apev/Customers-v0", "pendulum": "apev/PendulumFleet-v0", "d4rl": None}
EXAMPLES = {"customers": "customers", "pendulum": "pendulum-fleet"}
LABELS = {"customers": "customers", "pendulum": "pendulums", "d4rl": "hopper, D4RL"}
STATIC = {"d3rlpy's FQE": "d3rlpy", "ours, lower end": "ours_by_lower_end", "ours, value": "ours_by_value"}


def main() -> None:
    """Train, value, play, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=[*WORLDS])
    parser.add_argument("--data", type=Path, default=None, help="the log; needed for d4rl")
    parser.add_argument("--env", default=None, help="the environment, where the log does not name it")
    parser.add_argument("--episodes", type=int, default=100, help="that each policy plays")
    parser.add_argument("--updates", type=int, default=None, help="of each fit; as many as the log asks for unless given")
    parser.add_argument("--policies", type=int, default=None, help="only so many of the list")
    parser.add_argument("--runs", type=Path, default=None, help="keep the trained runs here; a run that is there is taken")
    parser.add_argument("--out", type=Path, default=Path("results/fqe"))
    parser.add_argument("--summary", action="store_true", help="only write summary.json again from what is in OUT")
    parser.add_argument("--page", type=Path, default=None, help="with --summary: write its table into this Markdown page too")
    asked = parser.parse_args()
    if asked.summary:
        told = summarise(asked.out)
        if asked.page is not None:
            fill_table(asked.page, asked.out, markdown(told))
        print(json.dumps(told))
        return
    if asked.world is None:
        parser.error("there is no world. Fix: --world, or --summary.")
    if asked.data is None and asked.world not in EXAMPLES:
        parser.error("--world d4rl needs a log. Fix: --data FILE.")
    log = apev.Dataset.load(asked.data) if asked.data is not None else apev.Dataset.example(EXAMPLES[asked.world])
    torch.set_num_threads(1)
    began = time.time()
    with tempfile.TemporaryDirectory() as nowhere:
        runs = {
            f"{name} {updates}": trained(log, name, seed, updates, Path(asked.runs or nowhere))
            for name, seed, updates in (DISCRETE if log.discrete else CONTINUOUS)[: asked.policies]
        }
        print(f"{len(runs)} policies trained in {time.time() - began:.0f} s", flush=True)
        found = apev.fqe(runs, log, updates=asked.updates, console=QUIET)
        print(f"valued after {time.time() - began:.0f} s\n{found}", flush=True)
        env = asked.env or WORLDS[asked.world]
        returns = {name: returns_of(run, env, asked.episodes) for name, run in runs.items()}
    rows = []
    for estimate in found.rows:
        adapts = estimate.frozen is not None
        for kind, value, coverage in (
            ("adaptive" if adapts else "static", estimate.value, estimate.coverage),
            ("frozen", estimate.frozen, estimate.frozen_coverage),
        ):
            if value is None or coverage is None:
                continue
            own = returns[estimate.name][kind]
            rows.append(
                {
                    "policy": estimate.name,
                    "kind": kind,
                    "fqe": vars(value),
                    "little_known": coverage.little_known,
                    "history": estimate.history,
                    "return": float(np.mean(own)),
                    "returns": own,
                }
            )
    answer = {
        "world": asked.world,
        "log": str(log.source.get("name", asked.world)),
        "rows": rows,
        "fqe": found.as_json(),
        "seconds": round(time.time() - began, 1),
        "meta": provenance(),
    }
    write_json(asked.out / f"{asked.world}.json", answer)
    print(json.dumps(summarise(asked.out)))


KINDS: list[apev.Kinds] = []  # of the log, looked for once, and where a policy is missing


def labels(log: apev.Dataset) -> int | list[int]:
    """What every training would find out by itself: the kind of each context, or how many kinds there are."""
    if not KINDS:
        KINDS.append(apev.kinds(log, console=QUIET))
    (found,) = KINDS
    named = log.contexts is not None and found.count > 1 and (found.kind >= 0).all()
    if not named or len(found.contexts) != int(found.contexts.max()) + 1:
        return found.count
    return [int(kind) for kind in found.kind]


def trained(log: apev.Dataset, name: str, seed: int, updates: int, folder: Path) -> Path:
    """The run of one policy."""
    out = folder / f"{name}-{seed}-{updates}"
    if not (out / "policy" / "policy.json").exists():
        apev.train(log, name, seed=seed, updates=updates, out=out, resume=True, kinds=labels(log), console=QUIET)
    return out


def returns_of(run: Path, env: str | None, episodes: int) -> dict[str, list[float]]:
    """What each episode returns, by what the belief does; kept beside the run."""
    asked, path = {"env": env, "episodes": episodes}, run / "returns.json"
    if path.exists() and (kept := read_json(path))["asked"] == asked:
        return {kind: [float(value) for value in values] for kind, values in kept["returns"].items()}
    played = apev.evaluate(run, env, episodes, adapt=["bayes", "uniform"], console=QUIET)
    names = {"policy": "static", "adaptive": "adaptive", "average": "frozen"}
    found: dict[str, list[float]] = {}
    for record in played.records:
        found.setdefault(names[record["policy"]], []).append(float(record["return"]))
    write_json(path, {"asked": asked, "returns": found})
    return found


def summarise(out: Path) -> dict[str, Any]:
    """Write and return what all worlds in a folder say."""
    worlds = {}
    for path in sorted(out.glob("*.json")):
        if path.name == "summary.json":
            continue
        found = read_json(path)
        true = np.array([row["return"] for row in found["rows"]])
        worlds[found["world"]] = {
            "log": found["log"],
            "policies": len(true),
            "updates": found["fqe"]["updates"],
            "by_lower_end": ranking(found["rows"], "low"),
            "by_value": ranking(found["rows"], "value"),
            "within_interval": within(found) if found["fqe"]["gamma"] == 1 else None,
            "d3rlpy": d3rlpy(found, out),
            "best_return": float(true.max()),
            "median_return": float(np.median(true)),
            "seconds": found["seconds"],
            "meta": found["meta"],
        }
    answer = {"benchmark": "fqe", "worlds": worlds}
    write_json(out / "summary.json", answer)
    return answer


def markdown(found: dict[str, Any]) -> str:
    """The table for a page, from summary.json."""
    heading = ["log", "policies", "ranked by", "Spearman", "95% interval", "pairs ordered right", "first one returns"]
    rows = [[*heading, "best", "median"]]
    for name, world in found["worlds"].items():
        ends = [f"{world[key]:,.1f}" for key in ("best_return", "median_return")]
        rows.append([LABELS[name], str(world["policies"]), "lower end", *cells(world["by_lower_end"]), *ends])
        rows.append(["", "", "value", *cells(world["by_value"]), "", ""])
        beside = world["d3rlpy"] or {}
        for label, key in STATIC.items() if beside else ():
            count = beside[key]["spearman"]["policies"] if key == "d3rlpy" and beside[key]["spearman"] else ""
            rows.append(["", f"{count} static" if count else "", label, *cells(beside[key]), "", ""])
    return markdown_rows(rows)


def cells(ranked: dict[str, Any]) -> list[str]:
    """Of one way to rank."""
    told, pairs = ranked["spearman"], ranked["ordered"]
    correlation = [f"{told['value']:.2f}", f"{told['low']:.2f} to {told['high']:.2f}"] if told else ["", ""]
    return [*correlation, f"{pairs['right']:.0%} of {pairs['pairs']}", f"{ranked['picked_return']:,.1f}"]


def ranking(rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """How well an end of the values' intervals, or the values, order the policies, and which one comes first."""
    told, true = (np.array(column) for column in ([row["fqe"][key] for row in rows], [row["return"] for row in rows]))
    static, first = np.array([row["kind"] != "adaptive" for row in rows]), int(told.argmax())
    return {
        "spearman": rank_correlation(told, true),
        "spearman_static": rank_correlation(told[static], true[static]),
        "ordered": ordered(told, rows),
        "picked": f"{rows[first]['policy']}, frozen" if rows[first]["kind"] == "frozen" else rows[first]["policy"],
        "picked_return": float(true[first]),
    }


def ordered(told: np.ndarray, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the pairs of policies that surely differ in the environment (by two standard errors), the share ordered right."""
    mean = np.array([np.mean(row["returns"]) for row in rows])
    error = np.array([np.var(row["returns"], ddof=1) / len(row["returns"]) for row in rows])
    apart = mean[:, None] - mean > 2 * np.sqrt(error[:, None] + error)
    right = apart & (told[:, None] > told)
    return {"pairs": int(apart.sum()), "right": float(right.sum() / max(1, apart.sum()))}


def within(found: dict[str, Any]) -> float:
    """Share of the policies whose mean return lies in the interval of their value, which are returns too."""
    return float(np.mean([row["fqe"]["low"] <= row["return"] <= row["fqe"]["high"] for row in found["rows"]]))


def d3rlpy(found: dict[str, Any], out: Path) -> dict[str, Any] | None:
    """What `fqe_d3rlpy.py` found of the policies that d3rlpy can value, beside ours of the same ones."""
    path = out / "d3rlpy" / f"{found['world']}.json"
    if not path.exists():
        return None
    theirs = read_json(path)
    rows = [row for row in found["rows"] if row["kind"] == "static" and row["policy"] in theirs["values"]]
    beside = [row | {"fqe": row["fqe"] | {"theirs": theirs["values"][row["policy"]]}} for row in rows]
    keys = ("spearman", "ordered", "picked", "picked_return")
    return {"steps": theirs["steps"]} | {
        name: {key: ranking(beside, column)[key] for key in keys}
        for name, column in (("d3rlpy", "theirs"), ("ours_by_lower_end", "low"), ("ours_by_value", "value"))
    }


def rank_correlation(a: np.ndarray, b: np.ndarray, draws: int = 2000) -> dict[str, Any] | None:
    """Spearman's, with a 95% bootstrap interval over policies; None of fewer than four."""
    if len(a) < 4:
        return None
    rng, found = np.random.default_rng(0), []
    for _ in range(draws):
        rows = rng.integers(len(a), size=len(a))
        if len(np.unique(a[rows])) > 1 and len(np.unique(b[rows])) > 1:
            found.append(float(spearmanr(a[rows], b[rows]).statistic))
    low, high = np.quantile(found, [0.025, 0.975])
    return {"value": float(spearmanr(a, b).statistic), "low": float(low), "high": float(high), "policies": len(a)}


if __name__ == "__main__":
    main()
