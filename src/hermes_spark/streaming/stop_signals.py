"""SIGTERM and SIGINT, as a question that the query asks."""

from __future__ import annotations

import os
import signal


class StopSignals:
    """SIGTERM and SIGINT ask the query to drain and stop; a second one ends the process at once."""

    def __init__(self) -> None:
        self._asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def __call__(self) -> bool:
        """Whether somebody has asked."""
        return self._asked

    def _ask(self, number: int, frame: object) -> None:
        if self._asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._asked = True
