"""Shared infrastructure; only `utils.run` and what builds on it import models, data sets and backbones."""
