"""Folders of libraries: whose they are, how much they hold, and what is found in them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forebay_worker.libraries import HEAD_BYTES, MAKING, OWN, Libraries, OwnFolder

KEYS = [f"{number:040x}" for number in range(1, 6)]
HERE = ("2.13.0", "a processor", "1", "9")
WORKERS = 60703
"""The group of workers; each is of an account of its own."""
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can become others")


@pytest.fixture
def workers_folder() -> Iterator[Path]:
    """In which all workers make folders, and none lists those of others."""
    top = Path(tempfile.mkdtemp(prefix="forebay-test-"))
    top.chmod(0o711)
    folder = top / "libraries"
    folder.mkdir()
    os.chown(folder, -1, WORKERS)
    folder.chmod(0o1730)
    yield folder
    shutil.rmtree(top)


def under(uid: int, deed: Callable[[], None]) -> bool:
    """Whether a process of a worker's account did it without an error."""
    process = os.fork()
    if process == 0:
        try:
            os.setgroups([WORKERS])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.umask(0o077)
            deed()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def keep(folder: Path) -> None:
    own = Path(tempfile.mkdtemp())
    (own / "made.so").write_bytes(b"a library")
    libraries = Libraries(folder, own)
    libraries.keep("key", own / "made.so", 61.4)
    shutil.rmtree(own)


def find_and_judge(folder: Path) -> None:
    libraries = Libraries(folder)
    found = libraries.find("key")
    assert found is not None and found.takes is None
    assert found.note == "it took 61 s to make"
    libraries.judge("key", 0.71)
    libraries.refuse("other", "it cannot be made")


def find_judged(folder: Path) -> None:
    found, refused = (Libraries(folder).find(key) for key in ("key", "other"))
    assert found is not None and found.takes == 0.71
    assert refused is not None and refused.refused


@AS_ROOT
def test_workers_of_a_tenant_share_a_folder_whatever_their_accounts_and_others_do_not_find_it(workers_folder: Path) -> None:
    folder = workers_folder / "a-name-that-others-do-not-know"
    assert under(60710, lambda: keep(folder))
    assert under(60711, lambda: find_and_judge(folder))
    assert under(60710, lambda: find_judged(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2770
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o660}
    assert not under(60712, lambda: print(os.listdir(workers_folder))), "they pass it, and do not list it"
    folder.chmod(0o2777)
    assert not under(60711, lambda: find_judged(folder)), "what others may write to is not opened"


def test_what_a_worker_that_was_killed_left_behind_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living, (killed, new) = OwnFolder(), (Path(tempfile.mkdtemp(prefix=OWN)) for _ in range(2))
    for folder in (living.path, killed):
        (folder / "made.so").write_bytes(b"a library")
        os.utime(folder, (0, 0))
    own = OwnFolder()
    assert set(tmp_path.iterdir()) == {living.path, new, own.path}
    for one in (living, own):
        one.close()
    assert set(tmp_path.iterdir()) == {new}

    libraries = Libraries(new)
    for name in (f"{MAKING}1", f"{MAKING}2"):
        (new / name).mkdir()
    (new / ".key.1").write_text("{}")
    libraries.refuse("key", "it cannot be made")
    for name in (f"{MAKING}1", ".key.1", "key.json"):
        os.utime(new / name, (0, 0))
    Libraries(new)
    assert {path.name for path in new.iterdir()} == {f"{MAKING}2", "key.json"}


@pytest.mark.parametrize("change", ["content", "owner's rights", "note"])
def test_a_library_that_another_may_have_written_is_not_opened(tmp_path: Path, change: str) -> None:
    libraries = Libraries(tmp_path / "libraries")
    (tmp_path / "made.so").write_bytes(b"a library")
    made = libraries.keep("key", tmp_path / "made.so", 1)
    assert libraries.find("key") is not None
    match change:
        case "content":
            made.write_bytes(b"another")
        case "note":
            (libraries.folder / "key.json").write_text("{}")
        case _:
            made.chmod(0o666)
    assert libraries.find("key") is None


def test_the_folder_is_one_users_alone_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = Libraries(tmp_path / "libraries", bytes_max=25)
    libraries.compiler_folder.mkdir()
    (libraries.compiler_folder / "header").write_bytes(b"0123456789")
    for number in range(4):
        (tmp_path / "made.so").write_bytes(b"0123456789")
        libraries.keep(f"key{number}", tmp_path / "made.so", 1)
        time.sleep(0.01)
    assert [libraries.find(f"key{number}") is not None for number in range(4)] == [False, False, True, True]
    assert not libraries.compiler_folder.exists(), "what the compiler keeps is bounded, too"

    monkeypatch.setattr("forebay_worker.libraries.NOTES_MAX", 3)
    libraries.refuse("never", "it cannot be made")
    libraries.find("key2")
    libraries.refuse("never either", "it cannot be made")
    assert sorted(path.stem for path in libraries.folder.glob("*.json")) == ["key2", "never", "never either"]
    libraries.folder.chmod(0o777)
    with pytest.raises(OSError, match="others"):
        Libraries(libraries.folder)


def filled(folder: Path) -> Libraries:
    """With a library of its own, one that another shares, numbers that change, and a reason why there is none."""
    libraries = Libraries(folder)
    for key in KEYS[:2]:
        (folder / "made.so").write_bytes(f"the library {key}".encode())
        libraries.keep(key, folder / "made.so", 61)
    libraries.judge(KEYS[0], 0.71)
    libraries.share(KEYS[2], KEYS[1])
    libraries.note_changing(KEYS[3], {(3, 4), (5, 6)})
    libraries.refuse(KEYS[4], "it cannot be made")
    return libraries


def test_libraries_go_along_to_another_folder_and_nothing_there_is_written_over(tmp_path: Path) -> None:
    one, other = filled(tmp_path / "one"), Libraries(tmp_path / "other")
    packed = one.packed([*KEYS, "0" * 40], HERE)
    assert other.unpack(packed, ("another release", *HERE[1:])) == 0
    assert list(other.folder.iterdir()) == []
    other.judge(KEYS[0], 0.5)
    assert (other.unpack(packed, HERE), other.unpack(packed, HERE)) == (2, 0)
    mine, theirs = one.find(KEYS[0]), other.find(KEYS[0])
    assert mine is not None and theirs is not None and theirs == dataclasses.replace(mine, library=theirs.library)
    shared = other.find(KEYS[2])
    assert shared is not None and shared.library == other.folder / f"{KEYS[1]}.so"
    assert other.changing(KEYS[3]) == {(3, 4), (5, 6)}
    assert other.find(KEYS[4]) is None, "there it may be made"
    other.judge(KEYS[0], None)
    other.unpack(packed, HERE)
    assert (again := other.find(KEYS[0])) is not None and again.takes is None


def test_what_goes_along_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = filled(tmp_path / "one"), Libraries(tmp_path / "other")
    most = len(one.packed(KEYS[:1], HERE)) + HEAD_BYTES
    monkeypatch.setattr("forebay_worker.libraries.PACKED_BYTES_MAX", most)
    packed = one.packed(KEYS, HERE)
    assert len(packed) <= most and other.unpack(packed, HERE) == 1


@pytest.mark.parametrize("change", ["content", "key", "shared key", "note", "no JSON", "no notes"])
def test_what_no_worker_packs_is_refused_and_not_kept(tmp_path: Path, change: str) -> None:
    other = Libraries(tmp_path / "other")
    head, _, content = filled(tmp_path / "one").packed(KEYS[:3], HERE).partition(b"\n")
    told = json.loads(head)
    match change:
        case "content":
            content = content.replace(b"library", b"Library")
        case "key":
            told = json.loads(head.replace(KEYS[0].encode(), b"../" + KEYS[0][3:].encode()))
        case "shared key":
            told["notes"][KEYS[2]]["shared"] = "/etc/passwd"
        case "note":
            told["notes"] = dict.fromkeys(told["notes"], 3)
        case "no notes":
            del told["notes"]
    packed = (b"" if change == "no JSON" else json.dumps(told).encode()) + b"\n" + content
    with pytest.raises(ValueError):
        other.unpack(packed, HERE)
    assert not [path for path in other.folder.iterdir() if path.name.startswith(KEYS[0])] or change == "shared key"
