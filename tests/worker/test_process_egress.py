"""What users' processes are let out to: listed places alone, by a proxy, and never an address of the host's or of a private network."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import fork_server
import pytest
from forebay_wire.remote import places
from forebay_worker.remote import tunnel
from forebay_worker.remote.egress import Refused, place_in, why_not

HERE = Path(__file__).parent
MIB = 2**20
BOUNDS = {"memory_bytes": 512 * MIB, "processes": 40, "files_bytes": 64 * MIB}
PATIENCE_SECONDS = 60
HOSTS = """127.0.0.1 localhost inside.example
93.184.216.34 listed.example other.example below.listed.example
10.9.8.7 rebound.example
169.254.169.254 metadata.example
"""
IN_NETWORK = """
ip link set lo up
for address in 93.184.216.34 10.9.8.7 169.254.169.254; do ip addr add $address/32 dev lo; done
mount --bind "$1" /etc/hosts
shift
exec "$@"
"""
"""A host of the test's own, at these addresses and with these names."""
ECHO = """
import json, socket, subprocess, sys, threading
def serve(connection):
    while piece := connection.recv(65536): connection.sendall(piece)
    connection.close()
def accept(listening):
    while True: threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
listening = socket.create_server(("0.0.0.0", 0)); port = listening.getsockname()[1]
threading.Thread(target=accept, args=(listening,), daemon=True).start()
command = [word.replace("@PORT@", str(port)) for word in sys.argv[1:]]
done = subprocess.run(command, capture_output=True, text=True); sys.stdout.write(done.stdout); sys.stderr.write(done.stderr)
"""
LISTED = ("listed", "rebound", "metadata", "inside", "gone")
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("bwrap") is None, reason="it needs root's rights, `ip` and bubblewrap"
)


def within(tmp_path: Path, *arguments: str, listed: tuple[str, ...] = LISTED) -> dict[str, object]:
    """How a program ends in a sandbox with these places, on a host with an echo."""
    (tmp_path / "hosts").write_text(HOSTS)
    bounds = BOUNDS | {"egress": [*(f"{name}.example:@PORT@" for name in listed), "10.9.8.7:@PORT@"]}
    python = str(fork_server.services())
    inside = [python, str(HERE / "sandboxed_program.py"), json.dumps(bounds), "--", *arguments]
    command = ["unshare", "--net", "--mount", "sh", "-euc", IN_NETWORK, "sh", str(tmp_path / "hosts"), python, "-c", ECHO, *inside]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stdout, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    assert not told.pop("left"), "the scratch is still there"
    return told


@as_root
def test_a_process_reaches_what_is_listed_and_nothing_else(tmp_path: Path) -> None:
    told = within(tmp_path, "python", "-c", (HERE / "egress_attempts.py").read_text(), "@PORT@")
    assert told["status"] == 0, told
    attempts = json.loads(str(told["output"]))
    reached = {name for name, said in attempts.items() if said == "reached"}
    assert reached == {"a listed name", "a listed name in capitals", "a listed private address", "the socket of the proxy"}, attempts
    assert attempts.pop("children") == "none"
    said = {name: said.split()[0] for name, said in attempts.items() if name not in reached}
    past = {name for name, code in said.items() if code == "failed:"}
    assert past == {"a connection past the proxy", "the host past the proxy", "the metadata address past the proxy"}, attempts
    codes = {"a page": "405", "two lines": "405", "a head without an end": "400", "a listed name that leads to nobody": "502"}
    codes["a listed name with a zero byte"] = "405"
    assert {name: code for name, code in said.items() if code != "403"} == {**codes, **dict.fromkeys(past, "failed:")}
    inward = attempts["a listed name that leads into a private network"]
    assert inward == "403 rebound.example leads to 10.9.8.7, which is in a private network."
    assert "where clouds tell hosts their credentials" in attempts["a listed name that leads to the metadata address"]
    assert "is none of the places that processes may reach here: 10.9.8.7:" in attempts["another name"]


@as_root
def test_a_command_is_started_as_without_a_proxy(tmp_path: Path) -> None:
    assert within(tmp_path, "sh", "-c", "exit 7")["status"] == 7
    missing = within(tmp_path, "no-such-command")
    assert (missing["status"], missing["errors"]) == (127, "no-such-command: No such file or directory\n")
    killed = within(tmp_path, "sh", "-c", "kill -TERM $$")
    assert killed["status"] == 128 + 15
    read = within(tmp_path, "python", "-c", "import os, sys; print(sys.stdin.read() == '', len(os.listdir('/proc/self/fd')))")
    assert (read["status"], read["output"]) == (0, "True 4\n")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("pypi.org:443", "pypi.org:443"), (" PyPI.org:0443 ", "pypi.org:443"), ("10.0.0.1:8443", "10.0.0.1:8443"),
        ("[2606:4700:0:0::1]:443", "[2606:4700::1]:443"), ("[::ffff:9.9.9.9]:443", "9.9.9.9:443"),
        ("xn--bcher-kva.example:1", "xn--bcher-kva.example:1"),
    ],
)  # fmt: skip
def test_a_place_has_one_form(written: str, kept: str) -> None:
    assert places.place(written) == kept == places.place(kept)


@pytest.mark.parametrize(
    "wrong",
    [
        "", ":443", "pypi.org", "pypi.org:", "pypi.org:0", "pypi.org:65536", "pypi.org:-1", "*.pypi.org:443", "https://pypi.org:443",
        "a b:443", "pypi.org.:443", "-a.org:443", "a" * 64 + ".org:443", "a." * 130 + "org:443", "[]:443", "[pypi.org]:443", "1.2.3:443",
        "2130706433:443", "127.0.0.1:443", "[::1]:443", "0.0.0.0:443", "169.254.169.254:80", "169.254.1.1:80", "[fe80::1]:443",
        "[::ffff:169.254.169.254]:80", "[fd00:ec2::254]:80", "168.63.129.16:80", "224.0.0.1:443", "pypi.org:443\n", "pypi.org:４４３",  # noqa: RUF001
    ],
)  # fmt: skip
def test_what_is_no_place_or_leads_to_nobody_is_refused_as_it_is_set(wrong: str) -> None:
    if wrong == "pypi.org:443\n":
        assert places.place(wrong) == "pypi.org:443"
        return
    with pytest.raises(ValueError, match=r"is no place: |processes are never let out to "):
        places.place(wrong)


@pytest.mark.parametrize(
    "address",
    [
        *map(str, places.METADATA), "169.254.0.1", "fe80::1", "fe80::1%eth0", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::",  # noqa: S104
        "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12::1", "fc00::1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "2001:0:1:2:3:4:5:6", "224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255",
        "192.0.2.1", "nonsense",
    ],
)  # fmt: skip
def test_a_name_leads_to_no_address_of_a_private_network_or_of_the_host(address: str) -> None:
    assert why_not(address, "listed.example")


def test_a_private_address_that_is_listed_itself_is_gone_to_and_a_public_one_is() -> None:
    assert not why_not("10.0.0.1", "10.0.0.1") and not why_not("fd12::1", "[fd12::1]")
    assert why_not("10.0.0.2", "10.0.0.1") and why_not("169.254.169.254", "169.254.169.254") and why_not("127.0.0.1", "127.0.0.1")
    assert not any(why_not(one, "listed.example") for one in ("9.9.9.9", "2606:4700::1", "::ffff:9.9.9.9"))
    assert ipaddress.ip_address("9.9.9.9").is_global


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"CONNECT pypi.org:443 HTTP/1.1", ""), (b"CONNECT PYPI.ORG:443 HTTP/1.0", ""), (b"CONNECT pypi.org:80 HTTP/1.1", "403 Forbidden"),
        (b"GET https://pypi.org/ HTTP/1.1", "405 Method Not Allowed"), (b"CONNECT pypi.org:443", "405 Method Not Allowed"),
        (b"CONNECT pypi.org:443 HTTP/2", "405 Method Not Allowed"), (b"connect pypi.org:443 HTTP/1.1", "405 Method Not Allowed"),
        (b"CONNECT  pypi.org:443 HTTP/1.1", "405 Method Not Allowed"), (b"", "405 Method Not Allowed"),
        (b"\xff" * 400, "405 Method Not Allowed"),
        (b"CONNECT " + b"a" * 301 + b":443 HTTP/1.1", "405 Method Not Allowed"), (b"CONNECT pypi.org:443:443 HTTP/1.1", "403 Forbidden"),
    ],
)  # fmt: skip
def test_a_request_is_for_a_listed_place_or_refused(request_line: bytes, status: str) -> None:
    if not status:
        assert place_in(request_line, {"pypi.org:443"}) == "pypi.org:443"
        return
    with pytest.raises(Refused) as refused:
        place_in(request_line, {"pypi.org:443"})
    assert refused.value.status == status


def test_all_that_was_sent_arrives_at_a_reader_that_takes_its_time(tmp_path: Path) -> None:
    """The kernel holds some 200 KiB of a local connection, and the tunnel up to 64 KiB more, when the speaker has closed its end."""
    pieces = [bytes(range(256)) * 256 * count for count in (1, 3, 4, 5, 40)]

    async def scenario() -> list[int]:
        said = iter(pieces)

        async def says(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(next(said))
            writer.close()

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await tunnel.join((reader, writer), await asyncio.open_unix_connection(tmp_path / "speaker"))

        def hears() -> int:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(tmp_path / "front"))
                connection.shutdown(socket.SHUT_WR)
                time.sleep(0.2)
                return len(connection.makefile("rb").read())

        async with await asyncio.start_unix_server(says, tmp_path / "speaker"), await asyncio.start_unix_server(carry, tmp_path / "front"):
            return [await asyncio.to_thread(hears) for _ in pieces]

    assert asyncio.run(scenario()) == [len(piece) for piece in pieces]
