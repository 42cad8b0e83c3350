"""Which kinds of contexts a log holds, without labels.

    1. one model for all contexts leaves errors; a mixture of regressions sorts contexts by them (`regression.py`)
    2. for each number of kinds K, small networks learn the kinds from two thirds of the contexts (`models.py`)
    3. on the other contexts, the first steps say which kind it is, and the steps after them are predicted
    4. K is the smallest number that predicts as well as the best, within the uncertainty; one kind unless the best is better
       beyond doubt, and by something that matters
    5. all contexts are sorted by the networks of that K, which then learn from all of them; a context that one model for all
       explains better than every kind is of no kind

Where each world was logged by its own policy, how likely an action was would name the world and teach nothing about it: models
condition on (s, a) and never on how likely a was. Contexts that merely visit other states are no kinds either: the networks
share what they have in common, and what (s, a) itself says about the kind is part of what kinds are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from apev.data.dataset import Dataset
from apev.progress import progress_bar
from apev.worlds.choose import Attempt, Tried, better, compare, score, smallest_good
from apev.worlds.models import WorldModels, guess_kind, out_of_fold, train
from apev.worlds.regression import Mixture, Sums, mixtures
from apev.worlds.rows import Rows

NO_KIND = -1
MOST_KINDS = 6
MOST_ROWS = 200_000  # of as many contexts as that takes; the others are sorted by the models
FEWEST_CONTEXTS = 6
SHORTEST = 4  # rows of a context that has steps after its first ones
FEW_CONTEXTS = 60  # up to so many are all held out, in three parts
FOLDS = 3
STARTS = 8
RIDGE = 40.0  # rows that speak for no effect at all, in each kind's regression
WAVES = 64  # random Fourier features, at most
WIDEST = 24  # observation columns that the regressions read; more are projected
ODDS = 20.0  # how much likelier one model for all must make a context than every kind does, for it to be of no kind
SMALLEST_SHARE = 0.04  # of the contexts, and at least three: fewer are no kind
UPDATES = {"pooled": 1000, "tried": 400, "final": 1500}  # at most; small logs need fewer
ROWS_AN_UPDATE = 8
PICTURES = (
    "observations are pictures, which these models do not read; where you know how many kinds there are, say so, and they are "
    "told apart by what else happens, members of ape-v being kinds alone"
)


@dataclass(frozen=True)
class Found:
    """The kinds of a log."""

    kind: np.ndarray  # int64 [contexts]: of each context, or NO_KIND
    contexts: np.ndarray  # int64 [contexts]: their numbers in the log
    models: WorldModels | None  # None where there is one kind
    tried: tuple[Tried, ...]
    rows: Rows | None  # that the models were made of
    held_out: Tensor | None  # [N] bool: rows of `rows` that the models did not learn from
    why_one: str = ""  # where no more could be looked for

    @property
    def count(self) -> int:
        """K."""
        return 1 if self.models is None else self.models.kinds


def find(
    log: Dataset,
    *,
    kinds: int | np.ndarray | None = None,
    most: int = MOST_KINDS,
    seed: int = 0,
    console: Console | None = None,
) -> Found:
    """The kinds of this log's contexts.

    kinds: how many, where that is known, or the kind of each context [contexts in order of their numbers], where that is.
    most: no more than so many are tried.
    """
    numbers = np.unique(log.group[log.usable])
    one = Found(np.zeros(len(numbers), dtype=np.int64), numbers, None, (), None, None)
    if isinstance(kinds, int) and kinds == 1:
        return one
    if log.pictures is not None and kinds is None:
        return replace_why(one, PICTURES)
    if kinds is None and (why := too_few(log, numbers)):
        return replace_why(one, why)
    if isinstance(kinds, int) and len(numbers) < 2 * kinds:
        raise ValueError(f"kinds={kinds} of {len(numbers)} {word_for(log)}s. Fix: fewer kinds, or labels for each of them.")
    generator = torch.Generator().manual_seed(seed)
    chosen = some_contexts(log, numbers, generator)
    rows = Rows.of(log, contexts=None if len(chosen) == len(numbers) else chosen)
    if not rows.y.shape[1]:
        return replace_why(one, "nothing in the log varies")
    with progress_bar(console) as bar:
        tries = (2 + (most - 1 if kinds is None else 1)) * (FOLDS if len(rows.sizes) <= FEW_CONTEXTS else 1)
        total = 2 * updates("final", rows)
        total += 0 if isinstance(kinds, np.ndarray) else updates("pooled", rows) + updates("tried", rows) * tries
        task = bar.add_task("looking for kinds", total=total)

        def each() -> None:
            bar.advance(task)

        if isinstance(kinds, np.ndarray):
            given = torch.from_numpy(np.asarray(kinds, dtype=np.int64))[np.searchsorted(numbers, rows.contexts)]
            tried: tuple[Tried, ...] = ()
            sorted_into = given
        else:
            errors = bounded(out_of_fold(rows, chunks(rows), FOLDS, updates=updates("pooled", rows), seed=seed, each=each))
            tried, best = try_numbers(rows, errors, kinds, most, seed, generator, each)
            if best is None:
                return Found(one.kind, numbers, None, tried, rows, None)
            by_kind = rows.sums(best.of_rows(rows))
            sorted_into = by_kind.argmax(1)
            sorted_into = none_empty(sorted_into, by_kind) if kinds else large_ones(sorted_into)
            if int(sorted_into.max()) < 1:
                return Found(one.kind, numbers, None, tried, rows, None)
        models, kind, held_out = finish(rows, sorted_into, seed, each, fixed=isinstance(kinds, np.ndarray))
    of_all = np.full(len(numbers), NO_KIND, dtype=np.int64)
    of_all[np.searchsorted(numbers, rows.contexts)] = kind.numpy()
    for rest in pieces(np.setdiff1d(numbers, rows.contexts)):
        others = Rows.of(log, rows.units, rest)
        of_all[np.searchsorted(numbers, others.contexts)] = sort(models, others).numpy()
    return Found(of_all, numbers, models, tried, rows, held_out)


def replace_why(found: Found, why: str) -> Found:
    """One kind, and why no more were looked for."""
    return Found(found.kind, found.contexts, None, (), None, None, why)


def too_few(log: Dataset, numbers: np.ndarray) -> str:
    """Why contexts cannot be compared; empty where they can."""
    sizes, word = np.bincount(np.searchsorted(numbers, log.group[log.usable])), word_for(log)
    if len(numbers) < FEWEST_CONTEXTS:
        plural = "" if len(numbers) == 1 else "s"
        why = f"the log has {len(numbers)} {word}{plural}, and {FEWEST_CONTEXTS} are the least to compare"
    elif (count := int((sizes >= SHORTEST).sum())) < FEWEST_CONTEXTS:
        why = f"{count} of {len(numbers):,} {word}s have {SHORTEST} rows, the least that can be predicted after first steps"
    else:
        return ""
    named = "name what episodes have in common, such as a machine (contexts=, --context)"
    return why if log.contexts is not None else f"{why}; {named}"


def word_for(log: Dataset) -> str:
    """What contexts are here: "context", "episode", "picture"."""
    return str(log.describe()["group_is"])


def some_contexts(log: Dataset, numbers: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """As many contexts, drawn at random, as have MOST_ROWS rows together."""
    sizes = np.bincount(np.searchsorted(numbers, log.group[log.usable]), minlength=len(numbers))
    if sizes.sum() <= MOST_ROWS:
        return numbers
    order = torch.randperm(len(numbers), generator=generator).numpy()
    return np.asarray(np.sort(numbers[order[: max(FEWEST_CONTEXTS, int((sizes[order].cumsum() <= MOST_ROWS).sum()))]]))


def updates(name: str, rows: Rows) -> int:
    """How many updates the models of a step of the search learn for."""
    return min(UPDATES[name], max(50, len(rows) // ROWS_AN_UPDATE))


def pieces(contexts: np.ndarray, size: int = 1000) -> list[np.ndarray]:
    """Contexts, some at a time."""
    return [contexts[i : i + size] for i in range(0, len(contexts), size)]


def chunks(rows: Rows) -> Tensor:
    """[N] fold of each row: a context is cut into stretches that go to one fold after another.

    Folds are not whole contexts here: a region of states that one context alone visits would then be foreign to the model
    that judges it, and the context would look like a kind of its own.
    """
    sizes = rows.sizes[rows.context]
    stretches = torch.where(sizes >= 3 * FOLDS, rows.place * 3 * FOLDS // sizes, rows.place)
    return (stretches + rows.context) % FOLDS


def bounded(errors: Tensor) -> Tensor:
    """Errors [N, O] cut off at six times their usual size, so that a few rows do not decide.

    Where most rows are 0 (a reward at a goal), three deviations are more than that, and the other rows are what counts.
    """
    usual = 1.5 * errors.abs().median(0).values + 1e-3
    most = torch.maximum(6 * usual, 3 * errors.std(0))
    return errors.clamp(-most, most)


def features(rows: Rows, generator: torch.Generator) -> Tensor:
    """[N, F]: what the regressions read: 1, the observation (projected where it is wide), the action, and waves.

    The waves are random Fourier features of both: kinds may differ in ways that no linear function tells, such as where a
    goal is. There are no more of them than a context has rows, which could not speak for more.
    """
    obs, action = rows.x[:, : rows.vector_dim], rows.x[:, rows.vector_dim :]
    if obs.shape[1] > WIDEST:
        directions = torch.linalg.eigh(obs.T @ obs / len(obs)).eigenvectors[:, -WIDEST:]
        obs = obs @ directions
    seen = torch.cat([obs, action], 1)
    waves = min(WAVES, int(rows.sizes.median()))
    frequency = torch.randn(seen.shape[1], waves, generator=generator) / seen.shape[1] ** 0.5
    phase = 2 * math.pi * torch.rand(waves, generator=generator)
    return torch.cat([torch.ones(len(rows), 1), seen, math.sqrt(2) * torch.cos(seen @ frequency + phase)], 1)


def try_numbers(
    rows: Rows,
    errors: Tensor,
    count: int | None,
    most: int,
    seed: int,
    generator: torch.Generator,
    each: Callable[[], None],
) -> tuple[tuple[Tried, ...], WorldModels | None]:
    """(how well each number of kinds predicts held-out contexts, models of the best; None: one kind)."""
    f = features(rows, generator)
    sums = Sums.of(f, errors, rows.context, len(rows.sizes))
    ridge = RIDGE * f.square().mean(0) + 1e-6
    numbers = range(2, most + 1) if count is None else [count]
    attempts: dict[int, list[Attempt]] = {number: [] for number in numbers}

    def sorting(contexts: Tensor) -> dict[int, Mixture]:
        start = min(max(2, int(contexts.sum()) // 2), 2 * max(numbers))
        return mixtures(sums.only(contexts), start, ridge, STARTS, generator)

    of_all = sorting(torch.ones(len(rows.sizes), dtype=torch.bool))
    for held in splits(rows, of_all[min(max(of_all), max(numbers))].share.argmax(1), generator):
        sortings = sorting(~held)
        learn = ~held[rows.context]
        for_all = torch.where(learn, 0, NO_KIND)
        begun = train(rows, for_all, 1, updates=updates("tried", rows), seed=seed, each=each)
        shared = [p.detach() for p in begun.net.parameters()]
        # One model for all learns as long as the others, from where they begin too.
        pooled = train(rows, for_all, 1, updates=updates("tried", rows), seed=seed, start=shared, each=each)
        pooled.measure(pooled.errors(rows)[0][~learn], rows.known[~learn])
        base = score(pooled, rows, held)[0]
        for number in numbers:
            kind = without_small(sortings[number].share.argmax(1), ~held) if number in sortings else None
            names = torch.zeros(0) if kind is None else kind[kind != NO_KIND].unique()
            if kind is None or len(names) < 2:
                attempts.pop(number, None)
                continue
            of_rows = torch.where(learn, renumbered(kind, names)[rows.context], NO_KIND)
            models = train(rows, of_rows, len(names), updates=updates("tried", rows), seed=seed, start=shared, each=each)
            models.sigma.copy_(pooled.sigma)
            models.columns.copy_(pooled.columns)
            if number in attempts:
                guess = guess_kind(rows, of_rows, len(names), updates=updates("tried", rows), seed=seed)
                after, untold = score(models, rows, held, guess, beside=pooled)
                attempts[number].append(Attempt(models, base, better(base, untold), after))
    found = {number: compare(tries) for number, tries in attempts.items() if tries}
    told = tuple(result[0] for result in found.values())
    chosen = next(iter(found), None) if count is not None else smallest_good(found)
    if chosen is None:
        return told, None if count is None else from_all(rows, of_all[count].share.argmax(1), updates("tried", rows), seed)
    return told, max(attempts[chosen], key=lambda attempt: attempt.gain).models


def from_all(rows: Rows, kind: Tensor, updates: int, seed: int) -> WorldModels:
    """Models of kinds [C] that were sorted once, where contexts are too few to hold some out."""
    of_rows = renumbered(kind, kind.unique())[rows.context]
    models = train(rows, of_rows, int(of_rows.max()) + 1, updates=updates, seed=seed)
    models.measure(models.errors(rows)[of_rows, torch.arange(len(rows))], rows.known)
    return models


def splits(rows: Rows, kind: Tensor, generator: torch.Generator) -> list[Tensor]:
    """[C] bool each: contexts to hold out. Where there are few, every context is held out once.

    Contexts of each kind [C] of a first sorting are dealt to the folds in turn: a fold that held out most contexts of a kind
    would leave too few to learn it from, and several kinds would seem to predict no better.
    """
    long = (rows.sizes >= SHORTEST).nonzero()[:, 0]
    order = long[torch.randperm(len(long), generator=generator)]
    order = order[kind[order].argsort(stable=True)]
    held = []
    for fold in range(FOLDS if len(long) <= FEW_CONTEXTS else 1):
        held.append(torch.zeros(len(rows.sizes), dtype=torch.bool))
        held[-1][order[fold::FOLDS]] = True
    return held


def without_small(kind: Tensor, counted: Tensor) -> Tensor:
    """[C]: kinds that too few of the `counted` contexts are of become no kind."""
    kind = torch.where(counted, kind, NO_KIND)
    least = max(3, round(SMALLEST_SHARE * int(counted.sum())))
    sizes = torch.bincount(kind[kind != NO_KIND], minlength=int(kind.max()) + 1)
    return torch.where((kind != NO_KIND) & (sizes[kind] >= least), kind, NO_KIND)


def large_ones(kind: Tensor) -> Tensor:
    """[C]: kinds [C] without those that too few contexts are of; what is left is counted anew."""
    kind = without_small(kind, torch.ones(len(kind), dtype=torch.bool))
    return renumbered(kind, kind[kind != NO_KIND].unique())


def renumbered(kind: Tensor, names: Tensor) -> Tensor:
    """Kinds as 0, 1, 2, ... in the order of `names`."""
    return torch.where(kind == NO_KIND, NO_KIND, torch.searchsorted(names, kind))


def sort(models: WorldModels, rows: Rows) -> Tensor:
    """[C]: the kind that explains each context best."""
    return rows.sums(models.of_rows(rows)).argmax(1)


def none_empty(kind: Tensor, by_kind: Tensor) -> Tensor:
    """[C]: kinds [C]; one that has no context takes the one that it explains best, next to the best explanation of [C, K]."""
    kind = kind.clone()
    for k in range(by_kind.shape[1]):
        if not bool((kind == k).any()):
            sizes = torch.bincount(kind.clamp_min(0), minlength=by_kind.shape[1])
            free = (kind == NO_KIND) | (sizes[kind] > 1)  # no other kind loses its last
            kind[(by_kind[:, k] - by_kind.amax(1)).where(free, torch.tensor(-torch.inf)).argmax()] = k
    return kind


def finish(rows: Rows, kind: Tensor, seed: int, each: Callable[[], None], *, fixed: bool) -> tuple[WorldModels, Tensor, Tensor]:
    """(models of all contexts, the kind of each, rows [N] they did not learn from); twice, sorting anew in between."""
    held_out = chunks(rows) == 0
    held_out &= rows.place * 2 >= rows.sizes[rows.context]  # of the later half: a sixth of the rows
    pooled = train(rows, torch.where(held_out, NO_KIND, 0), 1, updates=updates("final", rows) // 2, seed=seed, each=each)
    start = [p.detach() for p in pooled.net.parameters()]
    count = int(kind.max()) + 1
    models = pooled
    for share in (2, 1):
        of_rows = torch.where(held_out, NO_KIND, kind[rows.context])
        models = train(rows, of_rows, count, updates=updates("final", rows) // share, seed=seed, start=start, each=each)
        judged = held_out & (kind[rows.context] != NO_KIND)
        errors = models.errors(rows)  # [K, N, O]
        own = errors[kind[rows.context][judged], judged.nonzero()[:, 0]]
        models.measure(own, rows.known[judged])
        if fixed:
            continue
        pooled.sigma.copy_(models.sigma)
        pooled.columns.copy_(models.columns)
        by_kind = rows.sums(models.evidence(errors, rows.known).T)  # [C, K]
        by_one = rows.sums(pooled.of_rows(rows))[:, 0]
        kind = torch.where(by_kind.amax(1) >= by_one - math.log(ODDS), by_kind.argmax(1), NO_KIND)
        kind = none_empty(kind, by_kind)
    return models, kind, held_out
