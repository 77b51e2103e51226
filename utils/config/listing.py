"""`python main.py --list [models|norms|datasets|backbones|switches]`: what is registered, a line each."""

from __future__ import annotations

from utils.config.arguments import SELECTORS, switches
from utils.errors import UsageError


def listing(words: list[str]) -> str:
    sections = {f"{name}s": _registered(name) for name in SELECTORS} | {"switches": _switches()}
    unknown = [word for word in words if word not in sections]
    if unknown:
        raise UsageError(f"--list {unknown[0]}: choose from {', '.join(sections)}")
    return "\n\n".join(f"{title}\n{body}" for title, body in sections.items() if not words or title in words)


def _registered(selector: str) -> str:
    entries = SELECTORS[selector].entries()
    width = max(map(len, entries))
    return "\n".join(f"  {name.ljust(width)}  {entries[name].help}" for name in sorted(entries))


def _switches() -> str:
    rows = [["  flag", "official", "paper", "of", "meaning"]]
    rows += [[f"  {name}", str(official), str(paper), owner, text] for owner, name, official, paper, text in switches()]
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[4]]) for row in rows)
