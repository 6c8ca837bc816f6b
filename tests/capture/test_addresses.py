"""Programs that talk by ZeroMQ, and by transports that an adapter shows."""

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from dpaudit.capture.recording import CaptureFolder
from dpaudit.capture.run import Options, capture
from dpaudit.errors import RunError

from .sheets import GUESTS

ADAPTER = """
MODULE = "courier"

def hook(courier, sent):
    own = courier.Courier.deliver
    def deliver(self, to, parcel):
        sent(self.number, [to], [parcel])
        return own(self, to, parcel)
    courier.Courier.deliver = deliver
"""
COURIER = """
class Courier:
    def __init__(self, number):
        self.number = number
    def deliver(self, to, parcel):
        print("to", to)
"""


def parts_by_link(recording: CaptureFolder) -> dict[tuple[int, int], list[str]]:
    """What was sent on each link, frame by frame, in hexadecimal digits."""
    found = defaultdict(list)
    for event in recording.events:
        for destination in event.destinations:
            for part in event.tensors:
                content = recording.content(part).numpy().tobytes().hex()
                found[event.source, destination].append(content)
    return found


def numbers_of(content: str) -> list[str]:
    """A message as it is recorded: of JSON, the numbers."""
    data = bytes.fromhex(content)
    if not data.startswith(b"{"):
        return [content]
    arrays = map(np.asarray, json.loads(data).values())
    return [array.tobytes().hex() for array in arrays]


ASKING = """
import multiprocessing as mp, socket, sys
import numpy as np, zmq

def serve(at):
    link = zmq.Context().socket(zmq.REP)
    link.bind(at)
    for _ in range(2):
        link.send_pyobj(2 * link.recv_pyobj())

def ask(at):
    link = zmq.Context().socket(zmq.REQ)
    link.connect(at)
    for k in range(2):
        link.send_pyobj(np.full(3, k + 1.0))
        link.recv_pyobj()

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    both = [mp.Process(target=one, args=(at,)) for one in (ask, serve)]
    for one in both:
        one.start()
    for one in both:
        one.join()
"""


def test_replies_of_a_server_are_messages_too(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    (tmp_path / "asking.py").write_text(ASKING)
    command = [sys.executable, str(tmp_path / "asking.py")]
    recording = capture(command, tmp_path / "out", Options(seconds=60))
    sent = {
        (e.source, *e.destinations, e.operator): recording.content(e.tensors[0]).tolist()
        for e in recording.events
    }  # the last one of each
    assert sent == {(0, 1, "zmq.REQ"): [2.0] * 3, (1, 0, "zmq.REP"): [4.0] * 3}
    assert (len(recording.events), recording.unseen) == (4, ())


def test_every_message_of_sockets_is_on_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zmq")
    monkeypatch.chdir(GUESTS)
    monkeypatch.setenv("SHEETS", str(tmp_path))
    recording = capture([sys.executable, "sockets.py"], tmp_path / "out", Options(seconds=60))
    got = defaultdict(list)
    for rank in range(3):
        for source, content in json.loads((tmp_path / f"rank-{rank}.json").read_text()):
            got[source, rank] += numbers_of(content)
    sent = parts_by_link(recording)
    ready = b"ready".hex()  # which nobody keeps
    assert {link: [c for c in listed if c != ready] for link, listed in sent.items()} == got
    assert {event.operator for event in recording.events} == {
        "zmq.PUSH",
        "zmq.ROUTER",
        "zmq.DEALER",
        "zmq.PUB",
    }
    assert all(event.call_site.startswith("sockets.py:") for event in recording.events)


def test_which_of_several_peers_got_a_message_is_not_guessed(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    code = (
        "import os, zmq\n"
        f"at = [f'ipc://{tmp_path}/{{i}}' for i in range(2)]\n"
        "for i in range(2):\n"
        "    if os.fork() == 0:\n"
        "        s = zmq.Context().socket(zmq.PULL); s.bind(at[i]); s.recv(); os._exit(0)\n"
        "s = zmq.Context().socket(zmq.PUSH)\n"
        "[s.connect(a) for a in at]; [s.send(b'x') for _ in range(2)]; os.wait(); os.wait()\n"
    )
    with pytest.raises(RunError, match=r"<string>:7: a zmq\.PUSH socket with several peers"):
        capture([sys.executable, "-c", code], tmp_path / "out", Options(seconds=30))


def test_an_adapter_shows_the_messages_of_another_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "adapter.py").write_text(ADAPTER)
    (tmp_path / "courier.py").write_text(COURIER)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.py").write_text(
        "from courier import Courier\nfor k in range(3):\n    Courier(1).deliver(0, bytes([k]))\n"
    )
    options = Options(seconds=30, transport=tmp_path / "adapter.py")
    recording = capture([sys.executable, "play.py"], tmp_path / "out", options)
    assert parts_by_link(recording) == {(1, 0): ["00", "01", "02"]}
    assert [event.round for event in recording.events] == [1, 2, 3]
    assert capfd.readouterr().out == "to 0\n" * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def hook(:", "line 1: invalid syntax"),
        ("MODULE = 'a'", "has no hook; expected MODULE"),
        ("def hook(a, b): pass", "has no MODULE"),
    ],
)
def test_an_adapter_that_is_none(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "adapter.py").write_text(text)
    with pytest.raises(RunError, match=said):
        capture(["true"], tmp_path / "out", Options(transport=tmp_path / "adapter.py"))
    with pytest.raises(RunError, match="No such file"):
        capture(["true"], tmp_path / "out", Options(transport=tmp_path / "none.py"))


TCP = """
import pickle
import zmq

class TCP:
    '''As decentralizepy's: dictionaries, which it pickles and sends by ZeroMQ.'''

    def __init__(self, uid):
        self.uid, self.context = uid, zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.peer = self.context.socket(zmq.DEALER)
        self.peer.connect(f"tcp://127.0.0.1:{port}")

    def send(self, uid, data, encrypt=True):
        self.peer.send(pickle.dumps(data) if encrypt else data)
        self.router.recv_multipart()
"""
FRAMEWORK = """
import numpy as np
from decentralizepy.communication.TCP import TCP
node = TCP(0)
node.send(1, b"HELLO", encrypt=False)
node.send(1, {"params": np.array([1.5, 2.5], np.float32), "degree": 2, "iteration": 0})
node.send(1, {"BYE": 0, "CHANNEL": "DISCONNECT"})
"""


@pytest.mark.slow
def test_the_adapter_of_the_page_shows_the_program_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message once, the model's as numbers, though ZeroMQ carries it too."""
    pytest.importorskip("zmq")
    page = (Path(__file__).parents[2] / "docs" / "own-script.md").read_text()
    section = page.partition("## Another transport")[2].partition("\n## ")[0]
    code = [line[4:] for line in section.splitlines() if line.startswith("    ") or not line]
    (tmp_path / "adapter.py").write_text("\n".join(code))
    package = tmp_path / "decentralizepy" / "communication"
    package.mkdir(parents=True)
    (package / "TCP.py").write_text(TCP)
    (tmp_path / "node.py").write_text(FRAMEWORK)
    monkeypatch.chdir(tmp_path)
    options = Options(seconds=60, transport=tmp_path / "adapter.py")
    recording = capture([sys.executable, "node.py"], tmp_path / "out", options)
    events = recording.events
    assert [(e.source, e.destinations) for e in events] == [(0, (1,))] * 3
    assert recording.content(events[0].tensors[0]).numpy().tobytes() == b"HELLO"
    assert recording.content(events[1].tensors[0]).tolist() == [1.5, 2.5]
    assert events[2].tensors[0].dtype == "uint8"
