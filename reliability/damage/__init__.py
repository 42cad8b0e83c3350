"""What the fuzzer does to a valid file: each function damages a copy in place and says what it did.

    bytes      bits and bytes flipped, cut, added, zeroed: a bad disk or a broken download
    files      missing, renamed, a folder or a pipe in a file's place
    structure  columns, groups, tensors and keys that are missing, renamed, doubled or ragged
    types      wrong types in JSON and in arrays, NaN, numbers beyond every range
    sizes      files that say they are larger than any memory, and small files that unpack to it
    links      HDF5 and file system links to a file outside
    specs      environments that would run code or import modules
    pickles    objects where numbers belong

Who writes such a file on purpose also writes the right checksum: changes of structure, types, sizes and specs are sealed again.
"""

from __future__ import annotations

import random

from samples import Kind, Sample

from damage import arrays, hdf5, models, texts
from damage import files as places
from damage.outside import Damage

LOGS: tuple[Kind, ...] = ("npz", "hdf5", "folder", "minari")
MODELS: tuple[Kind, ...] = ("policy", "run")
ALL: tuple[Kind, ...] = (*LOGS, *MODELS, "results")
WAYS: tuple[tuple[str, Damage, tuple[Kind, ...]], ...] = (
    ("bytes", places.flip_bit, ALL),
    ("bytes", places.flip_bit, ALL),  # twice as often
    ("bytes", places.flip_bytes, ALL),
    ("bytes", places.truncate, ALL),
    ("bytes", places.extend, ALL),
    ("bytes", places.zero_fill, ALL),
    ("bytes", places.shuffle_blocks, ALL),
    ("files", places.misplace, ALL),
    ("structure", arrays.damage_columns, ("npz", "folder")),
    ("structure", arrays.odd_zip, ("npz",)),
    ("structure", hdf5.damage_hdf5, ("hdf5", "minari")),
    ("structure", hdf5.damage_minari, ("minari",)),
    ("structure", models.damage_tensors, MODELS),
    ("types", texts.damage_json, ALL),
    ("types", arrays.damage_columns, ("npz", "folder")),
    ("types", hdf5.damage_hdf5, ("hdf5",)),
    ("types", hdf5.damage_minari, ("minari",)),
    ("sizes", arrays.giant_npy, ("npz", "folder")),
    ("sizes", arrays.giant_npy, ("npz", "folder")),
    ("sizes", arrays.zip_bomb, ("npz",)),
    ("sizes", hdf5.huge_hdf5, ("hdf5", "minari")),
    ("sizes", hdf5.damage_minari, ("minari",)),
    ("sizes", models.huge_config, MODELS),
    ("sizes", models.giant_safetensors, MODELS),
    ("sizes", models.gzip_bomb, ("results",)),
    ("links", hdf5.link_hdf5, ("hdf5", "minari")),
    ("links", places.link_files, ("folder", "minari", *MODELS, "results")),
    ("specs", texts.damage_spec, (*LOGS, "run")),
    ("pickles", arrays.pickled, ALL),
)
SHARE = {"bytes": 5.0, "files": 1.0, "structure": 3.0, "types": 4.0, "sizes": 1.5, "links": 2.0, "specs": 2.0, "pickles": 0.5}
KINDS: dict[Kind, float] = {"npz": 4.0, "hdf5": 4.0, "folder": 3.0, "minari": 3.0, "policy": 3.0, "run": 2.5, "results": 0.7}


def choose(rng: random.Random, samples: list[Sample]) -> tuple[Sample, str, Damage]:
    """A sample, a family of damage, and one of its ways."""
    there = sorted({sample.kind for sample in samples})
    kind = rng.choices(there, [KINDS[k] for k in there])[0]
    sample = rng.choice([s for s in samples if s.kind == kind])
    families = sorted({family for family, _, kinds in WAYS if kind in kinds})
    family = rng.choices(families, [SHARE[f] for f in families])[0]
    return sample, family, rng.choice([way for name, way, kinds in WAYS if name == family and kind in kinds])
