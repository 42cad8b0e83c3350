"""Worlds to learn in. Importing this package registers `apev/LockedDoors-v0` with Gymnasium."""

from gymnasium.envs.registration import register, registry

from apev.envs.door_walkers import OraclePolicy, collect
from apev.envs.images import CLASSES, ImageSet, load_images
from apev.envs.locked_doors import BatchedLockedDoors, LockedDoorsEnv, Room

__all__ = [
    "CLASSES",
    "BatchedLockedDoors",
    "ImageSet",
    "LockedDoorsEnv",
    "OraclePolicy",
    "Room",
    "collect",
    "load_images",
]

if "apev/LockedDoors-v0" not in registry:
    register(id="apev/LockedDoors-v0", entry_point="apev.envs.locked_doors:LockedDoorsEnv")
