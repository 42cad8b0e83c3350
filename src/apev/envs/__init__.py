"""Worlds to learn in. Importing this package registers `apev/LockedDoors-v0` and `apev/Maze-v0` with Gymnasium."""

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

if "apev/LockedDoors-v0" not in registry:
    register(id="apev/LockedDoors-v0", entry_point="apev.experiments.locked_doors.rooms:LockedDoorsEnv")
if "apev/Maze-v0" not in registry:
    register(id="apev/Maze-v0", entry_point="apev.experiments.procgen.world:MazeEnv")
