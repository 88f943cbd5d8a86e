"""The process track: ranks on this machine, forked in milliseconds from a server that is warm.

The driver starts `server` once, as a fresh interpreter, and asks it (`client`) to fork ranks; what a rank does between
the fork and the train function is in `rank`. `controller` puts it together.
"""

from turnout.controllers.process.controller import ProcessController

__all__ = ["ProcessController"]
