"""Many trainings: a list of independent cells, on the cores of this machine or on a Ray cluster.

    from apev.cells import Cell, run_cells
    cells = [Cell(f"seed {s}", "train", {"data": "log.npz", "seed": s}, folder=Path(f"runs/seed-{s}")) for s in range(8)]
    run_cells(cells)                # as many at a time as there are free cores
    run_cells(cells, ray="auto")    # the same folders, the same tensors, from a cluster

A cell's folder is where its result lands. A cell that is begun again, because its machine died or somebody pressed Ctrl-C, goes
on from the last checkpoint there. Its tensors depend on its arguments, its number of threads, the kind of processor and the
version of torch; not on how many cells ran beside it, where, or how often it was begun again.
"""

from apev.cells.cell import Cell
from apev.cells.runner import CellsError, Machines, Many, run_cells

__all__ = ["Cell", "CellsError", "Machines", "Many", "run_cells"]
