"""Figures of recorded runs: the paper's, and what it lacks. `python -m scripts.figures`."""
