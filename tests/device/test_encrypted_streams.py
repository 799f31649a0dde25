"""A worker that is reached over a network speaks TLS, and its clients speak with no other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from behind_proxy import Served, outcome, served
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from forebay_admin.certificates.folder import CertificateFolder
from forebay_edge.doors import Door, DoorClosed
from forebay_wire import stream
from processes import own_address

pytestmark = pytest.mark.skipif(not own_address(), reason="this host has the loopback interface alone")
OTHER = "0f" * 32
WAIT_SECONDS = 30


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, host=own_address()) as found:
        yield found


def failure_of(program: subprocess.Popen[str]) -> str:
    """The last line that a program says which fails."""
    _, said = program.communicate(timeout=WAIT_SECONDS)
    assert program.returncode == 1
    return said.strip().splitlines()[-1]


def door_of(worker: Served) -> tuple[str, int]:
    host, port = worker.address.removeprefix("tcp:").rsplit(":", 1)
    return host, int(port)


def say_hello(peer: socket.socket, ticket: str) -> stream.Reply:
    writer = stream.CommandWriter()
    writer.add(stream.Hello(bytes.fromhex(ticket), "2.13.0"))
    peer.sendall(stream.frame(writer.take()))
    return stream.decode_reply(stream.read_frame(peer) or b"")


def encrypted(worker: Served) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(door_of(worker), timeout=WAIT_SECONDS))


def test_a_worker_shows_the_certificate_that_it_told_of_by_tls_1_3(worker: Served) -> None:
    with encrypted(worker) as peer:
        assert peer.version() == "TLSv1.3"
        assert hashlib.sha256(peer.getpeercert(binary_form=True) or b"").hexdigest() == worker.certificate
        assert isinstance(say_hello(peer, worker.ticket), stream.Welcome)


def test_each_worker_has_a_certificate_of_its_own(tmp_path: Path, worker: Served) -> None:
    with served(tmp_path, host=own_address()) as other:
        assert other.certificate != worker.certificate


def test_a_worker_on_the_loopback_interface_speaks_in_clear(tmp_path: Path) -> None:
    with served(tmp_path) as local, socket.create_connection(door_of(local), timeout=WAIT_SECONDS) as peer:
        assert local.certificate == ""
        assert isinstance(say_hello(peer, local.ticket), stream.Welcome)


def test_who_speaks_no_tls_is_refused_in_one_sentence(worker: Served) -> None:
    with socket.create_connection(door_of(worker), timeout=WAIT_SECONDS) as peer:
        answer = say_hello(peer, worker.ticket)
    assert isinstance(answer, stream.Refused)
    assert answer.message == "this worker is reached by TLS alone; install the same release on both sides"
    said = failure_of(worker.program("steps", 1, worker.address, certificate=""))
    assert said.endswith(f"the worker refused the virtual device: {answer.message}")
    with encrypted(worker) as peer:
        assert isinstance(say_hello(peer, worker.ticket), stream.Welcome), "that was its client's"


def test_a_worker_that_may_be_reached_in_clear_is_reached_either_way(tmp_path: Path) -> None:
    with served(tmp_path, host=own_address(), more=("--plaintext",)) as both:
        expected = outcome(both.program("steps", 3, both.address))
    with served(tmp_path, host=own_address(), more=("--plaintext",)) as both:
        assert outcome(both.program("steps", 3, both.address, certificate=""))["found"] == expected["found"]


def test_an_edge_speaks_with_no_other_than_the_worker_that_it_was_told_of(worker: Served) -> None:
    async def scenario() -> None:
        with pytest.raises(DoorClosed, match="another certificate"):
            await Door(worker.address, OTHER).open()
        reader, writer = await Door(worker.address, worker.certificate).open()
        commands = stream.CommandWriter()
        commands.add(stream.Hello(bytes.fromhex(worker.ticket), "2.13.0"))
        writer.write(stream.frame(commands.take()))
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), WAIT_SECONDS), "little")
        assert isinstance(stream.decode_reply(await reader.readexactly(size)), stream.Welcome)
        writer.transport.abort()
        await writer.wait_closed()

    asyncio.run(scenario())


def test_a_client_speaks_with_no_other_than_the_worker_that_it_was_told_of(worker: Served) -> None:
    said = failure_of(worker.program("steps", 1, worker.address, certificate=OTHER))
    assert said == (
        f"RuntimeError: the worker at {worker.address} is not trusted:"
        " it shows another certificate than the pool told of: another program answers in its place"
    )


def test_a_client_does_not_speak_in_clear_where_it_was_told_of_a_certificate(tmp_path: Path) -> None:
    with served(tmp_path) as local:
        said = failure_of(local.program("steps", 1, local.address, certificate=OTHER))
    assert said.startswith(f"RuntimeError: the worker at {local.address} is not trusted: the other side speaks no TLS 1.3")


@pytest.mark.parametrize("trusted", [False, True])
def test_who_answers_in_a_workers_place_hears_the_ticket_only_if_its_certificate_was_told_of(
    tmp_path: Path, worker: Served, trusted: bool
) -> None:
    folder = CertificateFolder(tmp_path / "certificates")
    folder.make_authority("tests")
    folder.issue("middle", ["127.0.0.1"], 90)
    certificate = tmp_path / "certificates" / "middle.crt"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    own = x509.load_pem_x509_certificate(certificate.read_bytes()).fingerprint(hashes.SHA256()).hex()
    heard: list[bytes] = []

    def listen(door: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(door.accept()[0], server_side=True) as peer:
            heard.append(peer.recv(4096))
            peer.sendall(stream.frame(stream.encode_reply(stream.Refused("heard"))))

    with socket.create_server(("127.0.0.1", 0)) as door:
        listening = threading.Thread(target=listen, args=(door,))
        listening.start()
        address = f"tcp:127.0.0.1:{door.getsockname()[1]}"
        said = failure_of(worker.program("steps", 1, address, certificate=own if trusted else None))
        listening.join(WAIT_SECONDS)
    assert ("another program answers in its place" in said) != trusted
    assert [bytes.fromhex(worker.ticket) in one for one in heard] == ([True] if trusted else [])
