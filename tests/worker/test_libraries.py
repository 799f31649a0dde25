"""Folders of libraries: whose they are, how much they hold, and what is found in them."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forebay_worker.libraries import MAKING, OWN, Libraries, OwnFolder

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
