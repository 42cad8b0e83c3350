"""The real Procgen maze behind the interface of our own: `make procgen` installs it.

Procgen's Python package needs a long dead gym, so its library is asked directly, through gym3's `CEnv`. A level is chosen
and the mouse is moved by editing the environment's serialised state, which takes a millisecond where a new environment takes
150. The state is a sequence of little-endian 32-bit numbers and length-prefixed strings; `_read` walks through it.
"""

from __future__ import annotations

import struct
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apev.experiments.procgen.maze import WORLD, Maze, Mode

INSTALL = "make procgen"
LEVELS_AT = 64  # byte of the state where the lowest and highest level number lie
OPEN, CHEESE = (100, 2)  # what a cell of the grid holds; a wall is 51
STATE_BYTES = 2**20
CODES = np.array([1, 3, 5, 7])  # Procgen's numbers for left, down, up, right


def installed() -> bool:
    """Whether Procgen is there."""
    return find_spec("procgen") is not None and find_spec("gym3") is not None


class ProcgenMaze:
    """One real Procgen maze, whose level, mouse position and mouse gaze can be set at will."""

    def __init__(self, mode: Mode = "easy", level: int = 0) -> None:
        if not installed():
            raise ModuleNotFoundError(f"Procgen is not installed. Fix: {INSTALL}, or --renderer simple.")
        from gym3.libenv import CEnv

        package = Path(str(find_spec("procgen").origin)).parent  # type: ignore[union-attr]
        self.mode = mode
        self._env: Any = CEnv(
            lib_dir=str(package / "data" / "prebuilt"),
            num=1,
            options={
                "env_name": "maze",
                "num_levels": 1,
                "start_level": level,
                "num_actions": 15,
                "use_sequential_levels": False,
                "debug_mode": 0,
                "rand_seed": 0,
                "num_threads": 0,
                "render_human": False,
                "resource_root": str(package / "data" / "assets") + "/",
                "center_agent": True,
                "use_generated_assets": False,
                "use_monochrome_assets": False,
                "restrict_themes": False,
                "use_backgrounds": True,
                "paint_vel_info": False,
                "distribution_mode": {"easy": 0, "hard": 1}[mode],
            },
            c_func_defs=[
                "int get_state(libenv_env *, int, char *, int);",
                "void set_state(libenv_env *, int, char *, int);",
            ],
        )
        self._buffer = self._env._ffi.new(f"char[{STATE_BYTES}]")
        self.load(level)

    def load(self, level: int) -> None:
        """Begin level number `level`."""
        state = bytearray(self._state())
        struct.pack_into("<2i", state, LEVELS_AT, level, level + 1)
        self._put(state)
        self._env.act({"action": np.array([-1], dtype=np.int32)})  # ends the running episode: the next is of that level
        self._env.observe()
        self._loaded = bytearray(self._state())
        self._fields = _read(self._loaded)
        if self._fields.level != level:
            raise RuntimeError(f"Procgen began level {self._fields.level} instead of {level}: its state has another layout.")
        self.level = level

    @property
    def maze(self) -> Maze:
        """The layout of the level, read from Procgen."""
        grid = self._fields.grid
        y, x = np.argwhere(grid == CHEESE)[0]
        return Maze(self.level, self.mode, np.isin(grid, (OPEN, CHEESE)), (int(x), int(y)))

    @property
    def position(self) -> tuple[int, int]:
        """(x, y) of the mouse."""
        fields = _read(bytearray(self._state()))
        return int(fields.x), int(fields.y)

    def picture(self) -> NDArray[np.uint8]:
        """What the mouse's player sees now: [64, 64, 3]."""
        _, obs, _ = self._env.observe()
        pixels: NDArray[np.uint8] = obs["rgb"][0].copy()
        return pixels

    def picture_at(self, x: int, y: int, left: bool = True) -> NDArray[np.uint8]:
        """The picture with the mouse in a cell, looking left or right. The mouse stays there."""
        at = self._fields.agent_at
        struct.pack_into("<2f", self._loaded, at, x + 0.5, y + 0.5)
        struct.pack_into("<i", self._loaded, at + 4 * 15, int(not left))  # Procgen's mouse is drawn looking left
        self._put(self._loaded)
        return self.picture()

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool]:
        """(picture, reward, whether the episode ended); after an end the picture is of the next episode."""
        self._env.act({"action": CODES[[action]].astype(np.int32)})
        reward, obs, first = self._env.observe()
        return obs["rgb"][0].copy(), float(reward[0]), bool(first[0])

    def close(self) -> None:
        """Give back the memory."""
        self._env.close()

    def _state(self) -> bytes:
        length = self._env.call_c_func("get_state", 0, self._buffer, STATE_BYTES)
        return bytes(self._env._ffi.buffer(self._buffer, length))

    def _put(self, state: bytearray) -> None:
        self._env.call_c_func("set_state", 0, bytes(state), len(state))


@cache
def shared(mode: Mode) -> ProcgenMaze:
    """One environment a mode for the whole process: making one takes 150 ms, changing its level 2."""
    return ProcgenMaze(mode)


class _Fields:
    """The parts of a state that we use."""

    def __init__(self, level: int, agent_at: int, x: float, y: float, grid: NDArray[np.int32]) -> None:
        self.level, self.agent_at, self.x, self.y, self.grid = level, agent_at, x, y, grid


def _read(state: bytearray) -> _Fields:
    """Find the level's seed, the mouse and the grid."""
    at = 0

    def ints(count: int) -> tuple[int, ...]:
        nonlocal at
        values = struct.unpack_from(f"<{count}i", state, at)
        at += 4 * count
        return values

    def text() -> None:
        nonlocal at
        (length,) = struct.unpack_from("<i", state, at)
        at += 4 + length

    ints(1)  # version
    text()  # "maze"
    ints(12 + 5)  # options; steps of the grid, lowest and highest level, game type and number
    for _ in range(2):  # two random generators
        ints(1)
        text()
    ints(3 + 1 + 1)  # reward, end, completed; action; timeout
    (level,) = ints(1)
    ints(7 + 1 + 1 + 1)  # seven more; time; waiting; grid size
    (entities,) = ints(1)
    if entities != 1:
        raise RuntimeError(f"Procgen's state lists {entities} entities where the mouse is the only one: another version?")
    agent_at = at
    x, y = struct.unpack_from("<2f", state, at)
    ints(31 + 19)
    ints(1)
    text()  # a third random generator
    ints(3 + 6)  # board width and height, what lies outside; six more
    width, height, size = ints(3)
    if width * height != size or width not in WORLD.values():
        raise RuntimeError(f"Procgen's state has a grid of {width} x {height}, {size} cells: another version?")
    grid = np.frombuffer(bytes(state), dtype="<i4", count=size, offset=at).reshape(height, width)
    return _Fields(level, agent_at, x, y, grid)
