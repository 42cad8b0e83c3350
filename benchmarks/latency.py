"""How long a step takes for one environment:

    python benchmarks/latency.py --peers PYTHON --out results/benchmarks/latency.json --page docs/deploying.md

For each policy, in microseconds: `act` and `observe` in torch (`policy.act`, `policy.observe`) and in onnxruntime with one
thread (the files of `policy.export`), beside `predict` of stable-baselines3 and d3rlpy. Networks of 2 x 256, half-cheetah's
sizes (17 numbers seen, 6 actions), untrained: numbers in a network do not change its time.

    onnx_us            act + observe in onnxruntime
    torch_us           act + observe in torch
    vs_d3rlpy          torch's act for each network that it asks, over d3rlpy's predict, which asks one

PYTHON is that of an environment with both peers, which pin other versions than ours: `pip install torch==2.13.0 d3rlpy==2.8.1
stable-baselines3`. Without it the peers are left out.

Every contestant is a process of its own with one thread, and they take turns, so that a slow minute of the machine hits none of
them alone. A round is the median of its calls; what counts is the median over rounds. Each call is timed by the clock and by
the processor time of its thread (cpu_us), which leaves out waiting for the processor, though not what others do to its caches.
The last line is JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

OBS, ACTIONS, HIDDEN = 17, 6, (256, 256)
ROWS = 256  # observations that are taken in turn
CPU = ", cpu"
PEERS = ("stable-baselines3", "d3rlpy")
Calls = dict[str, Callable[[int], Any]]  # what is timed, by name; asked for step 0, 1, ...


@dataclass(frozen=True)
class Options:
    """Time acting and observing in torch and in onnxruntime, and what the peers' predict takes."""

    rounds: int = 15
    """Rounds of measurements."""
    calls: int = 200
    """Steps in a round."""
    peers: str | None = None
    """The Python of an environment that has stable-baselines3 and d3rlpy."""
    out: Path | None = None
    """Write all numbers to this JSON file."""
    page: Path | None = None
    """Write them as a table into this Markdown page too, between the marks that name OUT."""
    written: bool = False
    """Measure nothing: write the page's table from what is in OUT."""


def observations() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS + 1, OBS)).astype(np.float32)


# ---------------------------------------------------------------------- ours


def agents() -> dict[str, tuple[Callable[[], Any], int]]:
    """(what makes the agent, how many networks it asks to act), by name."""
    from apev.agents import APEV, APEVSAC, BC, DQN, TD3BC, APEVConfig, APEVSACConfig, BCConfig, DQNConfig, TD3BCConfig
    from apev.data.batch import Layout

    few = Layout((("observation", OBS),), None, None, ACTIONS, True)
    box = Layout((("observation", OBS),), None, None, 0, True, (-1.0,) * ACTIONS, (1.0,) * ACTIONS)
    kinds = TD3BCConfig(members=9, careful=2, evidence="model", world_columns=OBS + 1, floor=1e-6, hidden=HIDDEN)
    return {
        "ape-v, 5 members, discrete": (lambda: APEV(few, APEVConfig(members=5, support=0.3, hidden=HIDDEN)), 15),
        "dqn, 5 members, discrete": (lambda: DQN(few, DQNConfig(members=5, hidden=HIDDEN)), 5),
        "ape-v, 2 members, continuous": (lambda: TD3BC(box, TD3BCConfig(members=2, hidden=HIDDEN)), 1),
        "ape-v, 9 members, continuous": (lambda: TD3BC(box, TD3BCConfig(members=9, hidden=HIDDEN)), 1),
        "ape-v, 9 kinds, continuous": (lambda: nine_kinds(box, kinds), 1),  # as `apev train` makes it of a log with nine
        "ape-v on sac, 9 members": (lambda: APEVSAC(box, APEVSACConfig(critics=10, hidden=HIDDEN)), 1),
        "bc, continuous": (lambda: BC(box, BCConfig(hidden=HIDDEN)), 1),
    }


def nine_kinds(layout: Any, config: Any) -> Any:
    """A member for each kind, and models of the kinds that predict every column and the reward."""
    import torch

    from apev.agents import TD3BC

    agent = TD3BC(layout, config)
    assert agent.worlds is not None
    agent.worlds.units.kept.copy_(torch.arange(OBS + 1))
    return agent


def in_torch(name: str) -> Calls:
    import torch

    from apev.policy import Policy

    torch.set_num_threads(1)
    policy, obs = Policy(agents()[name][0]()), observations()
    return {"act": lambda t: policy.act(obs[t]), "observe": lambda t: policy.observe(0.5, obs[t + 1], False)}


def in_onnx(folder: str) -> Calls:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    act, observe = (onnxruntime.InferenceSession(f"{folder}/{name}.onnx", options, providers) for name in ("act", "observe"))
    about = json.loads(Path(folder, "about.json").read_text())
    obs, rng = observations(), np.random.default_rng(0)
    state = {"belief": np.array([about["start_belief"]], np.float32)}
    noise = {each["name"]: rng.standard_normal((1, *each["shape"]), np.float32) for each in about["noise"]}
    step: dict[str, Any] = {"reward": np.array([0.5], np.float32), "terminated": np.array([False]), **noise}

    def acting(t: int) -> None:
        step["action"] = act.run(None, {"obs": obs[t : t + 1], **state})[0]

    def observing(t: int) -> None:
        given = {"obs": obs[t : t + 1], "next_obs": obs[t + 1 : t + 2], **step, **state}
        state["belief"] = observe.run(None, given)[0]

    return {"act": acting, "observe": observing}


# ---------------------------------------------------------------------- the peers


def stable_baselines3(kind: str) -> Calls:
    import gymnasium
    import torch
    from stable_baselines3 import DQN, SAC

    torch.set_num_threads(1)
    seen = gymnasium.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    few, box = gymnasium.spaces.Discrete(ACTIONS), gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)

    class Nowhere(gymnasium.Env[Any, Any]):
        observation_space, action_space = seen, few if kind == "discrete" else box

    how: dict[str, Any] = {"policy_kwargs": {"net_arch": [*HIDDEN]}, "buffer_size": 1, "device": "cpu"}
    model: Any = (DQN if kind == "discrete" else SAC)("MlpPolicy", Nowhere(), **how)
    obs = observations()
    return {"act": lambda t: model.predict(obs[t], deterministic=True)}


def d3rlpy(kind: str) -> Calls:
    import d3rlpy
    import torch

    torch.set_num_threads(1)
    network = d3rlpy.models.encoders.VectorEncoderFactory([*HIDDEN])
    made: Any = d3rlpy.algos.DQNConfig(encoder_factory=network)
    if kind == "continuous":
        made = d3rlpy.algos.TD3PlusBCConfig(actor_encoder_factory=network, critic_encoder_factory=network)
    agent = made.create(device="cpu:0")
    agent.create_impl((OBS,), ACTIONS)
    obs = observations()
    return {"act": lambda t: agent.predict(obs[t : t + 1])}


CONTESTANTS: dict[str, Callable[[str], Calls]] = {
    "torch": in_torch,
    "onnx": in_onnx,
    "stable-baselines3": stable_baselines3,
    "d3rlpy": d3rlpy,
}


def work(kind: str, what: str) -> None:
    """The process of one contestant: for each number of calls read, the median seconds of each thing, by both clocks."""
    sys.stdout = sys.stderr  # what libraries print is not an answer
    calls = CONTESTANTS[kind](what)
    t = 0
    for line in sys.stdin:
        seconds: dict[str, list[float]] = {name + clock: [] for name in calls for clock in ("", CPU)}
        for _ in range(int(line)):
            for name, call in calls.items():
                begin, spent = time.perf_counter(), time.thread_time()
                call(t % ROWS)
                spent = time.thread_time() - spent
                seconds[name].append(time.perf_counter() - begin)
                seconds[name + CPU].append(spent)
            t += 1
        answer = {name: statistics.median(found) for name, found in seconds.items()}
        sys.__stdout__.write(json.dumps(answer) + "\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]


class Worker:
    """A contestant, waiting to be asked."""

    def __init__(self, python: str, kind: str, what: str) -> None:
        words = [python, __file__, "--work", kind, what]
        self.told = tempfile.TemporaryFile("w+")  # noqa: SIM115 (a pipe that nobody reads could fill up)
        how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.told, "text": True}
        self.process = subprocess.Popen(words, env=os.environ | {"OMP_NUM_THREADS": "1"}, **how)
        self.name = f"{kind}: {what}"

    def seconds(self, calls: int) -> dict[str, float]:
        """What a call takes now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{calls}\n")
            self.process.stdin.flush()
            found: dict[str, float] = json.loads(self.process.stdout.readline())
            return found
        except (ValueError, BrokenPipeError):
            self.process.communicate()
            self.told.seek(0)
            raise SystemExit(f"{self.name} failed:\n{self.told.read()}\nFix: install what is missing.") from None

    def stop(self) -> None:
        """Let it end."""
        self.process.communicate()


# ---------------------------------------------------------------------- the whole


def measure(options: Options, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Seconds of each contestant's calls, round by round."""
    from rich.console import Console

    from apev.policy import Policy

    workers: dict[str, Worker] = {}
    for number, (name, (make, _)) in enumerate(agents().items()):
        files = Policy(make()).export(folder / str(number))
        workers[f"torch: {name}"] = Worker(sys.executable, "torch", name)
        workers[f"onnx: {name}"] = Worker(sys.executable, "onnx", str(files))
    for peer in PEERS if options.peers else ():
        for kind in ("discrete", "continuous"):
            workers[f"{peer}: {kind}"] = Worker(str(options.peers), peer, kind)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in workers}
    console = Console(stderr=True)
    try:
        for worker in workers.values():
            worker.seconds(20)  # warm
        for number in range(options.rounds):
            for name, worker in workers.items():
                for part, value in worker.seconds(options.calls).items():
                    found[name].setdefault(part, []).append(value)
            console.print(f"round {number + 1} of {options.rounds}", style="dim")
    finally:
        for worker in workers.values():
            worker.stop()
    return found


def markdown(found: dict[str, Any]) -> str:
    """The table for a page, from what is in OUT."""
    from apev.experiments.common.tables import markdown_rows

    rows = [["policy", "onnxruntime", "torch", "torch's act a network, over d3rlpy's predict"]]
    for name, row in found.items():
        if isinstance(row, dict) and "onnx_us" in row:
            ratio = f"{row['vs_d3rlpy']:.1f}" if "vs_d3rlpy" in row else ""
            rows.append([name, f"{row['onnx_us']:,.0f} µs", f"{row['torch_us']:,.0f} µs", ratio])
    for name, parts in found["microseconds"].items():
        if name.startswith(PEERS):
            rows.append([f"{name.replace(': ', ', ')}, `predict` alone", "", f"{parts['act']:,.0f} µs", ""])
    return markdown_rows(rows)


def into_page(options: Options) -> None:
    """Write the table of OUT into the page."""
    from apev.experiments.common.tables import fill_table
    from apev.files import read_json

    if options.out is None or options.page is None:
        raise SystemExit("a page's table is that of a file. Fix: --out FILE --page PAGE.")
    fill_table(options.page, options.out, markdown(read_json(options.out)))


def main(options: Options) -> None:
    from rich.console import Console
    from rich.table import Table

    from apev.experiments.common.provenance import keep_answer

    if options.written:
        into_page(options)
        return
    if options.rounds < 1 or options.calls < 1:
        raise SystemExit(f"--rounds {options.rounds} --calls {options.calls}. Fix: at least 1 each.")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        rounds = measure(options, Path(folder))
    typical = {name: {part: 1e6 * statistics.median(v) for part, v in found.items()} for name, found in rounds.items()}
    best = {name: {part: 1e6 * min(v) for part, v in found.items()} for name, found in rounds.items()}
    answer: dict[str, Any] = {}
    for name, (_, networks) in agents().items():
        row = {}
        for kind in ("onnx", "torch"):
            for word, found in (("", typical), ("best_", best)):
                parts = found[f"{kind}: {name}"]
                row[f"{kind}_{word}us"] = round(parts["act"] + parts["observe"], 1)
                row[f"{kind}_{word}cpu_us"] = round(parts["act" + CPU] + parts["observe" + CPU], 1)
        peer = "d3rlpy: discrete" if "discrete" in name else "d3rlpy: continuous"
        if peer in rounds:
            ours, theirs = rounds[f"torch: {name}"]["act" + CPU], rounds[peer]["act" + CPU]
            ratio = statistics.median(a / networks / b for a, b in zip(ours, theirs, strict=True))
            row["vs_d3rlpy"] = round(ratio, 3)
        answer[name] = row
    table = Table("microseconds", "act", "observe", "act, cpu", "observe, cpu")
    for name in rounds:
        cells = [typical[name].get(key) for key in ("act", "observe", "act" + CPU, "observe" + CPU)]
        table.add_row(name, *("" if cell is None else f"{cell:.0f}" for cell in cells))
    Console().print(table)
    if options.out is not None:
        numbers = {name: {part: round(value, 1) for part, value in found.items()} for name, found in typical.items()}
        least = {name: {part: round(value, 1) for part, value in found.items()} for name, found in best.items()}
        more = {"microseconds": numbers, "best_microseconds": least, "threads": 1, "seed": 0, "rounds": options.rounds}
        keep_answer(options.out, answer | more | {"calls": options.calls, "load_before": round(load, 2)})
    if options.page is not None:
        into_page(options)
    print(json.dumps(answer))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3])
    else:
        import tyro

        main(tyro.cli(Options, description=__doc__))
