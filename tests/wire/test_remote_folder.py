"""Names and contents that come from elsewhere stay within their folder, whatever they are; each attempt succeeds where nobody looks."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from forebay_wire.remote import folder, frames
from hypothesis import given
from hypothesis import strategies as st

CONTENTS = b"what was sent"
HASH = hashlib.sha256(CONTENTS).hexdigest()
OUTSIDE = ["../x", "a/../../x", "/etc/x", "a//b", "./a", "a/.", "..", "", "a\0b", "a/", "\udce4", "x" * 256, "/".join("a" * 65), "a" * 5000]


@pytest.fixture
def within(tmp_path: Path) -> Iterator[int]:
    """An open folder that is empty."""
    made = tmp_path / "folder"
    made.mkdir()
    opened = os.open(made, folder.FOLDER)
    yield opened
    os.close(opened)


def write(within: int, path: str, contents: bytes = CONTENTS, expected: str = HASH, size: int | None = None) -> None:
    written = folder.Written(within, path, len(CONTENTS) if size is None else size, expected, False)
    try:
        written.add(contents)
        written.take_name()
    finally:
        written.drop()


def found(within: int) -> tuple[list[str], list[str]]:
    left: list[str] = []
    paths = [one.path for one in folder.found_in(within, lambda _path, _is_folder: False, left.append)]
    return paths, left


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_name_that_leads_out_of_the_folder_is_refused(within: int, path: str) -> None:
    with pytest.raises(folder.NameRefused):
        write(within, path)
    with pytest.raises(folder.NameRefused):
        folder.open_file(within, path)
    assert found(within) == ([], [])


@given(st.text())
def test_a_name_is_refused_or_stays_below(path: str) -> None:
    try:
        parts = folder.parts_of(path)
    except folder.NameRefused:
        return
    assert Path("/folder", path).parts == ("/", "folder", *parts) and os.path.normpath(f"/folder/{path}") == f"/folder/{path}"


def test_links_lead_nowhere(within: int, tmp_path: Path) -> None:
    secret, elsewhere = tmp_path / "secret", tmp_path / "elsewhere"
    secret.write_text("secret")
    elsewhere.mkdir()
    inside = tmp_path / "folder"
    (inside / "link").symlink_to(secret)
    (inside / "below").symlink_to(elsewhere)
    (inside / "below" / "control").write_text("a link that is followed leads out")
    assert (elsewhere / "control").exists() and (inside / "link").read_text() == "secret"
    for path in ("below/x", "below/control"):
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            write(within, path)
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            folder.open_file(within, path)
    with pytest.raises(OSError, match="Too many levels"):
        folder.open_file(within, "link")
    write(within, "link")  # takes the link's name, and leaves what it led to
    assert secret.read_text() == "secret" and (inside / "link").read_bytes() == CONTENTS
    assert os.listdir(elsewhere) == ["control"]


def test_a_hard_link_is_replaced_and_not_written_through(within: int, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("other's")
    os.link(other, tmp_path / "folder" / "name")
    write(within, "name")
    assert other.read_text() == "other's" and (tmp_path / "folder" / "name").read_bytes() == CONTENTS


def test_what_is_no_regular_file_is_named_and_neither_read_nor_waited_for(within: int, tmp_path: Path) -> None:
    inside = tmp_path / "folder"
    os.mkfifo(inside / "fifo")
    (inside / "link").symlink_to("/etc/passwd")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(inside / "socket"))
    if os.geteuid() == 0:
        os.mknod(inside / "device", 0o20600, os.makedev(1, 3))
    (inside / "file").write_text("a file")
    os.mkdir(inside / os.fsdecode(b"\xff"))
    paths, left = found(within)
    assert paths == ["file"]
    assert [one for one in ("fifo is a FIFO", "link is a symbolic link", "socket is a socket") if one not in left] == []
    assert any("no UTF-8" in one for one in left) and ("device is a device file" in left or os.geteuid() != 0)
    with pytest.raises(folder.NameRefused):
        folder.open_file(within, "fifo")


def test_a_file_has_its_name_once_all_of_it_is_there_and_is_what_was_told(within: int) -> None:
    wrong = [(b"what was se", None), (CONTENTS + b"!", None), (b"WHAT WAS SENT", None), (CONTENTS, 5)]
    for contents, size in wrong:
        with pytest.raises(folder.ContentsRefused):
            write(within, "a/b", contents, size=size)
    assert found(within) == ([], [])
    write(within, "a/b")
    assert found(within) == (["a/b"], [])
    opened = folder.open_file(within, "a/b")
    assert folder.hash_of(opened, len(CONTENTS)) == HASH
    with pytest.raises(OSError, match="shorter"):
        folder.hash_of(opened, len(CONTENTS) + 1)
    os.close(opened)


def test_a_folder_that_is_too_deep_is_left(within: int, tmp_path: Path) -> None:
    deep = tmp_path / "folder"
    for _ in range(70):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "x").write_text("x")
    paths, left = found(within)
    assert not paths and len(left) == 1


@given(st.binary(max_size=300))
def test_random_frames_are_read_or_refused(data: bytes) -> None:
    for read in (frames.from_client, frames.from_worker):
        try:
            read(data)
        except frames.StreamError as error:
            assert str(error)
    if len(data) >= frames.HEAD.size:
        try:
            frames.head_of(data[: frames.HEAD.size])
        except frames.StreamError as error:
            assert str(error)


def test_messages_come_out_as_they_went_in() -> None:
    file = frames.File(path="a/b", size=3, hash=HASH)
    start = frames.Start(arguments=("a",), files=(file,), result_bytes_max=1)
    client = (frames.Enter(ticket=HASH), start, frames.signal_of(2), frames.Wanted(places=(0,)))
    worker = (
        *(frames.Entered(), frames.Wanted(places=(1, 0)), frames.Started(), frames.Took(bytes=3), frames.Exited(status=137, why="memory")),
        *(frames.Results(files=(file,), left=("a is a FIFO",)), frames.Denied(why="no")),
    )
    for read, messages in ((frames.from_client, client), (frames.from_worker, worker)):
        for message in messages:
            data = frames.said(message)
            kind, length = frames.head_of(data[: frames.HEAD.size])
            assert (kind, length) == (frames.FrameKind.MESSAGE, len(data) - frames.HEAD.size)
            assert read(data[frames.HEAD.size :]) == message
    for number in (1, 19, -1):
        with pytest.raises(ValueError, match="number"):
            frames.signal_of(number)
    with pytest.raises(frames.StreamError):
        frames.Wanted(places=(1,)).of((file,))
