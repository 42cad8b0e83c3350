"""A policy that adapts, without torch and apev: numpy, onnxruntime and the files that `apev export` wrote.

apev export runs/mine --out files
python examples/deploy_onnx.py files CartPole-v1

Where the log had action masks, the environment says what is allowed as `info["action_mask"]`, as Gymnasium's do. Elsewhere
change `allowed` to where yours says it.
"""

import json
import sys
from pathlib import Path
from typing import Any

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
    first, info = env.reset(seed=seed)
    obs, mask, over, total = named("obs", first), allowed(about, info), False, 0.0
    while not over:
        action = act.run(None, obs | mask | state)[0]
        seen, reward, terminated, truncated, info = env.step(action[0])
        step = {"action": action, "reward": np.array([reward], np.float32), "terminated": np.array([terminated])}
        drawn = {"standard normal": rng.standard_normal, "standard exponential": rng.standard_exponential}
        noise = {each["name"]: np.float32(drawn[each["distribution"]]((1, *each["shape"]))) for each in about["noise"]}
        mask = allowed(about, info)
        after = named("next_obs", seen) | {f"next_{name}": value for name, value in mask.items()}
        new = observe.run(None, obs | after | step | state | noise)
        state = dict(zip(state, new, strict=True))  # belief and history, in the order in which they went in
        obs, over, total = named("obs", seen), terminated or truncated, total + float(reward)
    belief = np.exp(state["belief"][0])
    print(f"return {total:g}, belief {np.round(belief, 3)}")
    return total, belief


def allowed(about: dict[str, Any], info: dict[str, Any]) -> dict[str, np.ndarray]:
    """The mask of a batch of one, for files that take masks; all False, where nothing is said, allows everything."""
    if "mask" not in about["act"]["inputs"]:
        return {}
    return {"mask": np.array([info.get("action_mask", [False] * about["actions"]["number"])], bool)}


def named(prefix: str, obs: Any) -> dict[str, np.ndarray]:
    """An observation as the files call it, as a batch of one; pictures stay uint8, a single number is a vector of one."""
    parts = {f"{prefix}_{key}": part for key, part in obs.items()} if isinstance(obs, dict) else {prefix: obs}
    arrays = {name: np.asarray(part) for name, part in parts.items()}
    return {name: part[None] if part.dtype == np.uint8 else np.float32(part).reshape(1, -1) for name, part in arrays.items()}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
