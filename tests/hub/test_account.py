"""Processes under accounts that are numbers alone: real ones, so root is needed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from forebay_service.account import Account, device_groups
from forebay_service.namespaces import joined

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")

UID, OTHER, GROUP = 60701, 60702, 60700
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "forebay_service.processes.parent_death", *sys.argv[1:]])
print(child.pid, flush=True)
time.sleep(60)
"""
PIDS = "ls /proc | grep -c '^[0-9]'"
EACH = "60520-60523"
"""Of which each command has one; nobody else's on this machine."""
OWN = "echo $(id -u) $(id -g) $$; exec sleep 60"
TWO_WORKERS = """
import ctypes, os, sys, time
from forebay_service.account import Account, become
folder, each, group, service = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
libc = ctypes.CDLL(None, use_errno=True)
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
here = ctypes.create_string_buffer(b"secret--")
def called(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
def copied(pid):
    own, theirs = Part(ctypes.addressof(here), 8), Part(ctypes.addressof(here), 8)
    called(libc.process_vm_readv(pid, ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0))
tries = {
    "mem": lambda pid: open(f"/proc/{pid}/mem", "rb"), "environ": lambda pid: open(f"/proc/{pid}/environ", "rb").read(),
    "maps": lambda pid: open(f"/proc/{pid}/maps").read(), "fd": lambda pid: os.listdir(f"/proc/{pid}/fd"), "copy": copied,
    "ptrace": lambda pid: called(libc.ptrace(0x4206, pid, 0, 0)), "kill": lambda pid: os.kill(pid, 0),
    "read": lambda pid: open(f"{folder}/socket").read(), "replace": lambda pid: os.rename(f"{folder}/{os.getpid()}", f"{folder}/socket"),
    "remove": lambda pid: os.unlink(f"{folder}/socket"),
}
def begin(account, work):
    heard, tell = os.pipe()
    if os.fork() == 0:
        become(account)
        called(libc.prctl(4, 1, 0, 0, 0))  # as after the start of a program
        os.write(tell, work().encode())
        time.sleep(30)
        os._exit(0)
    return os.read(heard, 4096).decode()
def serve():
    open(f"{folder}/socket", "w").write("secret")
    return f"{os.getuid()} {os.getpid()}"
def attempt(pid):
    open(f"{folder}/{os.getpid()}", "w").close()
    told = []
    for name, one in tries.items():
        try:
            one(pid)
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue
        told.append(name)
    return " ".join(told) or "nothing"
become(Account(service, (service,), hide=True, starts=f"{group},{each}"))
uid, pid = map(int, begin(Account(each, (group,)), serve).split())
print(begin(Account(each, (group,)), lambda: attempt(pid)))
print(begin(Account(uid, (group,)), lambda: attempt(pid)), flush=True)
os.killpg(0, 9)
"""


def output(account: Account, script: str, **options: str) -> str:
    """What a shell prints under the account."""
    run = subprocess.run(account.command(["sh", "-c", script]), capture_output=True, text=True, check=False, **options)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture
def namespace() -> Iterator[int]:
    """A process in a user namespace that knows UID, OTHER and GROUP."""
    command = Account(UID, (GROUP,), knows=OTHER).command(["sh", "-c", "echo ready; exec sleep 60"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def test_a_command_has_the_accounts_uid_and_group_and_nothing_else_of_roots() -> None:
    told = output(Account(UID, (GROUP,)), "id -u; id -g; id -G; umask; grep -E 'CapEff|CapPrm|CapAmb|NoNewPrivs' /proc/self/status")
    uid, gid, groups, umask, *rest = told.splitlines()
    assert (int(uid), int(gid), set(groups.split())) == (UID, UID, {str(UID), str(GROUP)})
    assert umask == "0077"
    assert {line.split()[0]: int(line.split()[1], 16) for line in rest} == {"CapPrm:": 0, "CapEff:": 0, "CapAmb:": 0, "NoNewPrivs:": 1}


def test_hidden_processes_are_hidden_from_the_command_alone() -> None:
    before = Path("/proc/self/mountinfo").read_text()
    assert int(output(Account(UID, (GROUP,)), PIDS)) > 5
    assert int(output(Account(UID, (GROUP,), hide=True), PIDS)) <= 4, "the shell, ls and grep"
    assert Path("/proc/self/mountinfo").read_text() == before


def test_who_joins_a_namespace_may_start_and_end_another_account_and_give_it_files(namespace: int) -> None:
    folder = tempfile.mkdtemp(dir="/tmp")
    os.chown(folder, UID, UID)
    switch = f"setpriv --reuid {OTHER} --regid {OTHER} --clear-groups"
    told = output(
        Account(UID, (GROUP,), hide=True, joins=namespace),
        f"{switch} id -u; {switch} sleep 60 & sleep 0.5; cut -d' ' -f2 /proc/$!/stat; kill -9 $!; wait $!; echo $?; chown {OTHER} {folder}",
    )
    assert told.split() == [str(OTHER), "(sleep)", "137"]
    assert os.stat(folder).st_uid == OTHER
    os.rmdir(folder)


def test_a_service_starts_workers_under_an_account_of_their_own_sees_and_ends_them_and_they_end_nothing_of_its() -> None:
    switch = "setpriv --reuid bin --regid bin --clear-groups"
    service = Account("daemon", ("daemon",), hide=True, starts="bin")
    told = output(service, f"id -un; {switch} sleep 60 & sleep 0.5; cut -d' ' -f2 /proc/$!/stat; kill -9 $!; wait $!; echo $?")
    assert told.split() == ["daemon", "(sleep)", "137"]
    other = "kill -9 $PPID; cat /proc/$PPID/environ; grep Uid /proc/self/status"
    command = service.command(["sh", "-c", f"{switch} --inh-caps=-all --ambient-caps=-all sh -c '{other}'; true"])
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.stdout.split()[:2] == ["Uid:", "2"], said
    assert "Operation not permitted" in said.stderr and "No such file" in said.stderr, said


def test_a_service_that_comes_back_finds_its_workers_and_enters_no_namespace_that_a_worker_made() -> None:
    """The second worker may be root in a namespace of its own; there the service would be no longer apart from it."""
    service = Account(UID, (UID,), hide=True, starts=OTHER)
    worker = f"setpriv --reuid {OTHER} --regid {OTHER} --clear-groups --inh-caps=-all --ambient-caps=-all"
    begin = f"{worker} sleep 60 >/dev/null 2>&1 & echo $!; sleep 0.3"
    said = output(service, f"readlink /proc/self/ns/user; {begin}; readlink /proc/$!/ns/user")
    namespace, pid, same = said.split()
    assert namespace == same
    own = subprocess.Popen(["setpriv", "--reuid", str(OTHER), "--regid", str(OTHER), "--clear-groups", "unshare", "--user", "sleep", "60"])
    try:
        told = output(service, f"readlink /proc/self/ns/user; kill -9 {pid} && echo ended")
        assert told.split() == [namespace, "ended"]
        assert output(service, "readlink /proc/self/ns/user").strip() != os.readlink(f"/proc/{own.pid}/ns/user")
    finally:
        own.kill()
        own.wait()


def test_each_command_has_a_uid_of_its_own_of_the_range_and_none_is_given_twice_while_it_is_used() -> None:
    begun = [subprocess.Popen(Account(EACH, (GROUP,)).command(["sh", "-c", OWN]), stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        told = [process.stdout.readline().split() for process in begun if process.stdout is not None]
        assert {int(uid) for uid, _, _ in told} == {60520, 60521, 60522, 60523} and all(uid == gid for uid, gid, _ in told), told
        run = subprocess.run(Account(EACH, (GROUP,)).command(["true"]), capture_output=True, text=True, check=False)
        assert (run.returncode, run.stderr) == (1, f"uid {EACH} cannot be taken on: none of the uids {EACH} is free\n")
        begun[0].kill()
        begun[0].wait()
        assert output(Account(EACH, (GROUP,)), "id -u").strip() == told[0][0], "and again once it is free"
    finally:
        for process in begun:
            process.kill()
            process.communicate()


def test_of_two_workers_neither_reads_ends_or_takes_the_place_of_the_other() -> None:
    """Both were started by a service in its user namespace, and both write into one folder, as sockets are made in."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chown(name, UID, OTHER)
        Path(name).chmod(0o1771)
        command = [sys.executable, "-c", TWO_WORKERS, name, EACH, str(OTHER), str(UID)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, start_new_session=True)
    another, itself = done.stdout.splitlines()
    assert another == "nothing", done.stderr
    assert itself == "mem environ maps fd copy ptrace kill read replace remove", "so the attempts are real"


@pytest.mark.parametrize("mode", [0o660, 0o666, 0o600])
def test_the_groups_of_devices_are_those_of_the_machine_that_the_command_runs_on(mode: int, tmp_path: Path) -> None:
    """AMD's nodes are ``render``'s and ``video``'s, NVIDIA's are everybody's."""
    for name, group in (("kfd", 104), ("renderD128", 44)):
        os.mknod(tmp_path / name, 0o020000 | mode, os.makedev(1, 3))
        os.chown(tmp_path / name, 0, group)
        (tmp_path / name).chmod(mode)
    assert device_groups([f"{tmp_path}/kfd", f"{tmp_path}/renderD*"]) == ((44, 104) if mode == 0o660 else ())
    known = set(output(Account(UID, (GROUP, "@devices")), "id -G").split())
    assert known == {str(UID), str(GROUP), *map(str, device_groups())}


def test_accounts_are_joined_into_as_few_lines_of_a_map_as_there_can_be() -> None:
    assert joined([range(5, 6), range(7, 9), range(6, 7), range(20, 30), range(22, 24)]) == [range(5, 9), range(20, 30)]


def test_a_name_that_means_no_account_is_refused() -> None:
    for name, why in (("nobody-there", "no account nobody-there"), ("sync", "which must be equal")):
        run = subprocess.run(Account(name, (GROUP,)).command(["true"]), capture_output=True, text=True, check=False)
        assert run.returncode == 1 and why in run.stderr, run.stderr


@pytest.mark.parametrize("uid", [0, 1])
def test_who_joins_a_namespace_can_become_nobody_outside_it(namespace: int, uid: int) -> None:
    with pytest.raises(AssertionError, match="setresuid failed: Invalid argument"):
        output(Account(UID, (GROUP,), joins=namespace), f"setpriv --reuid {uid} id")


def test_who_joins_a_namespace_reads_and_gives_away_no_file_of_root(namespace: int) -> None:
    with tempfile.NamedTemporaryFile() as secret:
        told = output(Account(UID, (GROUP,), joins=namespace), f"cat {secret.name} 2>&1; chown {UID} {secret.name} 2>&1; true")
    assert "Permission denied" in told and "Operation not permitted" in told


def test_a_namespace_that_the_kernel_refuses_is_said_at_once() -> None:
    """It refuses one below a changed root; which, here, is the same as the machine's."""
    changed = ["unshare", "--mount", "sh", "-euc", 'mount --rbind / "$1"; exec chroot "$@"', "sh"]
    with tempfile.TemporaryDirectory() as root:
        command = [*changed, root, *Account(UID, (GROUP,), knows=OTHER).command(["true"])]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert run.returncode == 1
    assert run.stderr == f"uid {UID} cannot be taken on: [Errno 1] unshare: Operation not permitted\n"


def test_what_lies_in_the_folder_that_it_starts_in_is_not_imported_while_it_is_root(tmp_path: Path) -> None:
    for package in ("forebay_hub", "argparse"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"open('{tmp_path}/imported', 'w')")
    output(Account(UID, (GROUP,)), "true", cwd=str(tmp_path))
    assert not (tmp_path / "imported").exists()


def test_an_account_keeps_the_leash_that_it_was_started_on() -> None:
    command = Account(UID, (GROUP,), hide=True).command(["sleep", "60"])
    with subprocess.Popen([sys.executable, "-c", PARENT, *command], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        deadline = 10.0
        while child.name() != "sleep" and deadline > 0:
            deadline -= 0.05
            psutil.wait_procs([child], timeout=0.05)
        assert child.uids().real == UID
        parent.kill()
        gone, alive = psutil.wait_procs([child], timeout=10)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE], gone


def test_a_command_that_the_account_cannot_run_is_named() -> None:
    with tempfile.NamedTemporaryFile() as shut:
        run = subprocess.run(Account(UID, (GROUP,)).command([shut.name]), capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr == f"{shut.name} cannot be started under uid {UID}: Permission denied\n"
