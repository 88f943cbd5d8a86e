"""For tests of train functions, and of Turnout itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Belongings", "Fault", "LeakError", "Track", "armed", "per_rank", "police"]

if TYPE_CHECKING:
    from turnout.testing.faults import Fault, armed
    from turnout.testing.leaks import Belongings, LeakError, police
    from turnout.testing.ranks import per_rank
    from turnout.testing.tracks import Track
else:
    _HOMES = {
        "Belongings": "leaks",
        "Fault": "faults",
        "LeakError": "leaks",
        "Track": "tracks",
        "armed": "faults",
        "per_rank": "ranks",
        "police": "leaks",
    }

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: every pytest that finds Turnout installed imports this package."""
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
