"""What people see of `apev reproduce theory`: the claims in the terminal, figures, the page, the blocks of docs/theory.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from apev.experiments.common.html import figure, header, html_table, made, section, whole_page
from apev.experiments.common.tables import Rows, markdown_cell, read_page, stored
from apev.experiments.theory.charts import DRIVERS, KINDS, MEMBERS, chain_chart, city_map, surrogate_bars
from apev.files import FileError, read_json, reading, write_text
from apev.terminal import markup

LEAD = (
    "A log leaves several explanations of the world open. Below, each statement of the theory stands beside the number that "
    "was measured for it, from exact computations in small worlds and from agents that learned those worlds from logs."
)
MADE = "name a folder that `apev reproduce theory` made, or make it again"
WORLDS = {"chain": "Chain, n = 4", "city": "City", "doors": "Locked Doors, no photograph"}


def read_theory(folder: str | Path) -> dict[str, Any]:
    """`summary.json` of a folder that `apev reproduce theory` wrote."""
    path = stored(folder, "summary.json")
    if path is None:
        missing = Path(folder) / "summary.json"
        raise FileNotFoundError(f"{missing} is not there. Fix: `apev reproduce theory --out {folder}` makes it.")
    summary: dict[str, Any] = read_json(path, fix=MADE)
    if "claims" not in summary:
        raise FileError(path, "holds no claims", MADE)
    with reading(path, MADE):
        claims_table(summary)  # what is printed before anything is drawn
    return summary


def show(folder: Path, page: Path | None) -> None:
    """Print the claims, write the page, and refresh a Markdown page."""
    print_claims(read_theory(folder))
    print(write_theory(folder))
    if page is not None:
        fill_blocks(page, folder)


def print_claims(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Every claim with its numbers."""
    table = Table(title="the theory, claim by claim", header_style="bold", show_lines=True)
    for name, ratio in (("claim", 5), ("expected", 3), ("measured", 4)):
        table.add_column(name, ratio=ratio)
    table.add_column("holds", justify="center", no_wrap=True)
    for *cells, holds in claims_table(summary)[1:]:
        table.add_row(*map(markup, cells), "[green]yes[/green]" if holds == "yes" else "[bold red]NO")
    console = console or Console()
    console.print(table)
    failed = sum(not claim["holds"] for claim in summary["claims"])
    told = f"[bold red]{failed} of {len(summary['claims'])} claims do not hold" if failed else "[green]all claims hold"
    console.print(told)


def write_theory(folder: str | Path) -> Path:
    """Write the figures and report.html of a folder; returns the page."""
    folder, summary = Path(folder), read_theory(folder)
    with reading(folder / "summary.json", MADE):
        drawn = {
            "city.svg": city_map(summary["city"], title="Three ways through the city, as learned from logged drives") + "\n",
            "chain.svg": chain_chart(summary["chain"], title="Theorem 4.1: steps to the goal on the chain") + "\n",
            "surrogate.svg": surrogate_bars(
                summary["surrogate"], title="How well squared TD errors of exact values rank hypotheses"
            )
            + "\n",
            "report.html": render(summary),
        }
    for name, text in drawn.items():
        write_text(folder / name, text)
    return folder / "report.html"


def render(summary: Mapping[str, Any]) -> str:
    """The page as a string."""
    title, claims = str(summary.get("title", "The theory, run")), summary["claims"]
    held = sum(claim["holds"] for claim in claims)
    city = summary["city"]
    ours = city["learned"]["ape-v"]
    headline = (
        f'<ul class="headline"><li class="hero"><b>{held} of {len(claims)}</b>claims hold</li>'
        f"<li><b>{ours['mean']:.1f} steps</b>mean travel time of learned APE-V in the city"
        f"<br>Bayes-optimal {city['adaptive']:.1f}</li></ul>"
    )
    sections = [
        header(title, LEAD, headline),
        figure(
            "city",
            "The city",
            f"Ways of the agents of seed {summary['meta']['seeds'][0]}, trained on the same drives. Nobody can see from "
            "outside whether the side street is blocked.",
            lambda width: city_map(city, width=width),
        ),
        section(
            "city-times",
            "Travel times",
            "Steps from home to the destination. By seed: the exact mean over both kinds of days.",
            html_table(city_table(summary)),
        ),
        section("claims", "Claim by claim", "", html_table(claims_table(summary), wrap=True)),
        section(
            "optimality",
            "How Bayes-optimal is APE-V?",
            "Share: 0% is the best policy that cannot adapt, 100% the best that can.",
            html_table(optimality_table(summary)),
        ),
        figure(
            "chain",
            "Theorem 4.1",
            "Steps to the goal on the chain. Without adapting they grow with n squared.",
            lambda width: chain_chart(summary["chain"], width=width),
        ),
        figure(
            "surrogate",
            "The surrogate likelihood",
            "Of two hypotheses, how often the likelier has the smaller TD error when every value function is exact.",
            lambda width: surrogate_bars(summary["surrogate"], width=width),
        ),
        made(summary["meta"]),
    ]
    return whole_page(title, sections)


# ---------------------------------------------------------------------- tables: rows of text, the first one the heading


def claims_table(summary: Mapping[str, Any]) -> Rows:
    """Every claim."""
    told = ("statement", "expected", "measured")
    rows = [[*(str(claim[name]) for name in told), "yes" if claim["holds"] else "NO"] for claim in summary["claims"]]
    return [["claim", "expected", "measured", "holds"], *rows]


def city_table(summary: Mapping[str, Any]) -> Rows:
    """Travel times: learned with intervals and by seed, exact beside them."""
    city = summary["city"]
    exact = {"ape-v": city["adaptive"], "lcb": city["pessimistic"], "average": city["optimistic"]}
    seeds = list(city["learned"]["ape-v"]["by_seed"])
    rows = [["driver", "exact plan", "learned, mean", "95% interval", *(f"seed {s}" for s in seeds)]]
    for agent, (name, *_) in DRIVERS.items():
        learned = city["learned"][agent]
        low, high = learned["ci95"]
        each = [f"{learned['exact_by_seed'][s]:.1f}" for s in seeds]
        rows.append([name, f"{exact[agent]:.1f}", f"{learned['mean']:.2f}", f"{low:.2f} – {high:.2f}", *each])
    return rows


def optimality_table(summary: Mapping[str, Any]) -> Rows:
    """Learned returns between the best Markov policy and Bayes-optimal."""
    rows = [["world", "best Markov", "proven bound", "learned APE-V", "Bayes-optimal", "share", "worst to best seed"]]
    for r in summary["bayes_optimality"]:
        shares = r["share_by_seed"].values()
        rows.append(
            [
                WORLDS[r["world"]],
                f"{r['best_markov']:.2f}",
                f"{r['markov_bound']:.2f}",
                f"{r['learned']:.2f}",
                f"{r['bayes_optimal']:.2f}",
                f"{r['share']:.1%}",
                f"{min(shares):.1%} – {max(shares):.1%}",
            ]
        )
    return rows


def chain_table(summary: Mapping[str, Any]) -> Rows:
    """A few n of Theorem 4.1."""
    rows = [["n", "adaptive", "best Markov", "closed form", "fair coin", "paper's bound", "best Markov / n²"]]
    for r in summary["chain"]:
        if r["n"] in (2, 4, 8, 16, 32, 64):
            shown = [f"{r[k]:,.2f}" for k in ("adaptive", "markov", "markov_closed_form", "coin", "paper_bound")]
            rows.append([str(r["n"]), *shown, f"{r['markov'] / r['n'] ** 2:.4f}"])
    return rows


def surrogate_table(summary: Mapping[str, Any]) -> Rows:
    """What was measured of the surrogate."""
    rows = [
        ["worlds", "members", "pairs right", "tied", "truth's mean error", "belief in truth: exact", "printed", "calibrated"]
    ]
    for r in summary["surrogate"]:
        shares = [f"{r[k]:.1%}" for k in ("pairs_right", "pairs_tied")]
        beliefs = [f"{r[k]:.3f}" for k in ("belief_exact", "belief_surrogate", "belief_calibrated")]
        rows.append([KINDS[r["kind"]], MEMBERS[r["members"]], *shares, f"{r['truth_error']:.3f}", *beliefs])
    return rows


def settings_table(summary: Mapping[str, Any]) -> Rows:
    """The hyper-parameters of every learned agent."""
    shown = ("members", "wildcards", "gamma", "lr", "target_rate", "hidden", "bootstrap", "beta", "likelihood", "temperature")
    rows = [["world", "agent", *shown]]
    for world, agents in summary["agents"].items():
        for agent, config in agents.items():
            rows.append([WORLDS[world], DRIVERS[agent][0], *(_setting(config.get(name)) for name in shown)])
    return rows


def made_lines(summary: Mapping[str, Any]) -> Rows:
    """Where the numbers come from."""
    meta = summary["meta"]
    names = ("command", "commit", "seeds", "updates", "batch", "held out", "workers", "seconds")
    return [["what", "value"], *([name, _setting(meta[name])] for name in names if meta.get(name) is not None)]


TABLES: dict[str, Callable[[Mapping[str, Any]], Rows]] = {
    "claims": claims_table,
    "city": city_table,
    "optimality": optimality_table,
    "chain": chain_table,
    "surrogate": surrogate_table,
    "settings": settings_table,
    "made": made_lines,
}
BLOCK = re.compile(r"<!-- theory: (\w+) -->\n(.*?)<!-- /theory -->", re.DOTALL)


def markdown_block(name: str, summary: Mapping[str, Any]) -> str:
    """One generated table of docs/theory.md."""
    if name not in TABLES:
        raise ValueError(f"there is no block {name!r}. Fix: one of {', '.join(TABLES)}.")
    heading, *rows = [[markdown_cell(cell) for cell in row] for row in TABLES[name](summary)]
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fill_blocks(page: str | Path, folder: str | Path) -> None:
    """Put the tables of a folder between their markers, `<!-- theory: NAME -->` and `<!-- /theory -->`, in a page."""
    page, summary = Path(page), read_theory(folder)
    text = read_page(page)
    if not BLOCK.search(text):
        raise ValueError(f"{page} has no block. Fix: put <!-- theory: claims --> and <!-- /theory --> where one belongs.")
    fill = lambda match: f"<!-- theory: {match[1]} -->\n{markdown_block(match[1], summary)}<!-- /theory -->"  # noqa: E731
    with reading(Path(folder) / "summary.json", MADE):
        filled = BLOCK.sub(fill, text)
    write_text(page, filled)


def _setting(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{key} {number}" for key, number in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
