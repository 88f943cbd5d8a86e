"""The checks that configuration classes make of their fields: each says field, value and remedy in one sentence."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

from turnout.errors import UsageError

__all__ = [
    "check_choice",
    "check_file_name",
    "check_filesystem",
    "check_integer",
    "check_json",
    "check_mapping",
    "check_number",
    "check_text",
    "refused",
]


def refused(field: str, value: object, remedy: str) -> UsageError:
    """The error for a field that cannot be meant: ``field=value: remedy``."""
    return UsageError(f"{field}={value!r}: {remedy}")


def check_integer(field: str, value: Any, *, at_least: int, remedy: str) -> int:
    """Return ``value`` as an int of at least ``at_least``; True and 2.0 are no integers here."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < at_least:
        raise refused(field, value, remedy)
    return number


def check_number(
    field: str, value: Any, *, above: float | None = None, at_least: float | None = None, unit: str
) -> float:
    """Return ``value`` as a finite float within the bound."""
    bound = f"above {above:g}" if above is not None else f"of at least {at_least:g}"
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if (
        not math.isfinite(number)
        or (above is not None and number <= above)
        or (at_least is not None and number < at_least)
    ):
        raise refused(field, value, f"takes a number of {unit} {bound}")
    return number


def check_choice(field: str, value: Any, choices: Collection[str]) -> None:
    """Refuse a value that is none of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise refused(field, value, "takes one of " + ", ".join(repr(choice) for choice in choices))


def check_text(field: str, value: Any, meaning: str) -> None:
    """Refuse what is no text, or blank."""
    if not isinstance(value, str) or not value.strip():
        raise refused(field, value, f"takes {meaning}, as text that is not blank")


def check_mapping(field: str, value: Any, meaning: str) -> None:
    """Refuse what is no dict with text as keys."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise refused(field, value, f"takes a dict from names to values: {meaning}")


def check_filesystem(field: str, value: Any) -> None:
    """Refuse what is no filesystem of pyarrow's or fsspec's, by what it can do: neither is imported for this."""
    is_arrow = hasattr(value, "open_output_stream") and hasattr(value, "get_file_info")
    if isinstance(value, type) or not (is_arrow or (hasattr(value, "open") and hasattr(value, "info"))):
        raise refused(field, value, "takes a pyarrow.fs.FileSystem or an fsspec filesystem")


def check_json(field: str, value: Any, meaning: str) -> str:
    """Refuse what is no dict that JSON can hold; returns it as JSON."""
    import json

    check_mapping(field, value, meaning)
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise refused(field, value, f"JSON cannot hold it: {error}") from error


def check_file_name(field: str, value: Any, meaning: str) -> None:
    """Refuse what is no plain name of one folder: what would leave the folder that it is meant to stand in."""
    if (
        not isinstance(value, str)
        or value.strip() != value
        or value in ("", ".", "..")
        or any(character in value for character in "/\\\0")
        or not value.isprintable()
        or len(value.encode()) > 255
    ):
        raise refused(
            field,
            value,
            f"{meaning} is one folder's plain name: not blank, without slashes or control characters, "
            "not '.' or '..', at most 255 bytes",
        )
