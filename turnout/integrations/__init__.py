"""Integrations: what a train function uses of a framework inside its loop."""
