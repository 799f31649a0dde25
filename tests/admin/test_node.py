"""``forebay node``: what it checks, writes, keeps and refuses.

That its units work, between hosts, is shown by ``tests/acceptance/test_more_hosts.py``.
"""

from __future__ import annotations

import email.utils
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.x509 import ExtendedKeyUsage, load_pem_x509_certificate
from forebay.toolkit.command import main
from forebay_admin.certificates.signing import is_of, new_authority, new_node, new_server
from forebay_admin.node import checks, join
from forebay_admin.node import invitation as invitations
from forebay_admin.node.checks import Devices
from forebay_admin.node.invitation import Invitation, NodeError, Releases
from forebay_admin.node.view import standing
from forebay_pool.settings import Settings as PoolSettings
from forebay_service.errors import SettingsError

ADDRESS, HEAD = "10.93.0.2", "10.93.0.1"
EXPOSURE_MAX = 2.7
"""Of ``systemd-analyze security``, as the pool's unit."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A control host that is a head."""
    (tmp_path / "answers.toml").write_text('name = "gpu.example.org"\ndevices = "cpu"\nport = 8443\n')
    root = tmp_path / "control"
    assert main(["admin", "init", "--root", str(root), "--answers", str(tmp_path / "answers.toml")]) == 0
    assert main(["node", "head", "--root", str(root), HEAD]) == 0
    return root


@pytest.fixture
def invitation(root: Path) -> Invitation:
    file = root.parent / "gpu-1.toml"
    assert main(["node", "invite", "--root", str(root), "gpu-1", ADDRESS, "--cpu", "--switch", "rack-2", "--out", str(file)]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return invitations.read(file)


def test_an_invitation_tells_who_leads_and_the_releases_and_is_read_as_it_was_written(root: Path, invitation: Invitation) -> None:
    assert (invitation.head, invitation.pool) == (f"{HEAD}:6379", "https://gpu.example.org:8443/services/pool/")
    assert (invitation.devices, invitation.switch, invitation.releases) == ("cpu", "rack-2", Releases.here())
    file = root.parent / "again.toml"
    file.write_text(invitation.toml)
    assert invitations.read(file) == invitation
    file.write_text(invitation.toml.replace("switch =", "swatch ="))
    with pytest.raises(NodeError, match="is no invitation of this release"):
        invitations.read(file)


def test_a_pool_on_ray_starts_no_worker_here_and_keeps_no_capability(root: Path) -> None:
    lines = (root / "etc/systemd/system/forebay-pool.service.d/ray.conf").read_text().splitlines()
    began = lines.index("ExecStart=")
    assert " -m forebay_pool --config " in lines[began + 1] and "forebay_service.account" not in lines[began + 1]
    assert {"CapabilityBoundingSet=", "RestrictNamespaces=yes"} <= set(lines)


def test_the_head_gives_a_host_up_that_answers_nothing_after_about_half_a_minute(root: Path) -> None:
    unit = (root / "etc/systemd/system/forebay-ray.service").read_text()
    names = ("period_ms", "timeout_ms", "failure_threshold")
    period_ms, timeout_ms, times = (int(re.findall(rf"RAY_health_check_{name}=(\d+)", unit)[0]) for name in names)
    assert 25_000 < times * (period_ms + timeout_ms) < 35_000


def test_the_pool_of_a_head_reaches_workers_on_other_hosts_and_one_alone_does_not_start_so(root: Path) -> None:
    """Without what the head writes the pool refuses: nobody would have said that the network is closed to others."""
    settings, variables = tmp_settings(root), root / "etc" / "forebay" / "secrets" / "pool.env"
    told = dict(line.replace("'", "").split("=", 1) for line in variables.read_text().splitlines())
    assert PoolSettings.load(settings, told).plaintext
    with pytest.raises(SettingsError, match="set plaintext = true"):
        PoolSettings.load(settings, {name: value for name, value in told.items() if name != "FOREBAY_POOL_PLAINTEXT"})
    assert main(["admin", "init", "--root", str(root)]) == 0, "init writes the same"


def test_an_upgrade_says_for_a_cluster_of_before_what_its_release_could_not_say(root: Path) -> None:
    settings, variables = tmp_settings(root), root / "etc" / "forebay" / "secrets" / "pool.env"
    (root / "etc/systemd/system/forebay-pool.service.d/ray.conf").unlink()
    for more, told in (("", True), ("plaintext = false\n", False), ("plaintext = true\n", False)):
        settings.write_text(more + settings.read_text().removeprefix("plaintext = false\n"))
        assert main(["admin", "init", "--force", "--root", str(root)]) == 0
        assert ("FOREBAY_POOL_PLAINTEXT='true'" in variables.read_text()) == told


def tmp_settings(root: Path) -> Path:
    """Those of the pool, with what `forebay node head` says."""
    file = root / "etc" / "forebay" / "pool.toml"
    file.write_text(f'launcher = "ray"\nray_address = "{HEAD}:6379"\n{file.read_text()}')
    return file


def test_a_second_head_changes_nothing_and_a_host_without_one_invites_nobody(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["node", "head", "--root", str(root), HEAD]) == 0
    assert capsys.readouterr().out.startswith("7 files are as they should be.\n")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    (root / "etc/forebay/tls/nodes-ca.key").unlink()
    assert main(["node", "invite", "--root", str(root), "gpu-1", ADDRESS]) == 1
    assert "This host is no cluster's head" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "address"), [("gpu 1", ADDRESS), ("gpu-1", "gpu-1.example.org"), ("gpu-1", "127.0.0.1"), ("-", ADDRESS)])
def test_names_that_are_no_labels_and_addresses_that_nobody_reaches_are_refused(root: Path, name: str, address: str) -> None:
    out = root.parent / "refused.toml"
    assert main(["node", "invite", "--root", str(root), "--out", str(out), "--", name, address]) == 1
    assert not out.exists()


def test_a_node_s_files_say_its_labels_and_keep_its_key_from_others(root: Path, invitation: Invitation) -> None:
    layout = join.Layout(root.parent / "node")
    planned = {str(file.path.relative_to(layout.root)): file for file in join.files(invitation, layout, Devices("cuda", "H100", 2**36, 8))}
    unit = planned["etc/systemd/system/forebay-node.service"].content.decode()
    release = Releases.here().forebay
    labels = f"forebay.io/node=gpu-1,forebay.io/model=H100,forebay.io/switch=rack-2,forebay.io/release={release}"
    assert f"--labels={labels} --num-gpus=8" in unit
    assert f"--address={HEAD}:6379" in unit and f"--node-ip-address={ADDRESS}" in unit and "User=forebay-node" in unit
    assert {name for name, file in planned.items() if file.mode == 0o600} == {"etc/forebay/tls/node.key", "etc/forebay/node.toml"}
    assert invitation.key not in unit
    trusted = re.findall(r"^Environment=SSL_CERT_FILE=(\S+)$", unit, re.MULTILINE)
    assert trusted == [f"{layout.settings}/ca.crt"], "the workers' account reads neither the folder of keys nor the unit's credentials"
    assert planned["etc/forebay/ca.crt"].mode == 0o644


def test_a_node_s_workers_have_an_account_that_ray_s_own_may_start_them_under(root: Path, invitation: Invitation) -> None:
    layout = join.Layout(root.parent / "node")
    planned = {file.path.name: file.content.decode() for file in join.files(invitation, layout, Devices("cuda", "H100", 2**36, 8))}
    assert re.findall(r"^u (\S+)", planned["forebay-node.conf"], re.MULTILINE) == ["forebay-node", "forebay-worker"]
    unit = planned["forebay-node.service"]
    (begins,) = re.findall(r"^ExecStart=(.*?) -- (?:\S+)/ray start ", unit, re.MULTILINE)
    account = f"{layout.python} -I -m forebay_service.account"
    assert begins == f"!{account} forebay-node forebay-node,@devices --starts forebay-worker,1879048192-1879113727"
    assert "\nCapabilityBoundingSet=CAP_SETGID CAP_SETUID\n" in unit and "\nRestrictNamespaces=user\n" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="Debian's systemd is not installed")
def test_systemd_finds_no_fault_in_the_units(root: Path, invitation: Invitation) -> None:
    layout = join.Layout(root)
    assert join.lay(join.files(invitation, layout, Devices("cpu", "cpu-dev", 2**30, 1)), layout)
    for name in ("forebay-node.service", "forebay-ray.service"):
        unit = root / "etc/systemd/system" / name
        command = ["systemd-analyze", "--offline=true", "security", "--no-pager", str(unit)]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
        assert found is not None and float(found[1]) <= EXPOSURE_MAX, said
        verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False).stderr
        assert "forebay" not in "".join(line for line in verified.splitlines() if "Unknown" in line or "Invalid" in line), verified


def test_each_release_that_differs_is_told_with_the_one_that_it_must_be(invitation: Invitation) -> None:
    assert checks.check_releases(invitation, Releases.here()).good
    other = replace(Releases.here(), ray="2.1.0", torch="")
    found = checks.check_releases(invitation, other)
    assert not found.good and found.sentence.startswith(f"ray is 2.1.0 and must be {invitation.ray}, torch is missing and must be")


def test_a_pool_of_another_release_than_the_invitation_is_told_with_what_to_do(invitation: Invitation) -> None:
    assert checks.check_pool_release(invitation.forebay, invitation).good and checks.check_pool_release("", invitation).good
    found = checks.check_pool_release("7.0.0", invitation)
    assert not found.good and f"has 7.0.0 by now, and the invitation is of {invitation.forebay}: `forebay node upgrade`" in found.sentence


def test_an_invitation_of_an_earlier_release_is_read_for_an_upgrade_alone_and_keeps_who_the_host_is(
    root: Path, invitation: Invitation
) -> None:
    file = root.parent / "earlier.toml"
    lines = [line for line in replace(invitation, forebay="0.0.9").toml.splitlines() if not line.startswith("worker_uids ")]
    file.write_text("\n".join(lines))
    with pytest.raises(NodeError, match="is no invitation of this release"):
        invitations.read(file)
    assert invitations.read_earlier(file) == replace(invitation, forebay="0.0.9")
    file.write_text("\n".join(line for line in lines if not line.startswith("key ")))
    with pytest.raises(NodeError, match="is no invitation of this release"):
        invitations.read_earlier(file)


LAID = """
mount -t tmpfs -o mode=755 tmpfs /dev; mkdir /dev/dri
mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9
for name in kfd dri/renderD128; do mknod -m "$1" "/dev/$name" c 1 5; chown "root:$2" "/dev/$name"; done
shift 2; exec "$@"
"""
ACCESS = """
import sys; from pathlib import Path; from forebay_admin.node import checks
found = checks.check_access(Path(sys.executable), "1879048192-1879113727"); print(found.good, found.sentence)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="device nodes are root's to make")
@pytest.mark.parametrize(
    ("mode", "group", "good"), [("660", "video", True), ("666", "root", True), ("660", "root", False), ("600", "video", False)]
)
def test_whether_workers_open_the_devices_is_tried_under_a_uid_of_theirs(mode: str, group: str, good: bool) -> None:
    """AMD's nodes are ``render``'s or ``video``'s; what is root's alone cannot be lent."""
    command = ["unshare", "--mount", "sh", "-euc", LAID, "sh", mode, group, sys.executable, "-c", ACCESS]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if good:
        assert said == "True Workers open /dev/dri/renderD128, /dev/kfd.\n"
    else:
        assert said.startswith("False Workers cannot open the devices (sh: "), said
        assert "/dev/dri/renderD128: Permission denied): each must be open to a group other than root's (`chgrp render`" in said


def test_units_whose_workers_open_gpus_keep_no_device_from_them(root: Path, invitation: Invitation) -> None:
    """``DevicePolicy`` of systemd, and what closes devices by other names: the groups ``render`` and ``video`` alone would not do."""
    layout = join.Layout(root)
    units = {file.path.name: file.content.decode() for file in join.files(invitation, layout, Devices("hip", "MI300X", 2**37, 8))}
    units["forebay-pool.service"] = (root / "etc/systemd/system/forebay-pool.service").read_text()
    for name in ("forebay-node.service", "forebay-pool.service"):
        assert not re.findall(r"^(?:DevicePolicy|DeviceAllow|PrivateDevices|ProtectClock)=", units[name], re.MULTILINE), name
        assert ",@devices --starts forebay-worker,1879048192-1879113727 -- " in units[name], name
    assert "PrivateDevices=yes" in (root / "etc/systemd/system/forebay-billing.service").read_text()


@pytest.mark.parametrize("seconds", [-60.0, 60.0])
def test_a_clock_that_is_off_is_told_by_how_much(seconds: float) -> None:
    now = 1_800_000_000.0
    told = email.utils.formatdate(now + seconds, usegmt=True)
    found = checks.check_clock(told, now, now)
    assert not found.good and re.search(r"is (59|60) s from the control host's", found.sentence)
    assert checks.check_clock(email.utils.formatdate(now + seconds / 20, usegmt=True), now, now).good


def test_an_address_of_another_host_and_a_taken_port_are_told(invitation: Invitation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not this host's" in checks.check_address(invitation).sentence
    here = replace(invitation, address="127.0.0.1")
    assert checks.check_address(here).good
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(checks, "PORTS", {"node-manager-port": port})
        found = checks.check_ports(here, running=False)
        assert not found.good and f"Others listen on {port}," in found.sentence
        assert checks.check_ports(here, running=True).good
    assert checks.check_ports(here, running=False).good


def test_a_missing_driver_is_told_and_a_python_without_a_worker(tmp_path: Path) -> None:
    there = tmp_path / "nvidiactl"
    assert not checks.check_driver({str(there): "NVIDIA"}).good
    there.touch()
    assert checks.check_driver({str(there): "NVIDIA"}).sentence == "NVIDIA's driver is loaded."
    found, devices = checks.check_pytorch(tmp_path / "python", True, "")
    assert not found.good and devices is None and "install forebay-worker and PyTorch there" in found.sentence


DESCRIBED = '{"devices": [%s]}'
GPU = '{"kind": "cuda", "model": "NVIDIA %s", "memory_bytes": 85899345920}'


def python_that_sees(folder: Path, *models: str) -> Path:
    script = folder / "python"
    script.write_text(f"#!{sys.executable}\nprint('''{DESCRIBED % ', '.join(GPU % model for model in models)}''')\n")
    script.chmod(0o755)
    return script


def test_devices_are_those_that_pytorch_sees_and_of_one_model(tmp_path: Path) -> None:
    found, devices = checks.check_pytorch(python_that_sees(tmp_path, "H100 80GB HBM3", "H100 80GB HBM3"), False, "")
    assert found.good and devices == Devices("cuda", "NVIDIA-H100-80GB-HBM3", 80 * 2**30, 2)
    assert devices.group == '[[devices]]\nkind = "cuda"\nmodel = "NVIDIA-H100-80GB-HBM3"\nmemory = "81920 MiB"\ncount = 2'
    _, named = checks.check_pytorch(python_that_sees(tmp_path, "H100 80GB HBM3"), False, "H100")
    assert named is not None and named.model == "H100"
    found, devices = checks.check_pytorch(python_that_sees(tmp_path, "H100", "A100"), False, "")
    assert devices is None and "1 NVIDIA H100, 1 NVIDIA A100: let CUDA_VISIBLE_DEVICES" in found.sentence
    found, devices = checks.check_pytorch(python_that_sees(tmp_path), False, "")
    assert devices is None and "sees no GPU" in found.sentence


@pytest.fixture
def listener(invitation: Invitation, tmp_path: Path) -> Iterator[tuple[int, ssl.SSLContext]]:
    """What asks for a client's certificate, as Ray's head does, and greets who has one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=invitation.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    pair = tmp_path / "head.pem"
    pair.write_text(invitation.certificate + invitation.key)
    context.load_cert_chain(pair)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet, args=(server, context), daemon=True)
        thread.start()
        yield server.getsockname()[1], context
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def greet(server: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            link, _ = server.accept()
        except OSError:
            return
        with link:
            try:
                with context.wrap_socket(link, server_side=True) as shaken:
                    shaken.sendall(b"hello")
            except OSError:
                continue


def test_the_head_is_good_where_each_side_takes_the_other_s_certificate(
    invitation: Invitation, listener: tuple[int, ssl.SSLContext]
) -> None:
    there = replace(invitation, head=f"127.0.0.1:{listener[0]}")
    assert checks.check_head(there).good
    other = new_authority("other")
    mine = new_node(["127.0.0.1"], other)
    stranger = replace(there, certificate=mine.certificate.decode(), key=mine.key.decode())
    assert not checks.check_head(stranger).good
    assert "is of another cluster" in checks.check_head(replace(there, authority=other.certificate.decode())).sentence
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "cannot be reached (Connection refused)" in checks.check_head(replace(there, head=f"127.0.0.1:{port}")).sentence


def test_a_node_s_certificate_is_for_both_sides_and_all_its_names_and_a_server_s_is_not() -> None:
    authority = new_authority("x")

    def uses(pem: bytes) -> set[str]:
        return {use._name for use in load_pem_x509_certificate(pem).extensions.get_extension_for_class(ExtendedKeyUsage).value}

    assert uses(new_node(["localhost", ADDRESS], authority).certificate) == {"serverAuth", "clientAuth"}
    assert uses(new_server("gpu.example.org", authority).certificate) == {"serverAuth"}
    assert all(is_of(new_node(["localhost", ADDRESS], authority).certificate, name) for name in ("localhost", ADDRESS))


def test_a_check_that_fails_writes_nothing_and_tells_every_other_one(
    root: Path, invitation: Invitation, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = root.parent / "off.toml"
    file.write_text(replace(invitation, head=f"127.0.0.1:{port}", pool=f"https://127.0.0.1:{port}/").toml)
    capsys.readouterr()
    assert main(["node", "join", "--root", str(root.parent / "node"), str(file)]) == 1
    said = dict(re.findall(r"^(?:ok|NO) +(\w+) +(\S.*)$", capsys.readouterr().out, re.MULTILINE))
    assert list(said) == ["root", "driver", "pytorch", "versions", "address", "ports", "head", "pool"]
    assert not (root.parent / "node").exists()


def test_how_a_node_stands_is_said_in_words_and_empty_is_without_leases_and_residents() -> None:
    row = {"state": "drained", "devices": 8, "leases": 1, "residents": 0, "parked": 2, "moving": 0}
    assert standing(row) == "drained, 8 devices, 1 leases, 0 resident and 2 parked sessions"
    assert standing({**row, "moving": 1}).endswith("2 parked sessions (1 on its way to another host)")
    assert not join.is_empty(row)
    assert [join.parked_on(one) for one in (row, {**row, "parked": 1}, {**row, "parked": 0}, {**row, "state": "lost"}, None)] == [
        *("2 parked sessions", "1 parked session", "", "", ""),
    ]
    assert all(join.is_empty(empty) for empty in ({**row, "leases": 0}, {**row, "state": "lost"}, None))


def test_a_drain_waits_for_what_is_parked_as_long_as_some_of_it_moves() -> None:
    now = 0.0
    moved = join.Moved(lambda: now)
    row = {"state": "draining", "parked": 3, "moving": 0}
    for seconds, change, done in [
        (0, {}, False),
        (join.QUIET_SECONDS - 1, {"parked": 2}, False),
        (2 * join.QUIET_SECONDS, {"moving": 1}, False),
        (2 * join.QUIET_SECONDS + 5, {"moving": 0}, False),
        (4 * join.QUIET_SECONDS, {}, True),
    ]:
        now, row = seconds, row | change
        assert moved(row) is done, (seconds, row)
    assert moved({**row, "parked": 0}) and moved({**row, "state": "lost"}) and moved(None)
