"""Trainers: from the user's arguments to a run."""
