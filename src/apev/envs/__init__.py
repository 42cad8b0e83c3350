"""Worlds to learn in. Importing this package registers them with Gymnasium, as `apev/...`."""

from typing import Any

from gymnasium.envs.registration import register, registry

from apev.experiments.locked_doors.images import CLASSES, ImageSet, load_images
from apev.experiments.locked_doors.rooms import BatchedLockedDoors, LockedDoorsEnv, Room
from apev.experiments.locked_doors.walkers import OraclePolicy, collect
from apev.experiments.procgen.maze import Maze, make_maze
from apev.experiments.procgen.world import BatchedMaze, MazeEnv

__all__ = [
    "CLASSES",
    "BatchedLockedDoors",
    "BatchedMaze",
    "ImageSet",
    "LockedDoorsEnv",
    "Maze",
    "MazeEnv",
    "OraclePolicy",
    "Room",
    "collect",
    "load_images",
    "make_maze",
]

# {id: (where it is made, its settings, its time limit)}
_WORLDS: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "LockedDoors-v0": ("apev.experiments.locked_doors.rooms:LockedDoorsEnv", {}, None),
    "Maze-v0": ("apev.experiments.procgen.world:MazeEnv", {}, None),
    "Customers-v0": ("apev.envs.fleet.customers:CustomersEnv", {"kind": None}, None),
    "PendulumFleet-v0": ("apev.envs.fleet.pendulum:PendulumFleetEnv", {"kind": None}, 200),
    "CheetahWiring-v0": (
        "apev.envs.fleet.wiring:CheetahWiringEnv",
        {"kind": None, "rewire_at": None, "kind_after": None},
        1000,
    ),
    "WornJoint-v0": (
        "apev.envs.fleet.worn:WornJointEnv",
        {"kind": None, "robot": "HalfCheetah-v4", "joints": 3, "share": None},
        1000,
    ),
}

for _name, (_entry, _settings, _limit) in _WORLDS.items():
    if f"apev/{_name}" not in registry:
        register(id=f"apev/{_name}", entry_point=_entry, kwargs=_settings, max_episode_steps=_limit)
