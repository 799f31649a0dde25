"""Files that go along with jobs, from a laptop by one HTTPS port or from beside the pool, and what jobs leave."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import secrets
import socket
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fork_server
import pytest
from conftest import PEOPLE
from forebay.errors import ForebayError, PoolRefused, PoolUnreachable
from forebay.service import Service
from forebay.service.files.copies import Copies
from forebay.service.files.file_link import FileLink
from forebay_pool.errors import FilesRefused
from forebay_pool.model import jobs as decisions
from forebay_pool.model.jobs import FileLimits
from forebay_pool.store.job_files import SUBMIT_NS, JobFiles, folder_of
from forebay_wire.remote import job_files as wire
from forebay_wire.remote.folder import NameRefused
from forebay_wire.remote.frames import File
from outside import cloud
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

Make = Callable[..., Any]
HUB = {"hub_api_url": "http://127.0.0.1:9/hub/api", "hub_token": "pool", "warm_workers": 0}
"""One that does not answer: jobs wait, and the tests start their runners."""
DAY_NS = 86_400 * 10**9
PROGRAM = """
import os, sys
from pathlib import Path
print(sorted(str(p) for p in Path(".").rglob("*") if p.is_file()), Path("data/x.bin").read_bytes().count(b"x"), flush=True)
Path("out/deep").mkdir(parents=True)
Path("out/deep/result.txt").write_text("attempt " + os.environ["FOREBAY_JOB_ATTEMPT"])
Path("log.txt").write_text("changed")
Path("empty").touch()
os.symlink("/etc/passwd", "link")
Path("__pycache__").mkdir(exist_ok=True)
Path("__pycache__/left").touch()
sys.exit(int(sys.argv[1]))
"""
TWICE = """
import os
from pathlib import Path
seen = Path("seen")
seen.write_text(seen.read_text() + "x" if seen.exists() else "x")
if seen.read_text() == "x":
    Path(os.environ["FOREBAY_JOB_LOSS"]).write_text("gone")
raise SystemExit(3)
"""
TREE = {"train.py": PROGRAM.encode(), "data/x.bin": b"x" * 700_000, "log.txt": b"before", "nothing": b"", "secret.env": b"key",
        ".forebayignore": b"secret.env\nout/\n"}  # fmt: skip


def in_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """A test that is a coroutine."""
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    return folder


def file(path: str, contents: bytes, **more: Any) -> File:
    return File(path=path, size=len(contents), hash=hash_of(contents), **more)


def hash_of(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def on_disk(running: Any) -> dict[str, bytes]:
    """All that is in the pool's folder of files, by its path there."""
    root = running.service.settings.state_dir / "job-files"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class Place:
    """A pool, and a user's machine."""

    def __init__(self, running: Any, folder: Path, environment: dict[str, str]) -> None:
        self.running, self.folder, self.environment = running, folder, environment
        self.home = folder / "home"
        self.work = write(folder / "laptop" / "work", TREE)
        self.home.mkdir()

    async def command(self, *words: str, at: Path | None = None, status: int = 0) -> tuple[str, str]:
        """What `forebay` says on the laptop."""
        told = {**self.environment, "HOME": str(self.folder / "laptop"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        command = [str(fork_server.programs()), "-m", "forebay", *words]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(*command, env=told, cwd=at or self.work, **pipes)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == status, (out, err)
        return out.decode(), err.decode()

    def start(self, number: int) -> None:
        """As the dispatcher does once JupyterHub has a server."""
        store = self.running.service.dispatcher.store
        assert store.change(number, lambda job: decisions.started(replace(job, state="queued"), job.since_ns)).state == "starting"

    async def run(self, number: int) -> None:
        """A runner takes the job, as JupyterHub starts it, and comes to its end."""
        self.start(number)
        told = {"FOREBAY_URL": self.running.service.url, "FOREBAY_TOKEN": "ada", "JUPYTERHUB_SERVER_NAME": f"job-{number}"}
        told |= {"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0/user/ada/", "JUPYTERHUB_USER": "ada", "HOME": str(self.home)}
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))} | told
        command = [str(fork_server.programs()), "-I", "-m", "forebay.toolkit.jobs"]
        runner = await asyncio.create_subprocess_exec(*command, env=environment, cwd=self.home)
        assert await asyncio.wait_for(runner.wait(), 60) == 0

    def printed(self, number: int) -> str:
        store = self.running.service.dispatcher.store
        return "".join(piece.text for piece in store.output(number, store.job(number).attempt, 0))


@contextlib.asynccontextmanager
async def place(pool: Make, folder: Path, outside: bool) -> AsyncIterator[Place]:
    """Beside the pool, or outside, with one HTTPS port."""
    if outside:
        async with cloud(pool, folder, PEOPLE, **HUB) as found:
            yield Place(found.pool, folder, found.environment())
    else:
        async with pool(**HUB) as running:
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
            yield Place(running, folder, {**kept, "FOREBAY_URL": running.service.url, "FOREBAY_TOKEN": "ada"})


@pytest.mark.parametrize("outside", [False, True])
@in_loop
async def test_a_job_has_the_files_of_the_folder_and_what_it_writes_comes_back(pool: Make, tmp_path: Path, outside: bool) -> None:
    async with place(pool, tmp_path, outside) as found:
        words = ["submit", *([] if outside else ["--upload"]), "train.py", "0"]
        os.symlink("/etc/hostname", found.work / "outward")
        _, said = await found.command(*words)
        assert "not sent: outward is a symbolic link" in said and "5 files of this folder go along; 684." in said, said
        job = found.running.service.dispatcher.store.job(1)
        assert (job.program.folder, job.program.file, len(job.program.files)) == ("", "train.py", 64)
        (found.work / "train.py").write_text("raise SystemExit('another')")  # a job has what was sent
        await found.run(1)
        assert found.printed(1) == f"{sorted(name for name in TREE if name != 'secret.env')} 700000\n"
        assert not list((found.home / ".forebay").rglob("*")), "its folder is gone with it"
        out, said = await found.command("jobs", "fetch", "1")
        assert out == "Job 1 left 3 files, 16 bytes, now in job-1.\n" and "link is a symbolic link" in said, (out, said)
        there = {str(path.relative_to(found.work / "job-1")): path for path in (found.work / "job-1").rglob("*") if path.is_file()}
        assert {name: path.read_text() for name, path in there.items()} == {
            "out/deep/result.txt": "attempt 1", "log.txt": "changed", "empty": "",
        }  # fmt: skip
        out, said = await found.command("jobs", "fetch", "1", "--into", ".")
        assert "log.txt is another file here, and stays; the job's is beside it as log.txt.from-job-1" in said
        assert (found.work / "log.txt").read_bytes() == b"before" and (found.work / "log.txt.from-job-1").read_text() == "changed"
        assert "2 were there already" in (await found.command("jobs", "fetch", "1", "--into", "."))[0]
        again = (await found.command("jobs", "fetch", "1"))[0]
        assert "3 were there already" in again
        (found.work / "train.py").write_bytes(TREE["train.py"])
        for name in ("job-1", "out"):
            subprocess.run(["rm", "-r", name], cwd=found.work, check=True)
        for name in ("log.txt.from-job-1", "empty"):
            (found.work / name).unlink()
        _, said = await found.command(*words)
        assert "5 files of this folder go along; 0 bytes had to be sent." in said, "nothing has changed"


@in_loop
async def test_a_run_that_is_repeated_goes_on_in_its_folder_and_one_that_fails_gives_back_what_it_wrote(pool: Make, tmp_path: Path) -> None:
    async with place(pool, tmp_path, False) as found:
        write(found.work, {"twice.py": TWICE.encode()})
        await found.command("submit", "--upload", "twice.py")
        await found.run(1)
        store = found.running.service.dispatcher.store
        assert (store.job(1).state, store.job(1).reason) == ("queued", "worker_lost")
        assert (found.home / ".forebay" / "jobs" / "1" / "files" / "seen").read_text() == "x"
        await found.run(1)
        assert (store.job(1).state, store.job(1).exit_status) == ("failed", 3)
        await found.command("jobs", "fetch", "1", "--into", "back")
        assert (found.work / "back" / "seen").read_text() == "xx" and not list((found.home / ".forebay").rglob("*"))
        assert sorted(path.name for path in (found.work / "back").iterdir()) == ["seen"]


@in_loop
async def test_what_a_job_wrote_and_nobody_takes_stays_and_its_output_says_where(pool: Make, tmp_path: Path) -> None:
    async with pool(**HUB, job_files_user_bytes_max=64 * 2**10) as running:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
        found = Place(running, tmp_path, {**kept, "FOREBAY_URL": running.service.url, "FOREBAY_TOKEN": "ada"})
        (found.work / "data" / "x.bin").write_bytes(b"x")
        write(found.work, {"big.py": b"open('big', 'wb').write(b'0123456789abcdef' * 2**16)"})
        await found.command("submit", "--upload", "big.py")
        await found.run(1)
        store = running.service.dispatcher.store
        assert store.job(1).state == "succeeded"
        folder = found.home / ".forebay" / "jobs" / "1" / "files"
        assert f"what the job wrote stays in {folder} of the hub's host: The files of your jobs may take" in found.printed(1)
        assert (folder / "big").stat().st_size == 2**20
        _, said = await found.command("jobs", "fetch", "1", status=1)
        assert said == "forebay: Job 1 left no files, or they are kept no longer.\n"
        assert not any(name.rpartition("/")[2].startswith(".forebay-") for name in on_disk(running))


@in_loop
async def test_what_cannot_be_sent_is_one_clear_error_and_nothing_is_submitted(pool: Make, tmp_path: Path) -> None:
    async with place(pool, tmp_path, False) as found:
        (found.folder / "above.py").touch()
        for words, why in (
            (("--upload", "../../above.py"), f"is not in this folder ({found.work}), which is what is sent along"),
            (("--upload", "none.py"), "There is no file none.py"),
            (("--upload", "secret.env"), "secret.env is not sent: .forebayignore names it"),
            (("--upload", "--limit", "100k", "train.py"), "The folder has more than"),
        ):
            _, said = await found.command("submit", *words, status=1)
            assert why in said and said.count("\n") == 1, said
        with (found.work / "large").open("wb") as large:
            large.truncate(201 * 10**6)
        _, said = await found.command("submit", "--upload", "train.py", status=1)
        assert "MiB would be sent, of which most in large (191.7 MiB), data/x.bin" in said and "or say --yes" in said, said
        assert not on_disk(found.running) and not found.running.service.dispatcher.store.jobs(None, None, 9, None)
        answer = await found.running.call("POST", "api/jobs", "ada", {"kind": "script", "file": "train.py", "files": "0" * 64})
        assert answer.code == 409 and b"are not there, or no longer" in answer.body


# The link


def link(running: Any, who: str = "ada") -> FileLink:
    return FileLink(Service(running.service.url, who))


def send(running: Any, files: dict[str, bytes], who: str = "ada", run: wire.JobRun | None = None) -> tuple[list[str], str]:
    """Which paths were wanted, and the list's name."""
    with link(running, who) as one:
        wanted = one.offer([file(path, contents) for path, contents in files.items()], run)
        return [each.path for each in wanted], one.send(wanted, lambda each: [files[each.path]] if files[each.path] else [])


@in_loop
async def test_nobody_learns_what_others_have_and_each_sees_their_own(pool: Make, tmp_path: Path) -> None:
    async with pool(**HUB) as running:
        files = {"a": b"the same", "b": b"", "c": b"the same"}
        assert await asyncio.to_thread(send, running, files) == (["a", "b"], wire.name_of(file(*one) for one in files.items()))
        for who in ("ben", "other-ada"):
            wanted, name = await asyncio.to_thread(send, running, {"a": b"the same"}, who)
            assert wanted == ["a"], "whether somebody else has it is not told"
            body = {"kind": "script", "file": "a", "files": wire.name_of(file(*one) for one in files.items())}
            assert (await running.call("POST", "api/jobs", who, body)).code == 409, "a list of somebody else's"
            assert (await running.call("POST", "api/jobs", who, {**body, "files": name})).code == 201
        assert (await asyncio.to_thread(send, running, files))[0] == []
        for who in ("ada", "olga", "other-ada", "operator"):  # job 1 is ben's
            with pytest.raises((PoolRefused, PoolUnreachable)) as refused:
                await asyncio.to_thread(lambda who=who: link(running, who).ask(1, "sent"))
            assert "no job 1" in str(refused.value) or "for its user alone" in str(refused.value) or "token" in str(refused.value)
        for path in (running.service.settings.state_dir / "job-files").rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


BAD_PATHS = ["../up", "/etc/passwd", "a/../../b", ".", "a//b", "a/", "x\0y", "n" * 256, "/".join("d" * 70)]


@in_loop
async def test_hostile_lists_and_contents_are_refused_and_leave_nothing(pool: Make, tmp_path: Path) -> None:
    async with pool(**HUB) as running:
        url = running.service.url.replace("http", "ws", 1) + "api/job-files"

        def said(*sent: str | bytes) -> str:
            with connect(url, additional_headers={"Authorization": "token ada"}, compression=None, proxy=None) as raw:
                heard = ""
                with contextlib.suppress(ConnectionClosed):
                    for message in sent:
                        raw.send(message)
                    while True:
                        heard = str(raw.recv(30))
                return heard

        def offer(*files: File, **more: Any) -> str:
            return wire.Offer.model_construct(files=files, **{"type": "offer", "run": None, "left": (), **more}).model_dump_json()

        one = file("a", b"abcd")
        cases: list[tuple[tuple[str | bytes, ...], str]] = [
            (("{",), "message"), (("[]",), "message"), (('{"type":"kept","files":"' + 64 * "0" + '"}',), "message"), (("",), "message"),
            ((offer(one).replace('"size":4', '"size":-1'),), "size"),
            ((offer(one).replace('"size":4', '"size":9223372036854775808'),), "size"),
            ((offer(one, one),), "a is there twice"), ((offer(one, file("a/b", b"")),), "a/b is below what is a file"),
            ((offer(one), b"abcde"), "more bytes than its size"), ((offer(one), b"abce"), "other contents"),
            ((offer(one), b"ab", offer(one)), "contents are on their way"), ((b"abcd",), "nobody asked for"),
            ((wire.Wanted(places=(0,)).encode(),), "no list was told"),
            ((wire.Ask(job=99, which="sent").encode(),), "no job 99"),
            ((offer(one, run=wire.JobRun(job=99, key="0" * 32)),), "no job 99"),
            ((offer(*(file(str(n), b"") for n in range(wire.FILES_MAX + 1))),), "files"),
            ((offer(file("huge", b"").model_copy(update={"size": 2**50})),), "may take 8 GiB"),
        ]  # fmt: skip
        cases += [((offer(file(path, b"")),), "too long" if path.count("/") > 60 else "a file below the folder") for path in BAD_PATHS]
        for sent, why in cases:
            heard = await asyncio.to_thread(said, *sent)
            assert heard.startswith('{"type":"denied"') and why in heard, (sent[0][:200], heard)
        await running.until(lambda: not on_disk(running) and not running.service.dispatcher.files.links)
        assert not running.service.dispatcher.files.files._uploads
        assert (await running.call("GET", "api/job-files", "ada")).code == 426
        for path in BAD_PATHS:
            with pytest.raises(NameRefused):
                wire.check([file(path, b"")])


@in_loop
async def test_a_client_that_dies_leaves_what_came_whole_and_no_small_half(pool: Make, tmp_path: Path) -> None:
    async with pool(**HUB) as running:
        files = {"whole": b"1" * 300_000, "half": b"2" * 600_000}
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def die() -> None:
            one = link(running)
            wanted = one.offer([file(*each) for each in files.items()])
            assert [each.path for each in wanted] == ["whole", "half"]
            for piece in (b"1" * 200_000, b"1" * 100_000, b"2" * 250_000):
                one._send(piece)
            loop.call_soon_threadsafe(started.set)
            one._link.socket.shutdown(socket.SHUT_RDWR)

        await asyncio.to_thread(die)
        await started.wait()
        await running.until(lambda: not running.service.dispatcher.files.links and not running.service.dispatcher.files.files._uploads)
        assert [hash_of(contents) for contents in on_disk(running).values()] == [hash_of(files["whole"])]
        assert (await asyncio.to_thread(send, running, files))[0] == ["half"], "what came whole is not sent again"


LARGE = bytes(range(251)) * 20_000
"""5 MB, whose pieces all differ."""


def die_midway(running: Any, files: dict[str, bytes], count: int) -> int:
    """Sends so many bytes of the first file that is wanted, which the pool has then, and breaks off. What was there of it before."""
    one = link(running)
    wanted = one.offer([file(*each) for each in files.items()])
    contents, begun = files[wanted[0].path], one._begun
    for place in range(begun, begun + count, wire.PIECE_BYTES):
        one._send(contents[place : min(begun + count, place + wire.PIECE_BYTES)])
    halves = running.service.dispatcher.files.files._uploads[-1]
    while halves._written._left > len(contents) - begun - count:
        time.sleep(0.01)
    one._link.socket.shutdown(socket.SHUT_RDWR)
    return begun


@in_loop
async def test_a_file_that_broke_off_goes_on_from_what_came(pool: Make, tmp_path: Path) -> None:
    async with pool(**HUB) as running:
        files = {"a": b"1" * 300_000, "large": LARGE}
        transfers = running.service.dispatcher.files

        async def idle() -> None:
            await running.until(lambda: not transfers.links and not transfers.files._uploads)

        assert (await asyncio.to_thread(send, running, {"a": files["a"]}))[0] == ["a"]
        for begun in (0, 1_500_000, 3_000_000):
            assert await asyncio.to_thread(die_midway, running, files, 1_500_000) == begun
            await idle()
            (half,) = halves_of(running)
            assert half.read_bytes() == LARGE[: begun + 1_500_000]
        one = await asyncio.to_thread(link, running)
        wanted = await asyncio.to_thread(one.offer, [file(*each) for each in (files | {"b": b"b"}).items()])
        assert [each.path for each in wanted] == ["large", "b"] and one._begun == 4_500_000, "what was begun comes first"
        name = await asyncio.to_thread(one.send, wanted, lambda each: [(files | {"b": b"b"})[each.path]])
        one.__exit__()
        await idle()
        kept = [contents for path, contents in on_disk(running).items() if "/sent/" not in path]
        assert name and sorted(kept) == sorted([*files.values(), b"b"])


def halves_of(running: Any) -> list[Path]:
    return list((running.service.settings.state_dir / "job-files").rglob("*.half"))


@in_loop
async def test_a_half_that_is_not_what_it_should_be_costs_one_more_try(pool: Make, tmp_path: Path) -> None:
    async with pool(**HUB) as running:
        transfers = running.service.dispatcher.files
        await asyncio.to_thread(die_midway, running, {"large": LARGE}, 2_000_000)
        await running.until(lambda: not transfers.files._uploads)
        (half,) = halves_of(running)
        half.write_bytes(b"?" + half.read_bytes()[1:])
        with pytest.raises(PoolRefused, match="other contents than were told of"):
            await asyncio.to_thread(send, running, {"large": LARGE})
        await running.until(lambda: not transfers.files._uploads)
        assert not halves_of(running)
        assert (await asyncio.to_thread(send, running, {"large": LARGE}))[0] == ["large"]
        await asyncio.to_thread(die_midway, running, {"other": LARGE[1:]}, 2_000_000)
        await running.until(lambda: not transfers.files._uploads)
        (half,) = halves_of(running)
        half.write_bytes(LARGE[1:] + b"more")
        one = await asyncio.to_thread(link, running)
        await asyncio.to_thread(one.offer, [file("other", LARGE[1:])])
        assert one._begun == 0, "it is longer than the whole"
        one.__exit__()


@in_loop
async def test_files_of_a_job_are_fetched_on_from_where_it_broke_off(pool: Make, tmp_path: Path) -> None:
    async with place(pool, tmp_path, outside=False) as laptop:
        write(laptop.work, {"deep/large": LARGE})
        await laptop.command("submit", "--upload", "--yes", "train.py")
        into, moved = tmp_path / "into", []

        def fetch(cut: int) -> None:
            """Until so much is there."""
            moved.clear()

            def follow(done: int, total: int) -> None:
                moved.append(done)
                if done >= cut:
                    with contextlib.suppress(OSError):  # it is closed already
                        one._link.socket.shutdown(socket.SHUT_RDWR)

            with FileLink(Service(laptop.running.service.url, "ada"), follow) as one:
                listed = one.ask(1, "sent")
                large = [place for place, each in enumerate(listed.files) if each.path == "deep/large"]
                one.take(listed, [*large, *(set(range(len(listed.files))) - set(large))], into, lambda each: each.path.rpartition("/")[2])

        before = 0
        for cut in (2_000_000, 3_000_000):
            with pytest.raises(PoolUnreachable, match="what has come is not sent again"):
                await asyncio.to_thread(fetch, cut)
            assert moved[0] == before and moved[-1] >= cut
            (half,) = [path for path in into.rglob("*") if path.is_file()]
            before = half.stat().st_size
            assert half.parent.name == "deep" and before >= cut and LARGE.startswith(half.read_bytes())
        await asyncio.to_thread(fetch, 1 << 60)
        assert moved[0] == before
        fetched = {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}
        assert fetched["deep/large"] == LARGE and not [name for name in fetched if name.endswith(".half")]


@in_loop
async def test_only_the_runner_that_has_a_job_says_what_it_left(pool: Make, tmp_path: Path) -> None:
    async with pool(**HUB) as running:
        _, name = await asyncio.to_thread(send, running, {"a.py": b""})
        assert (await running.call("POST", "api/jobs", "ada", {"kind": "script", "file": "a.py", "files": name})).code == 201
        found = Place(running, tmp_path, {})
        found.start(1)
        key, other = "a" * 32, "b" * 32
        with pytest.raises(PoolRefused, match="This run of job 1 is over"):
            await asyncio.to_thread(send, running, {"out": b"1"}, "ada", wire.JobRun(job=1, key=key))
        assert (await running.call("POST", "api/jobs/1/begin", "ada", {"key": key, "takes_files": True})).code == 200
        for who, its, why in (("ada", other, "This run of job 1 is over"), ("ben", key, "no job 1"), ("other-ada", key, "no job 1")):
            with pytest.raises(PoolRefused, match=why):
                await asyncio.to_thread(send, running, {"out": b"1"}, who, wire.JobRun(job=1, key=its))
        with pytest.raises(PoolRefused, match="Job 1 is running; what it writes can be had once it is over"):
            await asyncio.to_thread(lambda: link(running).ask(1, "results"))
        assert (await asyncio.to_thread(send, running, {"out": b"1"}, "ada", wire.JobRun(job=1, key=key)))[0] == ["out"]
        with await asyncio.to_thread(link, running) as one:
            assert [each.path for each in (await asyncio.to_thread(one.ask, 1, "results")).files] == ["out"]


@in_loop
async def test_a_runner_that_knows_of_no_files_runs_nothing_in_their_place(pool: Make, tmp_path: Path) -> None:
    async with pool(**HUB) as running:
        _, name = await asyncio.to_thread(send, running, {"a.py": b""})
        await running.call("POST", "api/jobs", "ada", {"kind": "script", "file": "a.py", "files": name})
        Place(running, tmp_path, {}).start(1)
        refused = await running.call("POST", "api/jobs/1/begin", "ada", {"key": "a" * 32})
        assert refused.code == 409 and b"takes no files along" in refused.body
        row = await running.get("api/jobs/1", "ada")
        assert (row["state"], row["reason"]) == ("failed", "older_release") and "`forebay update`" in row["sentence"]


@in_loop
async def test_a_user_has_so_many_links_and_no_more(pool: Make, tmp_path: Path) -> None:
    async with pool(**HUB) as running:
        with contextlib.ExitStack() as opened:
            for _ in range(4):
                opened.enter_context(await asyncio.to_thread(link, running))
            with pytest.raises(PoolRefused, match="4 times already"):
                await asyncio.to_thread(send, running, {"a": b"1"})
            assert (await asyncio.to_thread(send, running, {"a": b"1"}, "ben"))[0] == ["a"]
        await running.until(lambda: not running.service.dispatcher.files.links)
        assert (await asyncio.to_thread(send, running, {"a": b"1"}))[0] == ["a"]


# What is kept


class Clock:
    """The file system's own, which tests set forward."""

    def __init__(self) -> None:
        self.ahead_ns, self._now = 0, time.time_ns

    def __call__(self) -> int:
        return self._now() + self.ahead_ns


LIMITS = FileLimits(100 * 4096, 7 * 86_400, 0)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[JobFiles, Clock]]:
    clock = Clock()
    files = JobFiles(tmp_path / "files", LIMITS, clock)
    files.begin()
    yield files, clock
    assert not files._uploads


def put(files: JobFiles, contents: dict[str, bytes], job: int | None = None, needed: tuple[str, ...] = (), user: str = "ada") -> str:
    upload = files.take("acme", user, [file(*one) for one in contents.items()], needed)
    try:
        for place in upload.wanted:
            data = contents[upload.files[place].path]
            for start in range(0, len(data), 5000):
                upload.add(data[start : start + 5000])
        assert upload.complete and upload.left_bytes == 0
        return files.keep(upload, job, ())
    finally:
        files.drop(upload)


def names(files: JobFiles, user: str = "ada") -> set[str]:
    member = files._member("acme", user)
    return {one.name for one in member.contents()}


def test_files_stay_as_long_as_jobs_need_them_and_results_for_their_time(kept: tuple[JobFiles, Clock]) -> None:
    files, clock = kept
    needed = put(files, {"a": b"needed", "b": b"both"})
    put(files, {"b": b"both", "c": b"forgotten"})
    put(files, {"d": b"result"}, job=1)
    assert files.sweep({}) == 7 * 4096, "four contents and three lists"
    clock.ahead_ns = 6 * DAY_NS
    put(files, {"e": b"young"})
    os.utime(files._member("acme", "ada")._list("results", "1"), ns=(clock(), clock()))
    clock.ahead_ns = 8 * DAY_NS
    files.sweep({("acme", "ada"): {needed}, ("globex", "ada"): {"0" * 64}})
    assert names(files) == {hash_of(one) for one in (b"needed", b"both", b"result")}
    assert not files.use("acme", "ada", "0" * 64) and files.use("acme", "ada", needed)
    clock.ahead_ns = 30 * DAY_NS
    assert files.sweep({}) == 0 and not list(files._path.iterdir()), "nothing is left of somebody who has no jobs"


def test_room_is_made_of_what_nobody_needs_and_of_nothing_else(kept: tuple[JobFiles, Clock]) -> None:
    files, clock = kept
    needed = put(files, {"a": b"a" * 40 * 4096})
    put(files, {"b": b"b" * 40 * 4096})
    with pytest.raises(FilesRefused, match=r"these would be .* too many"):
        put(files, {"c": b"c" * 40 * 4096}, needed=(needed,))
    assert names(files) == {hash_of(b"a" * 40 * 4096), hash_of(b"b" * 40 * 4096)}, "what was sent just now may be submitted"
    clock.ahead_ns = SUBMIT_NS + 10**9
    put(files, {"c": b"c" * 40 * 4096}, needed=(needed,))
    assert names(files) == {hash_of(b"a" * 40 * 4096), hash_of(b"c" * 40 * 4096)}
    assert put(files, {"b": b"b" * 90 * 4096}, user="ben"), "each has their own room"
    with pytest.raises(FilesRefused):
        put(files, {str(n): str(n).encode() for n in range(101)}, user="cy")


def test_two_uploads_at_a_time_do_not_take_the_same_room_twice(kept: tuple[JobFiles, Clock]) -> None:
    files, _ = kept
    first = files.take("acme", "ada", [file("a", b"a" * 60 * 4096)], ())
    with pytest.raises(FilesRefused):
        files.take("acme", "ada", [file("b", b"b" * 60 * 4096)], ())
    files.drop(first)
    with pytest.raises(FilesRefused, match="More contents came"):
        first.add(b"a")
    second = files.take("acme", "ada", [file("b", b"b" * 60 * 4096)], ())
    files.drop(second)
    assert not names(files)


def test_a_half_takes_room_until_it_is_needed_or_nobody_came_back_for_it(
    kept: tuple[JobFiles, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay_wire.remote.folder.HALF_BYTES_MIN", 1)
    files, clock = kept
    one = file("a", b"a" * 45 * 4096)

    def break_off() -> None:
        upload = files.take("acme", "ada", [one], ())
        upload.add(b"a" * 40 * 4096)
        files.drop(upload)
        assert names(files) == {f"{one.hash}.half"} and files._member("acme", "ada").bytes == 40 * 4096

    break_off()
    put(files, {"b": b"b" * 80 * 4096})
    assert names(files) == {hash_of(b"b" * 80 * 4096)}
    clock.ahead_ns = 8 * DAY_NS
    break_off()
    again = files.take("acme", "ada", [file("c", b"c"), one], ())
    assert again.wanted == (1, 0) and again.go_on() == 40 * 4096 and not names(files)
    files.drop(again)
    assert again.go_on() == 0, "it is over"
    clock.ahead_ns = 30 * DAY_NS
    assert files.sweep({}) == 0 and not names(files)


def test_contents_that_were_damaged_are_told_of_and_sent_anew(kept: tuple[JobFiles, Clock]) -> None:
    files, _ = kept
    put(files, {"a": b"abcd"})
    one = file("a", b"abcd")
    (files._member("acme", "ada").path / one.hash).write_bytes(b"abce")
    with pytest.raises(FilesRefused, match="was damaged"):
        list(files.pieces("acme", "ada", one, 0))
    upload = files.take("acme", "ada", [one], ())
    assert upload.wanted == (0,)
    files.drop(upload)
    with pytest.raises(FilesRefused, match="not kept any more"):
        list(files.pieces("acme", "ada", one, 0))


def test_a_disk_that_is_full_takes_no_files_and_a_pool_that_was_killed_leaves_no_halves(tmp_path: Path) -> None:
    short = JobFiles(tmp_path / "short", replace(LIMITS, free_bytes_min=2**60), Clock())
    short.begin()
    with pytest.raises(FilesRefused, match="The disk that keeps the files of jobs is full"):
        put(short, {"a": b"1"})
    upload = JobFiles(tmp_path / "short", LIMITS, Clock()).take("acme", "ada", [file("a", b"12")], ())
    upload.add(b"1")  # and there it ends
    assert len(list((tmp_path / "short" / folder_of("acme", "ada")).glob(".forebay-*"))) == 1
    short.begin()
    assert not list((tmp_path / "short" / folder_of("acme", "ada")).glob(".forebay-*"))
    upload.close()


@pytest.mark.skipif(os.getuid() != 0, reason="a small file system is mounted by root alone")
@in_loop
async def test_a_disk_that_fills_up_midway_is_one_clear_error(pool: Make, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(small)], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        async with pool(**HUB, job_files_dir=str(small), job_files_free_bytes_min=0) as running:
            files = running.service.dispatcher.files.files
            files._limits = replace(files._limits, free_bytes_min=-(2**40))
            with pytest.raises(PoolRefused, match="The disk that keeps the files of jobs is full; tell an operator"):
                await asyncio.to_thread(send, running, {name: secrets.token_bytes(300_000) for name in "ab"})
            await running.until(lambda: not running.service.dispatcher.files.links and not list(small.rglob(".forebay-*")))
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_file_that_changes_while_it_goes_is_told_of(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"before"})
    copies = Copies(tmp_path, 2**30, results=True)
    (tmp_path / "a").write_bytes(b"after!")
    with pytest.raises(ForebayError, match="a changed while it was sent"):
        list(copies.pieces(copies.files[0]))
    copies.close()
