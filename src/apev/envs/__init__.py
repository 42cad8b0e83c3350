"""Worlds to learn in. Importing this package registers `apev/LockedDoors-v0` and `apev/Maze-v0` with Gymnasium."""

from gymnasium.envs.registration import register, registry

from apev.envs.door_walkers import OraclePolicy, collect
from apev.envs.images import CLASSES, ImageSet, load_images
from apev.envs.locked_doors import BatchedLockedDoors, LockedDoorsEnv, Room
from apev.envs.maze import Maze, make_maze
from apev.envs.maze_env import BatchedMaze, MazeEnv

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
    register(id="apev/LockedDoors-v0", entry_point="apev.envs.locked_doors:LockedDoorsEnv")
if "apev/Maze-v0" not in registry:
    register(id="apev/Maze-v0", entry_point="apev.envs.maze_env:MazeEnv")
