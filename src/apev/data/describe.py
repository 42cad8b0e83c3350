"""What is in a log, as plain numbers and strings, and in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from apev.data.dataset import Dataset


def describe(log: Dataset) -> dict[str, Any]:
    """What is in the data, fit for JSON; rows that are hidden do not count."""
    shown = slice(None) if log.hidden is None else ~log.hidden
    episodes, groups = np.unique(log.episodes[shown]), np.unique(log.group[shown])
    quantiles = np.quantile(log.episode_returns()[episodes], [0, 0.25, 0.5, 0.75, 1]).tolist()
    layout = {key: f"{log.observations[key].dtype} [{log.observations[key].shape[1]}]" for key in log.vector_keys}
    if log.pictures is not None and log.picture_key is not None:
        layout[log.picture_key] = f"{len(log.pictures)} pictures {list(log.pictures.shape[1:])}"
    return {
        "rows": len(log.rewards[shown]),
        "usable_rows": int(log.usable.sum()),
        "episodes": len(episodes),
        "terminated": int(log.terminated[shown].sum()),
        "truncated": int(log.truncated[shown].sum()),
        "groups": len(groups),
        "group_is": "context" if log.contexts is not None else "picture" if log.shared_pictures else "episode",
        "observations": layout,
        "actions": f"{log.num_actions} discrete" if log.discrete else f"{log.actions.shape[1]} continuous",
        "returns": dict(zip(("min", "q25", "median", "q75", "max"), quantiles, strict=True)),
    }


def in_words(log: Dataset) -> str:
    """The same in a line."""
    facts = describe(log)
    layout = ", ".join(f"{key}: {text}" for key, text in facts["observations"].items())
    returns = " ".join(f"{name} {value:.4g}" for name, value in facts["returns"].items())
    return (
        f"Dataset({facts['rows']} rows ({facts['usable_rows']} usable), {facts['episodes']} episodes, "
        f"{facts['groups']} {facts['group_is']} groups; {layout}; actions: {facts['actions']}; returns: {returns})"
    )
