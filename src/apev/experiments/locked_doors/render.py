"""Drawing Locked Doors for people: the room from above, the photograph, and what the agent believes.

Everything is drawn twice as large as asked for and then reduced, so that edges are smooth at every size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from apev.experiments.locked_doors.rooms import Room

Point = tuple[float, float]
Color = tuple[int, ...]

PAPER, INK, MUTED, TRACK = (250, 245, 236), (74, 56, 44), (146, 126, 108), (236, 226, 210)
WALL, WALL_EDGE, WALL_LIGHT = (128, 94, 70), (92, 66, 48), (152, 114, 86)
TILES = ((247, 231, 203), (240, 220, 187))
SEAM = (228, 204, 168)
DOORS = ((74, 144, 205), (232, 150, 52), (34, 142, 140), (150, 100, 176))  # one colour a class
LOCKED, OPEN = (214, 60, 52), (86, 172, 84)
BODY, BODY_EDGE, BLUSH = (255, 205, 84), (206, 146, 38), (246, 150, 110)
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))

_SCALE = 2  # supersampling
_WIDTH = 1.52  # of a frame, in its height


def render_room(
    room: Room,
    x: int,
    y: int,
    photo: NDArray[np.uint8],
    *,
    trail: Sequence[tuple[int, int]] | None = None,
    tried: ArrayLike | None = None,
    door: int | None = None,
    belief_doors: ArrayLike | None = None,
    believed_door: int | None = None,
    class_names: Sequence[str],
    size_px: int = 480,
    caption: str | None = None,
) -> NDArray[np.uint8]:
    """A frame [size_px, 1.52 size_px, 3]: the room with the agent at (x, y), and `photo` in a frame beside it.

    `trail` are the cells visited, oldest first; `tried` four flags, the doors found locked; `door` the one the agent
    has left through; `belief_doors` four shares drawn as bars; `believed_door` what the agent now thinks of.
    """
    if not 100 <= size_px <= 4000:
        raise ValueError(f"size_px: need 100 to 4000 pixels, not {size_px}")
    if len(class_names) != 4:
        raise ValueError(f"class_names: need 4 names, one a door, not {len(class_names)}")
    locked = [False] * 4 if tried is None else [bool(flag) for flag in np.asarray(tried).reshape(4)]
    shares = None if belief_doors is None else [float(b) for b in np.asarray(belief_doors).reshape(4)]
    height = size_px * _SCALE
    image = Image.new("RGB", (round(size_px * _WIDTH) * _SCALE, height), PAPER)
    draw = ImageDraw.Draw(image, "RGBA")
    _Floor(draw, room, height, class_names).paint(x, y, list(trail or []), locked, door, believed_door)
    _panel(image, draw, height, photo, class_names, locked, door, shares, believed_door, caption)
    return _reduced(image)


def filmstrip(frames: Sequence[NDArray[np.uint8]], captions: Sequence[str]) -> NDArray[np.uint8]:
    """Several frames of one size in a row, each with its caption below: a story in one picture."""
    if not frames or len(frames) != len(captions):
        raise ValueError(f"filmstrip: need one caption a frame, got {len(frames)} frames and {len(captions)} captions")
    if len({frame.shape for frame in frames}) != 1:
        raise ValueError("filmstrip: all frames must have the same size")
    height, width = frames[0].shape[0] * _SCALE, frames[0].shape[1] * _SCALE
    gap, font = height // 24, _font(height * 0.062)
    wrapped = [_wrap(text, font, width * 0.94) for text in captions]
    line = height * 0.08
    band = round(line * max(len(lines) for lines in wrapped) + gap * 0.8)
    image = Image.new("RGB", (len(frames) * (width + gap) + gap, height + band + gap), PAPER)
    draw = ImageDraw.Draw(image)
    for i, (frame, lines) in enumerate(zip(frames, wrapped, strict=True)):
        left = gap + i * (width + gap)
        image.paste(Image.fromarray(frame).resize((width, height), Image.Resampling.LANCZOS), (left, gap))
        draw.rounded_rectangle((left, gap, left + width, gap + height), height // 40, None, TRACK, height // 160)
        for row, text in enumerate(lines):
            draw.text((left + width / 2, height + gap * 1.6 + (row + 0.4) * line), text, INK, font, anchor="mm")
    return _reduced(image)


class _Floor:
    """The room: walls, tiles, doors, trail and agent, on the left square of a frame."""

    def __init__(self, draw: ImageDraw.ImageDraw, room: Room, height: int, names: Sequence[str]) -> None:
        self.draw, self.names, self.size = draw, names, room.size
        self.margin = height * 0.035
        self.cell = (height - 2 * self.margin) / (room.size + 2.3)
        self.wall = 1.15 * self.cell
        self.low = self.margin + self.wall  # where the tiles begin, both ways
        self.high = self.low + room.size * self.cell
        self.cells: list[Point] = [(float(cx), float(cy)) for cx, cy in room.door_cells]

    def centre(self, x: float, y: float) -> Point:
        """The middle of cell (x, y) in pixels."""
        return self.low + (x + 0.5) * self.cell, self.low + (y + 0.5) * self.cell

    def paint(
        self, x: int, y: int, trail: list[tuple[int, int]], locked: list[bool], door: int | None, believed: int | None
    ) -> None:
        """The whole room, from the floor up."""
        self._tiles()
        for d in range(4):
            self._door(d, locked[d], opened=door == d, believed=believed == d)
        leaving = MOVES[door] if door is not None else (0, 0)
        at = self.centre(x + 0.62 * leaving[0], y + 0.62 * leaving[1])
        self._trail([self.centre(*spot) for spot in trail], at if door is not None else None)
        self._agent(at, _heading(trail, leaving), happy=door is not None)
        if believed is not None and door is None:
            self._thought(self.centre(x, y), believed)

    def _tiles(self) -> None:
        d, c = self.draw, self.cell
        outer, edge = self.high + self.wall, max(2, round(c * 0.06))
        d.rounded_rectangle((self.margin, self.margin, outer, outer), c * 0.4, WALL, WALL_EDGE, edge)
        inset = c * 0.16
        d.rounded_rectangle(
            (self.margin + inset, self.margin + inset, outer - inset, outer - inset), c * 0.3, None, WALL_LIGHT, edge
        )
        for j in range(self.size):
            for i in range(self.size):
                left, top = self.low + i * c, self.low + j * c
                d.rectangle((left, top, left + c, top + c), TILES[(i + j) % 2], SEAM, max(1, round(c * 0.02)))
        for k in range(6):  # the wall's soft shadow on the floor
            reach = self.low + k * c * 0.035
            shade = (92, 60, 30, 34 - 5 * k)
            d.rectangle((reach, reach, self.high, reach + c * 0.035), shade)
            d.rectangle((reach, reach, reach + c * 0.035, self.high), shade)
        d.rectangle((self.low, self.low, self.high, self.high), None, WALL_EDGE, max(2, round(c * 0.05)))

    def _door(self, d: int, locked: bool, opened: bool, believed: bool) -> None:
        c, (dx, dy) = self.cell, MOVES[d]
        cx, cy = self.centre(*self.cells[d])
        reach = c * 0.5 + self.wall * 0.5
        cx, cy = cx + dx * reach, cy + dy * reach
        along, deep = 0.98 * c, self.wall * 0.5
        half = (along, deep) if dy else (deep, along)
        box = (cx - half[0], cy - half[1], cx + half[0], cy + half[1])
        color: Color = OPEN if opened else DOORS[d]
        if believed or opened:
            glow = OPEN if opened else (255, 226, 120)
            for k in range(5):
                grow = c * (0.3 - 0.06 * k)
                halo = (box[0] - grow, box[1] - grow, box[2] + grow, box[3] + grow)
                self.draw.rounded_rectangle(halo, c * 0.35, (*glow, 44))
        if locked:
            color = _mix(color, (150, 140, 132), 0.5)
        self.draw.rounded_rectangle(box, c * 0.14, color, _mix(color, (40, 24, 12), 0.5), max(2, round(c * 0.07)))
        if opened:  # the leaf is gone: light falls into the room
            corners = ((-0.9, deep), (0.9, deep), (1.5, deep + c), (-1.5, deep + c))
            spill = [(cx + dy * w * along - dx * far, cy + dx * w * along - dy * far) for w, far in corners]
            self.draw.polygon(spill, (*OPEN, 60))
        else:
            aside = c * 0.46 if locked else 0.0  # the icon makes room for the cross
            icon_at = (cx - abs(dy) * aside, cy - abs(dx) * aside)
            _icon(self.draw, self.names[d], icon_at, c * 0.4, (255, 252, 244), color)
            if locked:
                _cross(self.draw, (cx + abs(dy) * aside, cy + abs(dx) * aside), c * 0.27, c * 0.16)

    def _trail(self, spots: list[Point], end: Point | None) -> None:
        spots = spots + ([end] if end else [])
        for k, (a, b) in enumerate(pairwise(spots)):
            age = (len(spots) - 2 - k) / max(len(spots) - 1, 8)  # the newest is strongest
            alpha = round(190 * (1 - age) ** 1.3) + 30
            for t in (0.0, 1 / 3, 2 / 3):
                r = self.cell * (0.085 if t else 0.115)
                _disc(self.draw, (a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])), r, (198, 120, 40, alpha))

    def _agent(self, at: Point, heading: Point, happy: bool) -> None:
        d, c, (cx, cy) = self.draw, self.cell, at
        r = c * 0.43
        d.ellipse((cx - r * 0.95, cy + r * 0.5, cx + r * 0.95, cy + r * 1.2), (70, 40, 10, 70))
        _disc(d, at, r, BODY_EDGE)
        _disc(d, at, r * 0.9, BODY)
        d.ellipse((cx - r * 0.62, cy - r * 0.8, cx + r * 0.05, cy - r * 0.35), (255, 232, 160, 150))
        lean = (heading[0] * r * 0.16, heading[1] * r * 0.13)
        for side in (-1, 1):
            eye = (cx + side * r * 0.34 + lean[0], cy - r * 0.12 + lean[1])
            if happy:
                d.arc((eye[0] - r * 0.2, eye[1] - r * 0.2, eye[0] + r * 0.2, eye[1] + r * 0.25), 190, 350, INK, _w(r))
            else:
                _disc(d, eye, r * 0.23, (255, 255, 255))
                _disc(d, (eye[0] + heading[0] * r * 0.09, eye[1] + heading[1] * r * 0.09), r * 0.13, INK)
            cheek = (cx + side * r * 0.56 + lean[0], cy + r * 0.26 + lean[1])
            _disc(d, cheek, r * 0.12, (*BLUSH, 150))
        wide, (mx, my) = r * (0.36 if happy else 0.24), (cx + lean[0], cy + r * 0.22 + lean[1])
        d.arc((mx - wide, my - r * 0.2, mx + wide, my + r * (0.36 if happy else 0.22)), 20, 160, INK, _w(r))

    def _thought(self, at: Point, believed: int) -> None:
        """A bubble with the believed door's vehicle, on the side of the agent that has room for it."""
        c = self.cell
        sx = 1 if at[0] < (self.low + self.high) / 2 + c else -1
        sy = -1 if at[1] > self.low + 2 * c else 1
        for step, r in ((0.52, 0.07), (0.72, 0.11)):
            _disc(self.draw, (at[0] + sx * step * c, at[1] + sy * step * c), r * c, (255, 255, 255, 235))
        middle = (at[0] + sx * 1.25 * c, at[1] + sy * 1.2 * c)
        _disc(self.draw, middle, c * 0.62, (120, 90, 60, 120))
        _disc(self.draw, middle, c * 0.58, (255, 255, 255))
        _icon(self.draw, self.names[believed], middle, c * 0.38, DOORS[believed], (255, 255, 255))


def _panel(
    image: Image.Image,
    draw: ImageDraw.ImageDraw,
    height: int,
    photo: NDArray[np.uint8],
    names: Sequence[str],
    locked: list[bool],
    door: int | None,
    shares: list[float] | None,
    believed: int | None,
    caption: str | None,
) -> None:
    """The right part of a frame: the photograph, one line a door, the caption."""
    left, right = height * 1.0, height * (_WIDTH - 0.045)
    width, top = right - left, height * 0.04
    side = round(width * 0.86)
    px = round(left + (width - side) / 2)
    border = height * 0.017
    shadow = (px - border + 0.4 * border, top + 0.6 * border, px + side + 1.6 * border, top + side + 2.6 * border)
    draw.rounded_rectangle(shadow, border * 0.6, (90, 60, 30, 50))
    box = (px - border, top, px + side + border, top + side + 2 * border)
    draw.rounded_rectangle(box, border * 0.6, (255, 255, 255), (214, 198, 176), max(1, round(border * 0.16)))
    picture = Image.fromarray(np.ascontiguousarray(photo, dtype=np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    image.paste(picture, (px, round(top + border)))

    y = top + side + 2 * border + height * 0.03
    row = height * 0.077
    small = _font(height * 0.04)
    for d in range(4):
        middle = y + row * (d + 0.5)
        color = OPEN if door == d else DOORS[d]
        if believed == d:
            draw.rounded_rectangle(
                (left - height * 0.008, middle - row * 0.47, right + height * 0.008, middle + row * 0.47),
                row * 0.25,
                (255, 236, 178),
            )
        chip = row * 0.36
        square = (left, middle - chip, left + 2 * chip, middle + chip)
        draw.rounded_rectangle(square, chip * 0.4, color)
        _icon(draw, names[d], (left + chip, middle), chip * 0.74, (255, 252, 244), color)
        start = left + 2 * chip + height * 0.018
        status = "open" if door == d else "locked" if locked[d] else ""
        if shares is None:
            draw.text((start, middle), names[d], INK, small, anchor="lm")
            draw.text((right, middle), status, OPEN if door == d else LOCKED, small, anchor="rm")
            continue
        end = right - height * 0.112
        bar = (start, middle - row * 0.24, end, middle + row * 0.24)
        draw.rounded_rectangle(bar, row * 0.12, TRACK)
        filled = start + (end - start) * min(max(shares[d], 0.0), 1.0)
        if filled - start > row * 0.1:
            draw.rounded_rectangle((start, bar[1], filled, bar[3]), row * 0.12, color)
        draw.text((right, middle), f"{100 * shares[d]:.0f}%", INK, small, anchor="rm")
        if locked[d]:
            _cross(draw, (end - row * 0.3, middle), row * 0.15, row * 0.09)
    if caption:
        font = _font(height * 0.04)
        y += 4 * row + height * 0.03
        for i, line in enumerate(_wrap(caption, font, width)[:2]):
            draw.text(((left + right) / 2, y + i * height * 0.05), line, MUTED, font, anchor="mm")


def _heading(trail: list[tuple[int, int]], leaving: tuple[int, int]) -> Point:
    """Where the eyes look: out of the door, or along the last step that moved."""
    if leaving != (0, 0):
        return float(leaving[0]), float(leaving[1])
    for a, b in zip(trail[-2::-1], trail[:0:-1], strict=False):
        if a != b:
            return float(b[0] - a[0]), float(b[1] - a[1])
    return 0.0, 0.0


def _icon(draw: ImageDraw.ImageDraw, name: str, at: Point, r: float, ink: Color, back: Color) -> None:
    """A small picture of a vehicle, `r` its half width; another class shows its first letter."""

    def shape(*points: Point) -> None:
        draw.polygon([(at[0] + r * px, at[1] + r * py) for px, py in points], ink)

    def rect(x0: float, y0: float, x1: float, y1: float, color: Color = ink) -> None:
        draw.rectangle((at[0] + r * x0, at[1] + r * y0, at[0] + r * x1, at[1] + r * y1), color)

    def wheel(px: float, py: float) -> None:
        _disc(draw, (at[0] + r * px, at[1] + r * py), r * 0.32, back)
        _disc(draw, (at[0] + r * px, at[1] + r * py), r * 0.22, ink)

    if name == "airplane":
        draw.ellipse((at[0] - r * 0.17, at[1] - r, at[0] + r * 0.17, at[1] + r * 0.95), ink)
        shape((-1, 0.32), (-1, 0.1), (-0.1, -0.4), (0.1, -0.4), (1, 0.1), (1, 0.32), (0, 0.12))
        shape((-0.45, 0.98), (-0.45, 0.8), (0, 0.5), (0.45, 0.8), (0.45, 0.98), (0, 0.86))
    elif name == "automobile":
        shape((-0.62, 0), (-0.38, -0.52), (0.3, -0.52), (0.64, 0))
        shape((-1, 0.42), (-1, 0.06), (-0.85, -0.08), (0.75, -0.08), (1, 0.1), (1, 0.42))
        rect(-0.02, -0.4, 0.04, -0.08, back)
        wheel(-0.52, 0.45)
        wheel(0.52, 0.45)
    elif name == "ship":
        shape((-1, 0.16), (1, 0.16), (0.66, 0.72), (-0.7, 0.72))
        rect(-0.55, -0.22, 0.5, 0.08)
        rect(-0.3, -0.72, -0.06, -0.22)
        rect(0.12, -0.58, 0.34, -0.22)
        for k in (-0.38, -0.08, 0.22):
            rect(k, -0.12, k + 0.14, 0.0, back)
    elif name == "truck":
        rect(-1, -0.6, 0.28, 0.42)
        shape((0.38, 0.42), (0.38, -0.3), (0.72, -0.3), (1, 0.06), (1, 0.42))
        rect(0.5, -0.16, 0.7, 0.02, back)
        wheel(-0.55, 0.45)
        wheel(0.62, 0.45)
    else:
        draw.text(at, name[:1].upper(), ink, _font(1.7 * r), anchor="mm")


def _cross(draw: ImageDraw.ImageDraw, at: Point, r: float, width: float) -> None:
    for color, w in (((255, 250, 244), width * 1.7), (LOCKED, width)):
        for slope in (-1, 1):
            ends = [(at[0] - r, at[1] - slope * r), (at[0] + r, at[1] + slope * r)]
            draw.line(ends, color, max(1, round(w)))
            for end in ends:
                _disc(draw, end, w / 2, color)


def _disc(draw: ImageDraw.ImageDraw, at: Point, r: float, color: Color) -> None:
    draw.ellipse((at[0] - r, at[1] - r, at[0] + r, at[1] + r), color)


def _w(r: float) -> int:
    return max(1, round(r * 0.13))


def _mix(a: Color, b: Color, share: float) -> Color:
    return tuple(round(p + (q - p) * share) for p, q in zip(a, b, strict=True))


def _font(size: float) -> Any:
    return ImageFont.load_default(size=max(size, 6.0))


def _wrap(text: str, font: Any, width: float) -> list[str]:
    """The lines of `text`, none wider than `width` unless a single word is."""
    lines: list[str] = []
    for word in text.split():
        if lines and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _reduced(image: Image.Image) -> NDArray[np.uint8]:
    size = (image.width // _SCALE, image.height // _SCALE)
    return np.asarray(image.resize(size, Image.Resampling.LANCZOS), dtype=np.uint8).copy()
