"""Many trainings at once: algorithms and seeds on one log, as tasks of a Ray cluster.

    pip install 'apev[ray]'
    python examples/sweep_ray.py            # Ray on this machine
    python examples/sweep_ray.py auto       # the cluster that this machine is part of

Each training has its own folder, which all machines of a cluster must see. If one of them dies, its trainings go on elsewhere
from their last checkpoints. Run it again and what is finished is not repeated. Without Ray: leave `ray=` out.
"""

import sys
from pathlib import Path

import apev
from apev.cells import Cell, run_cells


def main(
    ray: str | None = "local", out: str = "runs/sweep", updates: int = 500, episodes: int = 10, seeds: int = 2
) -> dict[str, float]:
    """Train every algorithm with every seed, then play; returns the mean return of each."""
    folder = Path(out)
    log = folder / "log.npz"
    folder.mkdir(parents=True, exist_ok=True)
    apev.Dataset.example("cartpole").save(log)
    cells = []
    for algorithm in ("bc", "iql", "cql"):
        for seed in range(seeds):
            given = {"data": str(log), "algorithm": algorithm, "seed": seed, "updates": updates, "hidden": [64, 64]}
            cells.append(Cell(f"{algorithm}, seed {seed}", "train", given, folder / f"{algorithm}-{seed}"))
    run_cells(cells, ray=ray)
    found = {}
    for cell in cells:
        played = apev.evaluate(str(cell.folder), "CartPole-v1", episodes=episodes, adapt=["uniform"])
        found[cell.name] = played.rows[0].mean
        print(f"{cell.name}: {found[cell.name]:.1f}")
    return found


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "local")
