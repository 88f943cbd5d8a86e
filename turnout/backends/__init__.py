"""Backends: each sets up one framework's process group on the ranks of a run."""
