"""Continual data sets, one file each."""
