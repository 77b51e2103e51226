"""Machinery shared by every room of the house; knows no concrete model, data set or norm."""

import os

# How often a thread of OpenMP looks whether the others are there before it sleeps. libgomp's own 300,000 take longer
# than a time slice: beside a busy process, the waiting thread uses up the time that the one it waits for would need, at
# each of a step's hundreds of meetings. It is here because libgomp reads it when torch is loaded, and whatever loads
# torch for a run, launchers and their workers too, has imported something of this package before.
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:  # the user's own word counts
    os.environ["GOMP_SPINCOUNT"] = "1000"
