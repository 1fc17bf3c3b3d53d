"""Pieces of a message that can be told by their form alone: quoted texts, identifiers, numbers, dates, addresses."""

from __future__ import annotations

import re

IDENTIFIER = re.compile(
    r"#\d{1,48}|(?<![A-Za-z0-9_.-])[A-Za-z]{1,8}[-_]?\d[A-Za-z0-9_-]{0,48}|(?<![A-Za-z0-9_.-])\d{2,48}(?!\d|\.\d)"
)
"""`A-1001`, `T7`, `#123`, `20260001`."""
NUMBER = re.compile(r"(?<![A-Za-z0-9_.-])-?\d{1,15}(?:\.\d{1,9})?(?![A-Za-z0-9_-]|\.\d)")
DATE = re.compile(r"(?<!\d)\d{4}-\d{2}-\d{2}(?!\d)")
EMAIL = re.compile(r"[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,4}")

QUOTED = re.compile(
    r"\"([^\"\n]{1,2000})\"|“([^”\n]{1,2000})”|「([^」\n]{1,2000})」|《([^》\n]{1,2000})》"
    r"|(?<!\w)'([^'\n]{1,2000})'(?!\w)"
)


def quoted(text: str) -> list[str]:
    """What stands in quotation marks, in order."""
    return [next(group for group in match.groups() if group) for match in QUOTED.finditer(text)]
