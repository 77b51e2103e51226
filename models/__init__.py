"""Continual-learning methods, one file each; none of them knows which norm the network has."""
