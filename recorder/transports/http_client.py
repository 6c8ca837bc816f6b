"""HTTP, seen at the client: urllib, requests and urllib3 all pass ``http.client``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .decoding import contents_in, tell_head
from .sockets import channel_of, note_end

if TYPE_CHECKING:
    from .channels import Channels

_OURS = "_dpaudit_sent"  # attribute of a connection: what its headers do not say
_REPLY = "_dpaudit_reply"  # attribute of a response: what was read, its channel and its line


def hook_http(client: Any, channels: Channels) -> None:
    """See bodies of requests when the program waits for the reply, and those of replies."""
    kind, reply = client.HTTPConnection, client.HTTPResponse
    send, output, response = kind.send, kind._send_output, kind.getresponse

    @functools.wraps(output)
    def begun(self: Any, *given: Any, **named: Any) -> Any:
        setattr(self, _OURS, None)  # the first that is sent now are the headers
        return output(self, *given, **named)

    @functools.wraps(send)
    def sent(self: Any, data: Any) -> Any:
        with channels.within():
            result = send(self, data)
        if getattr(self, _OURS, None) is None:
            setattr(self, _OURS, bytearray())
            tell_head(bytes(data).decode("latin1").split("\r\n"))
        elif isinstance(data, (bytes, bytearray, memoryview)):
            getattr(self, _OURS).extend(data)
        else:
            channels.unseen("bodies of HTTP that are files or iterables are not recorded")
        return result

    @functools.wraps(response)
    def answered(self: Any, *given: Any, **named: Any) -> Any:
        channel, body = channel_of(self.sock), bytes(getattr(self, _OURS, None) or b"")
        method, site = getattr(self, "_method", "") or "", channels.site()
        if channel is not None:
            note_end(self.sock, channels)
            if body:
                channels.posted(f"http.{method}", channel, contents_in(body), site)
        with channels.within():
            result = response(self, *given, **named)
        setattr(result, _REPLY, (bytearray(), channel, site, f"http.{method}.reply"))
        return result

    kind._send_output, kind.send, kind.getresponse = begun, sent, answered
    _hook_reply(reply, channels)


def _hook_reply(reply: Any, channels: Channels) -> None:
    """A reply is whole when its end was read."""

    def reading(own: Any, fills: bool) -> Any:
        @functools.wraps(own)
        def read(self: Any, *given: Any, **named: Any) -> Any:
            with channels.within() as outermost:
                result = own(self, *given, **named)
            if outermost and hasattr(self, _REPLY):
                data = memoryview(given[0])[:result] if fills else result
                getattr(self, _REPLY)[0].extend(data or b"")
                if self.isclosed():
                    finish(self)
            return result

        return read

    def finish(self: Any) -> None:
        found = self.__dict__.pop(_REPLY, None)
        if found is not None and found[0] and found[1] is not None:
            body, channel, site, operator = found
            channels.posted(operator, channel, contents_in(bytes(body)), site, back=True)

    for name, fills in (("read", False), ("read1", False), ("readinto", True)):
        setattr(reply, name, reading(getattr(reply, name), fills))
