"""Fixtures of all tests: the police, and a clean environment."""

from __future__ import annotations

from turnout.testing.surroundings import nothing_left_behind, own_environment

__all__ = ["nothing_left_behind", "own_environment"]
