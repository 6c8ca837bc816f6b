"""Messages on channels whose other end is found when all processes have written down theirs.

A channel has a name that both of its ends know: the number of a pipe, or the addresses of a
connection. Who reads from a channel says so, and is who messages on it are for.
"""

from __future__ import annotations

import threading
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .decoding import OF_LENGTHS, contents_in, is_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..log import Content, Log, Sites


class Channels:
    """Writes what passes on the channels of one process."""

    def __init__(self, log: Log, sites: Sites) -> None:
        self._log, self._sites = log, sites
        self._thread = threading.local()
        self._lengths: dict[str, tuple[int, bytes]] = {}  # channel -> a short message on it

    @contextmanager
    def within(self) -> Iterator[bool]:
        """Whether a call is the outermost one: libraries send through each other."""
        outermost = not getattr(self._thread, "is_within", False)
        self._thread.is_within = True
        try:
            yield outermost
        finally:
            if outermost:
                self._thread.is_within = False

    def site(self) -> str:
        return self._sites.here()

    def site_of(self, function: Any) -> str:
        """The line at which a function begins."""
        return self._sites.of(function)

    def begun(self, operator: str, site: str | None = None) -> dict[str, Any]:
        """How the record of a message begins, whose contents may come later."""
        site = self.site() if site is None else site
        return self._log.begun("posted", operator, site, (operator, site))

    def posted(
        self,
        operator: str,
        channel: str,
        contents: Sequence[Content],
        site: str | None = None,
        crc32: int | None = None,
        back: bool = False,
        begun: dict[str, Any] | None = None,
        framed: int | None = None,
    ) -> int:
        """A message; its sequence number.

        Args:
            crc32: by which it is found among what several processes have read.
            back: it came from the other end, which may have recorded it too.
            begun: its record, if it began earlier.
            framed: the number of an earlier message that is no more than the length of this one.
        """
        with self._log.lock:
            about = self.begun(operator, site) if begun is None else begun
            about.update(group="transport", number=None, tag=None)
            about.update({} if framed is None else {"framed": framed})
            self._log.write({**about, "channel": channel, "crc32": crc32, "back": back}, contents)
            return int(about["sequence"])

    def posted_bytes(self, channel: str, data: bytes, begun: dict[str, Any] | None = None) -> None:
        """Bytes of a connection, before which a program may send their length alone."""
        with self._log.lock:
            number, before = self._lengths.pop(channel, (None, b""))
            framed = number if is_length(before, len(data)) else None
            number = self.posted("socket", channel, contents_in(data), framed=framed, begun=begun)
            if len(data) in OF_LENGTHS:
                self._lengths[channel] = number, data

    def took(self, channel: str, data: Any = None) -> None:
        """This process reads from a channel; ``data``: what it has read, a message."""
        crc32 = None if data is None else zlib.crc32(data)
        if crc32 is not None or not self._log.count(("took", channel)):
            self._log.write({"kind": "took", "channel": channel, "crc32": crc32})

    def paired(self, one: str, other: str) -> None:
        """What is written to one of two channels is read from the other."""
        self._log.write({"kind": "paired", "channels": [one, other]})

    def passed(self, channel: str, to: str) -> None:
        """Who reads from the channel ``to`` is handed what is on the first one, too."""
        self._log.write({"kind": "passed", "channel": channel, "to": to})

    def unseen(self, text: str) -> None:
        self._log.unseen(text)
