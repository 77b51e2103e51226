"""Machinery shared by every room of the house; knows no concrete model, data set or norm."""
