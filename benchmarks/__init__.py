"""Turnout's speed, as ratios against a named peer and a named floor: `make bench`."""
