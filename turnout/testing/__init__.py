"""For tests of train functions, and of Turnout itself."""

from turnout.testing.police import Belongings, LeakError, police

__all__ = ["Belongings", "LeakError", "police"]
