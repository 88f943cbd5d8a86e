"""Turnout under the names of other packages."""
