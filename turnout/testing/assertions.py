"""Explains a failed comparison on a rank as pytest does in its own process, with the options of the test session."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import pytest

__all__ = ["Comparing"]

_INI = ("assertion_text_diff_style", "truncation_limit_chars", "truncation_limit_lines")


@dataclass(frozen=True)
class Comparing:
    """A context manager, on a rank, around a test's body.

    Rewritten assertions ask one function for the explanation, which pytest sets for each of its own items.

    Args:
        verbosity: of assertions.
        ini: the settings that count.
    """

    verbosity: int
    ini: dict[str, Any]  # Any: as pytest reads them

    @classmethod
    def of(cls, config: pytest.Config) -> Self:
        """What a test session's configuration asks for."""
        ini = {}
        for name in _INI:
            try:
                ini[name] = config.getini(name)
            except ValueError:  # this pytest does not know it
                continue
        return cls(config.get_verbosity(pytest.Config.VERBOSITY_ASSERTIONS), ini)

    def __enter__(self) -> None:
        from _pytest.assertion import util

        util._reprcompare = self._explained

    def __exit__(self, *_: object) -> None:
        from _pytest.assertion import util

        util._reprcompare = None

    def _explained(self, op: str, left: object, right: object) -> str | None:
        from _pytest.assertion import pytest_assertrepr_compare

        config: Any = SimpleNamespace(
            get_verbosity=lambda kind=None: self.verbosity,
            getini=self.ini.get,
            pluginmanager=SimpleNamespace(has_plugin=lambda name: False),
            get_terminal_writer=lambda: SimpleNamespace(_highlight=lambda source, lexer="python": source),
        )
        try:
            lines = pytest_assertrepr_compare(config=config, op=op, left=left, right=right)
        except Exception:  # another pytest asks its configuration for more: the assertion is shown without
            return None
        # As pytest escapes them for what formats the whole assertion afterwards.
        return "\n~".join(line.replace("\n", "\\n") for line in lines).replace("%", "%%") if lines else None
