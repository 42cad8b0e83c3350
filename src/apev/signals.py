"""Ctrl-C and SIGTERM: acknowledged at once, obeyed where nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):  # noqa: N818 (not an error: the user asked for it)
    """A signal arrived where nothing is lost by leaving at once."""


class Stop:
    """Whether somebody asked the training to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._leave = False  # at the next signal, by an exception

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within it a signal raises `Stopped` wherever the program is."""
        self._leave = True
        try:
            yield
        finally:
            self._leave = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The first signal is acknowledged at once and obeyed after the update; a second one stops without saving."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        how = ", again: stop without saving" if number == signal.SIGINT else ""
        os.write(2, f"\n{signal.Signals(number).name}: saving and stopping{how}\n".encode())  # rich may be in mid-line
        if self._leave:
            raise Stopped


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM (what a scheduler sends) ask the loop to save and stop."""
    stop = Stop()
    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, stop.handle)
    except ValueError:  # not the main thread: the caller deals with signals
        pass
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
