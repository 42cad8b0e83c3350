"""Every distinct picture of a log, stored once."""

from __future__ import annotations

import numpy as np

CHUNK_BYTES = 1 << 20  # pictures are hashed and compared in pieces that stay in the cache


def deduplicate(columns: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The distinct pictures of some columns [N, H, W, C], in order of appearance, and each column as an index.

    Rows are grouped by a 64-bit hash and then compared byte for byte, so a collision costs time, never a wrong picture.
    """
    hashes = np.concatenate([hash_rows(column) for column in columns])
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    index, first = place[inverse], first[order]

    table = np.empty((len(first), *columns[0].shape[1:]), dtype=np.uint8)
    extra: dict[bytes, int] = {}
    extra_rows: list[np.ndarray] = []
    offset = 0
    for column in columns:
        here = (first >= offset) & (first < offset + len(column))
        table[here] = column[first[here] - offset]
        step = _rows_a_chunk(column)
        for start in range(0, len(column), step):
            chunk = column[start : start + step]
            rows = slice(offset + start, offset + start + len(chunk))
            differs = (table[index[rows]] != chunk).reshape(len(chunk), -1).any(axis=1)
            for row in np.flatnonzero(differs):  # a hash collision: almost never
                number = extra.setdefault(chunk[row].tobytes(), len(table) + len(extra))
                if number == len(table) + len(extra_rows):
                    extra_rows.append(chunk[row])
                index[offset + start + row] = number
        offset += len(column)
    if extra_rows:
        table = np.concatenate([table, np.stack(extra_rows)])
    index = index.astype(np.int32 if len(table) <= 2**31 else np.int64)
    return table, np.split(index, np.cumsum([len(column) for column in columns])[:-1])


def _rows_a_chunk(images: np.ndarray) -> int:
    return max(1, CHUNK_BYTES // int(np.prod(images.shape[1:])))


def hash_rows(images: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each row's bytes: every 8-byte word is mixed with its place, then all are added up."""
    size = int(np.prod(images.shape[1:]))
    words = -(-size // 8)
    place = np.random.default_rng(0).integers(2**64, size=words, dtype=np.uint64)
    step = _rows_a_chunk(images)
    padded = np.zeros((step, words * 8), dtype=np.uint8)
    hashes = np.empty(len(images), dtype=np.uint64)
    for start in range(0, len(images), step):
        chunk = images[start : start + step]
        padded[: len(chunk), :size] = chunk.reshape(len(chunk), size)
        mixed = padded[: len(chunk)].view(np.uint64) + place
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        hashes[start : start + len(chunk)] = mixed.sum(axis=1)
    return hashes


def one_an_episode(picture: np.ndarray, after: np.ndarray | None, episodes: np.ndarray, terminated: np.ndarray) -> bool:
    """Whether every episode shows one picture from its first to its last observation."""
    firsts = np.flatnonzero(np.append(True, episodes[1:] != episodes[:-1]))
    constant = bool((picture == picture[firsts][episodes]).all())
    return constant and (after is None or bool(((after == picture) | terminated).all()))
