"""A policy that adapts, without torch and apev: numpy, onnxruntime and the files that `apev export` wrote.

apev export runs/mine --out files
python examples/deploy_onnx.py files CartPole-v1
"""

import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime


def main(folder: str, env_id: str, seed: int = 0) -> tuple[float, np.ndarray]:
    """One episode: its return, and what the policy believes at its end."""
    about = json.loads(Path(folder, "about.json").read_text())
    act, observe = (onnxruntime.InferenceSession(str(Path(folder, f"{name}.onnx"))) for name in ("act", "observe"))
    rng = np.random.default_rng(seed)
    state = {"belief": np.array([about["start_belief"]], np.float32)}
    if about["start_history"] is not None:
        state["history"] = np.array([about["start_history"]], np.float32)
    env = gymnasium.make(env_id)
    obs, over, total = named("obs", env.reset(seed=seed)[0]), False, 0.0
    while not over:
        action = act.run(None, obs | state)[0]
        seen, reward, terminated, truncated, _ = env.step(action[0])
        step = {"action": action, "reward": np.array([reward], np.float32), "terminated": np.array([terminated])}
        drawn = {"standard normal": rng.standard_normal, "standard exponential": rng.standard_exponential}
        noise = {each["name"]: np.float32(drawn[each["distribution"]]((1, *each["shape"]))) for each in about["noise"]}
        after = observe.run(None, obs | named("next_obs", seen) | step | state | noise)
        state = dict(zip(state, after, strict=True))  # belief and history, in the order in which they went in
        obs, over, total = named("obs", seen), terminated or truncated, total + float(reward)
    belief = np.exp(state["belief"][0])
    print(f"return {total:g}, belief {np.round(belief, 3)}")
    return total, belief


def named(prefix: str, obs: np.ndarray | dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """An observation as the files call it, as a batch of one; pictures stay uint8."""
    parts = {f"{prefix}_{key}": part for key, part in obs.items()} if isinstance(obs, dict) else {prefix: obs}
    return {name: np.asarray(part if part.dtype == np.uint8 else np.float32(part))[None] for name, part in parts.items()}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
