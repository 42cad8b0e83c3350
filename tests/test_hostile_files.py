"""A file is only data: nothing that is loaded runs code, reads elsewhere, or takes more memory than there is."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import apev
from apev import files
from apev.agents import APEV, APEVConfig
from apev.agents.continuous.apev import APEVSAC, APEVSACConfig
from apev.cli import main
from apev.data import DataError, Dataset
from apev.data.batch import Layout
from apev.data.formats import io as formats
from apev.data.source import named_environment, recover_environment
from apev.files import FileError
from apev.policy import Policy

VECTOR = Layout((("observation", 3),), None, None, 2, bare=True)
BOX = Layout((("observation", 3),), None, None, 0, bare=True, action_low=(-1.0,), action_high=(1.0,))


def hostile(canary: Path) -> str:
    """A spec that runs a command when Gymnasium builds it."""
    spec: dict[str, Any] = {"id": "X-v0", "entry_point": "os:system", "kwargs": {"command": f"touch {canary}"}}
    spec |= {"additional_wrappers": [], "vector_entry_point": None, "reward_threshold": None, "nondeterministic": False}
    return json.dumps(spec | {"max_episode_steps": None, "order_enforce": False, "disable_env_checker": True})


def log(rows: int = 60, **source: Any) -> Dataset:
    rng = np.random.default_rng(0)
    ends = np.arange(rows) % 10 == 9
    return Dataset.from_arrays(
        rng.normal(size=(rows, 3)).astype(np.float32),
        rng.integers(2, size=rows),
        rng.normal(size=rows),
        ends,
        np.zeros(rows, dtype=bool),
        num_actions=2,
        source=source,
    )


def refused(*words: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code in (1, 2)


# ---------------------------------------------------------------------- 1: a log runs code


@pytest.mark.parametrize("name", ["log.npz", "log.hdf5", "log.apev"])
def test_a_log_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    canary = tmp_path / "PWNED"
    log(environment_spec=hostile(canary)).save(tmp_path / name)
    main(["data", "verify", str(tmp_path / name)])
    main(["data", "info", str(tmp_path / name)])
    out = tmp_path / "run"
    main(["train", "--data", str(tmp_path / name), "--out", str(out), "--updates", "2", "--set", "hidden=8"])
    refused("evaluate", str(out))
    assert "'X-v0', which is not registered here" in " ".join(capsys.readouterr().err.split())
    assert not canary.exists()


def test_a_module_named_in_an_id_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "canary_module.py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="not registered here"):
        recover_environment({"environment": "canary_module:CartPole-v1"})
    assert not (tmp_path / "PWNED").exists()


def test_of_a_spec_the_id_and_plain_known_settings_count() -> None:
    spec = json.loads(gymnasium.spec("FrozenLake-v1").to_json())
    spec["kwargs"] = {"map_name": "8x8", "desc": ["SG"], "is_slippery": False, "command": "touch x"}
    spec |= {"entry_point": "os:system", "additional_wrappers": [{"name": "x", "entry_point": "os:system", "kwargs": {}}]}
    named = named_environment({"environment_spec": json.dumps(spec)})
    known = gymnasium.spec("FrozenLake-v1").kwargs
    assert named.kwargs == {key: value for key, value in {"map_name": "8x8", "is_slippery": False}.items() if key in known}
    assert all(word in str(named.told()) for word in ("os:system", "additional_wrappers", "command", "desc"))
    env = recover_environment({"environment_spec": json.dumps(spec)})
    assert env.spec is not None
    assert env.spec.id == "FrozenLake-v1"
    path = named_environment({"environment_spec": json.dumps(spec | {"kwargs": {"map_name": "../../etc/passwd"}})})
    assert path.kwargs == {}  # a word names no file


# ---------------------------------------------------------------------- 3, 4, 14: HDF5 that points elsewhere


def d4rl(path: Path, **replaced: Any) -> None:
    columns: dict[str, Any] = {"observations": np.zeros((8, 3), np.float32), "actions": np.zeros((8, 2), np.float32)}
    columns |= {"rewards": np.zeros(8), "terminals": np.zeros(8, bool), "timeouts": np.arange(8) == 7}
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            if name not in replaced:
                file[name] = column
        for name, make in replaced.items():
            make(file, name)


def external(secret: Path) -> Any:
    return lambda file, name: file.create_dataset(name, (8, 3), "f4", external=[(str(secret), 0, 96)])


def virtual(file: h5py.File, name: str) -> None:
    layout = h5py.VirtualLayout((8, 3), "f4")
    layout[:] = h5py.VirtualSource("absent.hdf5", "x", (8, 3))
    file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("kind", ["external", "link", "soft", "virtual"])
def test_hdf5_reads_nothing_outside_the_file(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret! " * 12)
    makers = {
        "external": (external(secret), "another file"),
        "link": (lambda f, n: f.__setitem__(n, h5py.ExternalLink(str(tmp_path / "other.hdf5"), "x")), "link to another file"),
        "soft": (lambda f, n: f.__setitem__(n, h5py.SoftLink("/actions")), "is a link"),
        "virtual": (virtual, "is virtual"),
    }
    make, told = makers[kind]
    for column in ("observations", "contexts"):  # one that is needed, one that would be dropped in silence
        d4rl(tmp_path / "log.hdf5", **{column: make})
        with pytest.raises(DataError, match=told) as caught:
            Dataset.load(tmp_path / "log.hdf5")
        assert caught.value.column == column
        refused("data", "convert", str(tmp_path / "log.hdf5"), str(tmp_path / "out.npz"))
        assert not (tmp_path / "out.npz").exists()


def test_a_group_that_holds_itself_is_refused(tmp_path: Path) -> None:
    def loop(file: h5py.File, name: str) -> None:
        group = file.create_group(name)
        group["again"] = group

    d4rl(tmp_path / "log.hdf5", observations=loop)
    with pytest.raises(DataError, match="groups deep"):
        Dataset.load(tmp_path / "log.hdf5")


def minari_folder(root: Path, *, steps: int = 4, total: int | None = None) -> Path:
    data = root / "hostile-v0" / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for i in range(3):
            group = file.create_group(f"episode_{i}")
            group["observations"] = np.ones((steps + 1, 2), np.float32)
            group["actions"], group["rewards"] = np.zeros((steps, 1), np.float32), np.zeros(steps)
            group["terminations"], group["truncations"] = np.zeros(steps, bool), np.arange(steps) == steps - 1
    space = json.dumps({"type": "Box", "dtype": "float32", "shape": [1], "low": [-1.0], "high": [1.0]})
    meta = {"total_steps": 3 * steps if total is None else total, "total_episodes": 3, "action_space": space}
    (data / "metadata.json").write_text(json.dumps(meta | {"dataset_id": "hostile-v0", "data_format": "hdf5"}))
    return data


def test_an_empty_group_is_not_read_as_whatever_lies_in_memory(tmp_path: Path) -> None:
    data = minari_folder(tmp_path)
    assert len(Dataset.load(tmp_path / "hostile-v0")) == 12
    with h5py.File(data / "main_data.hdf5", "a") as file:
        del file["episode_2/observations"]
        file["episode_2"].create_group("observations")
    with pytest.raises(DataError, match="episode 2 has none"):
        Dataset.load(tmp_path / "hostile-v0")


# ---------------------------------------------------------------------- 6: checksums


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    config = APEVConfig(members=3, hidden=(8,))
    return Policy(APEV(VECTOR, config)).save(tmp_path / "policy")


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 4
    path.write_bytes(raw)


@pytest.mark.parametrize("file", ["weights.safetensors", "policy.json"])
def test_a_flipped_bit_in_a_policy_is_noticed(policy: Path, file: str) -> None:
    whole = (policy / file).read_bytes()
    for place in np.linspace(0, len(whole) - 2, 60).astype(int):
        flip(policy / file, int(place))
        with pytest.raises(FileError):
            apev.load(policy)
        (policy / file).write_bytes(whole)
    apev.load(policy)


def test_a_flipped_bit_in_the_name_of_the_checksum_is_noticed(policy: Path, tmp_path: Path) -> None:
    log().save(tmp_path / "log.apev")
    for path, read in ((policy / "policy.json", apev.load), (tmp_path / "log.apev" / "header.json", Dataset.load)):
        whole = path.read_bytes()
        begin = whole.rindex(b'"sha256"')
        for place in range(begin, begin + len('"sha256"')):
            flip(path, place)
            with pytest.raises(ValueError, match="Fix:"):
                read(path.parent)
            path.write_bytes(whole)
        read(path.parent)


def test_a_flipped_bit_in_a_mapped_log_is_noticed(tmp_path: Path) -> None:
    log().save(tmp_path / "log.apev")
    for file in ("rows.npy", "rewards.npy", "header.json"):
        whole = (tmp_path / "log.apev" / file).read_bytes()
        flip(tmp_path / "log.apev" / file, len(whole) - 5)
        with pytest.raises(ValueError, match="Fix:"):
            Dataset.load(tmp_path / "log.apev")
        (tmp_path / "log.apev" / file).write_bytes(whole)
    same = Dataset.load(tmp_path / "log.apev")
    assert same.digest == log().digest


def test_a_flipped_bit_in_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    out = trained(tmp_path)
    latest = out / "checkpoints" / "latest.safetensors"
    flip(latest, latest.stat().st_size // 2)
    refused(*words(tmp_path), "--resume")


def test_weights_and_bounds_are_finite(policy: Path, tmp_path: Path) -> None:
    weights = load_file(policy / "weights.safetensors")
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, policy / "weights.safetensors")  # as an older version would, without a checksum
    about = {k: v for k, v in json.loads((policy / "policy.json").read_text()).items() if k not in ("sha256", "weights")}
    (policy / "policy.json").write_text(json.dumps(about))
    with pytest.raises(FileError, match="not finite"):
        apev.load(policy)
    box = Policy(APEVSAC(BOX, APEVSACConfig(critics=3, hidden=(8,)))).save(tmp_path / "box")
    about = json.loads((box / "policy.json").read_text())
    about["layout"]["action_high"] = [float("inf")]
    files.write_json(box / "policy.json", {k: v for k, v in about.items() if k != "sha256"}, checksum=True)
    with pytest.raises(FileError, match="bounds of its actions"):
        apev.load(box)


def test_a_policy_of_an_older_version_loads(policy: Path) -> None:
    before = apev.load(policy).agent.policy_state()
    save_file(load_file(policy / "weights.safetensors"), policy / "weights.safetensors")
    about = {k: v for k, v in json.loads((policy / "policy.json").read_text()).items() if k not in ("sha256", "weights")}
    (policy / "policy.json").write_text(json.dumps(about))
    after = apev.load(policy).agent.policy_state()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"hidden": [10**9]}},
        {"config": {"hidden": "wide"}},
        {"config": {"members": -1}},
        {"config": {"gamma": "x"}},
        {"config": {"likelihood": "none"}},
        {"config": {"unheard": 1}},
        {"config": None},
        {"layout": {"vectors": [["observation", 10**9]]}},
        {"layout": {"vectors": 3}},
        {"layout": {"num_actions": -2}},
        {"agent": ["ape-v"]},
        {"agent": "os:system"},
    ],
)
def test_a_description_that_does_not_fit_is_refused_before_memory_is_taken(policy: Path, change: dict[str, Any]) -> None:
    about = json.loads((policy / "policy.json").read_text())
    about.pop("sha256")
    for key, value in change.items():
        about[key] = about[key] | value if isinstance(value, dict) else value
    files.write_json(policy / "policy.json", about, checksum=True)
    with pytest.raises(FileError, match="Fix:"):
        apev.load(policy)


# ---------------------------------------------------------------------- 7, 8: a run


def words(tmp_path: Path) -> list[str]:
    log().save(tmp_path / "log.npz") if not (tmp_path / "log.npz").exists() else None
    made = ["train", "--data", str(tmp_path / "log.npz"), "--out", str(tmp_path / "run"), "--updates", "4"]
    return [*made, "--set", "hidden=8", "--checkpoint-every", "2", "--threads", "1"]


def trained(tmp_path: Path) -> Path:
    main(words(tmp_path))
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "policy/policy.json"])
def test_a_file_cut_short_by_a_kill_does_not_lose_the_run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = trained(tmp_path)
    before = (out / name).read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("apev.files.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        files.write_text(out / name, "half a fi")
    monkeypatch.undo()
    assert (out / name).read_bytes() == before
    assert not list((out / name).parent.glob(".*"))  # nothing is left behind


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    out = trained(tmp_path)
    lines = (out / "metrics.jsonl").read_text()
    (out / "metrics.jsonl").write_text(lines + '{"update": 9, "lo')
    main([*words(tmp_path), "--resume"])
    assert (out / "metrics.jsonl").read_text() == lines


def test_a_run_goes_on_with_its_own_log_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path)
    other = log()
    other.rewards[:] *= 100
    other.save(tmp_path / "log.npz")
    refused(*words(tmp_path), "--resume")
    assert "data_digest" in capsys.readouterr().err
    log().save(tmp_path / "same.apev")
    changed = [str(tmp_path / "log.npz") if w.endswith("same.apev") else w for w in words(tmp_path)]
    log().save(tmp_path / "log.npz")
    main([*changed, "--resume"])


# ---------------------------------------------------------------------- 10, 11: damage and sizes


def test_a_bare_array_and_deep_json_are_told(tmp_path: Path) -> None:
    with open(tmp_path / "bare.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="cannot be read"):
        Dataset.load(tmp_path / "bare.npz")
    log().save(tmp_path / "log.apev")
    (tmp_path / "log.apev" / "header.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="cannot be read"):
        Dataset.load(tmp_path / "log.apev")


def test_objects_in_an_npz_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", observations=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="objects, not numbers"):
        Dataset.load(tmp_path / "log.npz")


@pytest.mark.parametrize("cut", [1, 100, 300, 1000])
def test_truncated_files_are_told(tmp_path: Path, cut: int, policy: Path) -> None:
    for name in ("log.npz", "log.hdf5"):
        log().save(tmp_path / name, compress=True)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: max(10, len(whole) - cut)])
        with pytest.raises(ValueError, match="Fix:"):
            Dataset.load(tmp_path / name)
    whole = (policy / "weights.safetensors").read_bytes()
    (policy / "weights.safetensors").write_bytes(whole[:-cut])
    with pytest.raises(FileError):
        apev.load(policy)


def test_an_action_of_a_billion_is_refused(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"observations": np.zeros((3, 2)), "actions": np.array([0, 10**9, 1]), "rewards": np.zeros(3)}
    columns |= {"terminated": [0, 0, 1], "truncated": [0, 0, 0]}
    with pytest.raises(DataError, match=r"action 1000000000.*np\.unique"):
        Dataset.from_arrays(**columns)
    np.savez(tmp_path / "x.npz", **columns)
    refused("data", "verify", str(tmp_path / "x.npz"))


def test_sizes_are_checked_before_memory_is_asked_for(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", observations=np.zeros((1 << 26, 6), np.uint8))
    with pytest.raises(DataError, match="unpack to"):
        Dataset.load(tmp_path / "bomb.npz")
    d4rl(tmp_path / "empty.hdf5", observations=lambda f, n: f.create_dataset(n, (10**12, 3), "f4", chunks=(1024, 3)))
    with pytest.raises(DataError, match="pieces were written"):
        Dataset.load(tmp_path / "empty.hdf5")
    minari_folder(tmp_path, total=2**40)
    with pytest.raises(ValueError, match="total_steps"):
        Dataset.load(tmp_path / "hostile-v0")


# ---------------------------------------------------------------------- links, pipes, permissions


def test_links_out_of_a_folder_are_refused(tmp_path: Path, policy: Path) -> None:
    log().save(tmp_path / "log.apev")
    for folder, name, load in (
        (tmp_path / "log.apev", "rewards.npy", Dataset.load),
        (policy, "weights.safetensors", apev.load),
    ):
        moved = tmp_path / f"elsewhere-{name}"
        (folder / name).rename(moved)
        (folder / name).symlink_to(moved)
        with pytest.raises(ValueError, match="link out of its folder"):
            load(folder)


def test_a_pipe_is_not_waited_for(tmp_path: Path, policy: Path) -> None:
    for name in ("x.npz", "x.hdf5"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match="no plain file"):
            formats.load(tmp_path / name)
    (policy / "weights.safetensors").unlink()
    os.mkfifo(policy / "weights.safetensors")
    with pytest.raises(FileError, match="no plain file"):
        apev.load(policy)


def test_weights_may_be_read_by_whom_the_rest_may(policy: Path) -> None:
    modes = {stat.S_IMODE(path.stat().st_mode) for path in policy.iterdir()}
    assert modes == {0o666 & ~files.current_umask()}


# ---------------------------------------------------------------------- 12: what is held out


@pytest.mark.parametrize(("contexts", "episodes", "most"), [(3, 12, 0.06), (1, 2, 0.06), (2, 2, 0.06), (40, 40, 0.06)])
def test_no_more_is_held_out_than_the_share_needs(contexts: int, episodes: int, most: float) -> None:
    steps = 100
    rows = episodes * steps
    number = np.repeat(np.arange(episodes), steps)
    data = Dataset.from_arrays(
        np.arange(rows, dtype=np.float32)[:, None],
        np.zeros(rows, np.int64),
        np.zeros(rows),
        np.zeros(rows, bool),
        np.arange(rows) % steps == steps - 1,
        contexts=number % contexts,
        num_actions=2,
    )
    kept, rest = data.split(0.05, seed=0)
    assert 0 < len(rest) / rows <= most
    assert len(kept) + len(rest) == rows
    lost = set(range(contexts)) - set(kept.group.tolist())
    assert len(lost) <= contexts // 20  # where contexts are few, all of them are still there to learn from


def test_cloning_holds_nothing_out_and_the_split_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*words(tmp_path)])
    assert "held out to calibrate the belief: 3 rows (5.0%) from" in " ".join(capsys.readouterr().err.split())
    main([w if w != str(tmp_path / "run") else str(tmp_path / "bc") for w in words(tmp_path)] + ["--agent", "bc"])
    assert "held out" not in capsys.readouterr().err
