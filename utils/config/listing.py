"""`python main.py --list [models|norms|datasets|backbones|switches]`: what is registered, one line each."""

from __future__ import annotations

from textwrap import indent

from utils.config.resolve import SELECTORS, switches
from utils.errors import UsageError
from utils.tables import aligned


def listing(sections: list[str]) -> str:
    tables = {
        f"{name}s": [[entry.name, entry.help] for _, entry in sorted(registry.entries().items())]
        for name, registry in SELECTORS.items()
    }
    rows = [[name, str(official), str(paper), owner, text] for owner, name, official, paper, text in switches()]
    tables["switches"] = [["flag", "official", "paper", "of", "meaning"], *rows]
    if unknown := [section for section in sections if section not in tables]:
        raise UsageError(f"--list {unknown[0]}: no such section; choose from {', '.join(tables)}")
    return "\n\n".join(f"{name}\n{indent(aligned(tables[name], 'left'), '  ')}" for name in sections or tables)
