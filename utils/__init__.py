"""Shared infrastructure; only `utils.run` and what builds on it import models, data sets and backbones."""

import os

# Lower OpenMP's spin count. With libgomp's default, a thread waiting at a barrier burns its whole time slice, which
# makes runs several times slower on a busy machine. It is set here because libgomp reads it when torch is imported, and
# every process of a run imports this package first.
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:  # the user's own setting wins
    os.environ["GOMP_SPINCOUNT"] = "1000"
