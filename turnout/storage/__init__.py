"""A run's folder: storing, committing, keeping and reading back, all without knowing of sessions or controllers."""
