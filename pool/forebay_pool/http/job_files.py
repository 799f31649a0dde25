"""The WebSocket by which the files of jobs come, and are had back: ``docs/wire.md``, Files of jobs."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator

from forebay_service.errors import RequestError
from forebay_service.peers.front import BYTES_PER_SECOND, Front
from forebay_service.peers.rate_limit import Crowded
from forebay_wire.message_parts import Message
from forebay_wire.remote import job_files as wire
from forebay_wire.remote.folder import ContentsRefused, NameRefused
from forebay_wire.remote.frames import File, StreamError
from tornado.websocket import WebSocketClosedError, WebSocketProtocol13

from forebay_pool.errors import FilesRefused
from forebay_pool.http.handler import owns
from forebay_pool.http.jobs import JobApi
from forebay_pool.http.web_sockets import SocketApi
from forebay_pool.jobs.file_transfers import FileTransfers
from forebay_pool.model import jobs as decisions
from forebay_pool.model.jobs import Job
from forebay_pool.store.job_files import Upload

LINKS_PER_USER_MAX = 4
PING_SECONDS = 60.0
"""Who answers no ping for so long is gone."""
LIFE_SECONDS_MAX = 86_400.0
FRAME_SECONDS = 0.0002
"""What a message takes of the pool's time beside its bytes."""
CROWDED_SECONDS = 0.5
DENIED_CHARACTERS_MAX = 2_000
CLOSE_POLICY, CLOSE_NORMAL = 1008, 1000

log = logging.getLogger(__name__)


class JobFilesLink(SocketApi, JobApi):
    """``GET api/job-files``. A member sends a list of files and what is wanted of their contents, or asks for those of a job of theirs."""

    @property
    def ping_interval(self) -> float:
        return PING_SECONDS

    @property
    def ping_timeout(self) -> float:
        return PING_SECONDS

    @property
    def max_message_size(self) -> int:
        return wire.MESSAGE_BYTES_MAX

    async def prepare(self) -> None:
        super().prepare()
        self._identity, self._tenant = await self.member()
        self._whose = (self._tenant, self._identity.name)
        self._files = self.dispatcher.files
        self._upload: Upload | None = None
        self._run: wire.JobRun | None = None
        self._left: tuple[str, ...] = ()
        self._listed: tuple[Job, tuple[File, ...]] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._opened = self._counted = self._over = False

    @property
    def transfers(self) -> FileTransfers:
        """Raises FilesRefused."""
        if self._files is None:
            raise FilesRefused("This pool takes no files of jobs; ask an operator about job_files_dir.")
        return self._files

    def open(self, *_arguments: str) -> None:
        self.set_nodelay(True)
        self._opened = True
        if isinstance(self.ws_connection, WebSocketProtocol13):  # other requests have less to say
            self.ws_connection.stream.max_buffer_size = 2 * wire.MESSAGE_BYTES_MAX
        self._end = asyncio.get_running_loop().call_later(LIFE_SECONDS_MAX, self._deny, "This took longer than a day; begin again.")
        if self._files is not None and not self._count(self._files):
            self._deny(f"{self._identity.name} sends or fetches files of jobs {LINKS_PER_USER_MAX} times already; wait until one is over.")

    def _count(self, transfers: FileTransfers) -> bool:
        """Whether the member may have one more."""
        self._counted = True
        transfers.links[self._whose] += 1
        return transfers.links[self._whose] <= LINKS_PER_USER_MAX

    async def on_message(self, message: str | bytes) -> None:  # Tornado waits for it before it reads on
        if self._over:
            return
        try:
            await self._take_turn(len(message))
            await (self._hear(message) if isinstance(message, str) else self._take(message))
        except (RequestError, StreamError, ContentsRefused, NameRefused) as error:
            self._deny(str(error))
        except OSError as error:
            log.error("files of jobs are not kept: %s", error, extra={"action": "job_files_failed", "user": self._identity.name})
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self._deny("The disk that keeps the files of jobs is full; tell an operator." if full else "The files cannot be kept now.")

    async def _take_turn(self, size: int) -> None:
        """Waits for the turn that so many bytes take."""
        front: Front | None = self.settings.get("front")
        peer = None if front is None else front.peer_of(self.request.headers, str(self.request.remote_ip))
        while front is not None and front.rate_limit is not None and peer is not None and not self._over:
            try:
                await front.rate_limit.turn(peer, FRAME_SECONDS + size / BYTES_PER_SECOND)
                return
            except Crowded:
                await asyncio.sleep(CROWDED_SECONDS)

    async def _hear(self, text: str) -> None:
        """Raises RequestError, StreamError, NameRefused, OSError."""
        message = await self.transfers.do(wire.from_client, text)
        if self._upload is not None or self._sending is not None:
            raise StreamError(f"{message.type} while contents are on their way")
        match message:
            case wire.Offer():
                await self._begin(message)
            case wire.Ask():
                await self._list(message)
            case wire.Wanted():
                self._sending = asyncio.create_task(self._send(message), name="job-files-down")

    # What comes

    async def _begin(self, offer: wire.Offer) -> None:
        if offer.run is not None:
            await self._check_run(offer.run)
        transfers, needed = self.transfers, await self.transfers.needed(*self._whose)
        upload = await transfers.do(transfers.files.take, *self._whose, offer.files, needed)
        if self._over:
            transfers.later(transfers.files.drop, upload)
            return
        self._upload, self._run, self._left = upload, offer.run, offer.left
        begun = await transfers.do(upload.go_on)
        await self._say(wire.Wanted(places=upload.wanted, begun=begun))
        if upload.complete and not self._over:
            await self._finish(upload)

    async def _check_run(self, run: wire.JobRun) -> None:
        """Raises RequestError for a runner that does not have the job."""
        job = await self.job(self._identity, str(run.job))
        if not owns(self._identity, job) or job.program.files is None:
            raise FilesRefused(f"Job {run.job} leaves no files here.")
        decisions.heard(job, run.key, 0)

    async def _take(self, piece: bytes) -> None:
        upload = self._upload
        if upload is None:
            raise StreamError("contents that nobody asked for")
        await self.transfers.do(upload.add, piece)
        if upload.complete and not self._over:
            await self._finish(upload)

    async def _finish(self, upload: Upload) -> None:
        transfers, run = self.transfers, self._run
        if run is not None:
            await self._check_run(run)  # another may have it by now
        name = await transfers.do(transfers.files.keep, upload, None if run is None else run.job, self._left)
        self._drop_upload()
        fields = {"action": "job_files_kept", "tenant": self._tenant, "user": self._identity.name, "job": None if run is None else run.job}
        log.info("%d files of %s are kept", len(upload.files), self._identity.name, extra=fields)
        await self._say(wire.Kept(files=name))

    def _drop_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            self.transfers.later(self.transfers.files.drop, upload)

    # What is had back

    async def _list(self, asked: wire.Ask) -> None:
        job = await self.job(self._identity, str(asked.job))
        if not owns(self._identity, job):
            raise FilesRefused("The files of a job are for its user alone.")
        if job.program.files is None:
            raise FilesRefused(f"Job {job.id} ran in your home at the hub, and what it wrote is there.")
        transfers = self.transfers
        listed = await transfers.do(transfers.files.listed, *self._whose, asked.which, _name_of(job, asked.which))
        if listed is None:
            raise FilesRefused(_why_none(job, asked.which))
        self._listed = (job, listed.files)
        await self._say(listed)

    async def _send(self, wanted: wire.Wanted) -> None:
        """As fast as they are taken."""
        try:
            if self._listed is None:
                raise StreamError("wanted where no list was told")
            begun = wanted.begun
            for file in wanted.of(self._listed[1]):
                await self._send_file(self.transfers.files.pieces(*self._whose, file, begun))
                begun = 0
            self.close(CLOSE_NORMAL)
        except (RequestError, StreamError) as error:
            self._deny(str(error))
        except (OSError, WebSocketClosedError):
            self.close()

    async def _send_file(self, pieces: Iterator[bytes]) -> None:
        while (piece := await self.transfers.do(next, pieces, None)) is not None:
            await self._take_turn(len(piece))
            await self.write_message(piece, binary=True)

    # The end

    async def _say(self, message: Message) -> None:
        text = await self.transfers.do(message.encode)
        if not self._over:
            await self.write_message(text)

    def _deny(self, why: str) -> None:
        """Says why, and ends the link."""
        if self._over:
            return
        try:
            self.write_message(wire.Denied(why=why[:DENIED_CHARACTERS_MAX]).encode())
        except WebSocketClosedError:
            pass
        self._release()
        self.close(CLOSE_POLICY, "denied")

    def on_close(self) -> None:
        self._release()
        if self._sending is not None:
            self._sending.cancel()
        if self._opened:
            self._end.cancel()
        if self._counted:
            self._counted = False
            self.transfers.links[self._whose] -= 1
            if not self.transfers.links[self._whose]:
                del self.transfers.links[self._whose]

    def _release(self) -> None:
        self._over = True
        self._drop_upload()


def _name_of(job: Job, which: str) -> str:
    return str(job.program.files) if which == "sent" else str(job.id)


def _why_none(job: Job, which: str) -> str:
    if which == "sent":
        return f"The files that job {job.id} is to begin with are kept no longer; submit it again."
    if job.over:
        return f"Job {job.id} left no files, or they are kept no longer."
    return f"Job {job.id} is {job.state}; what it writes can be had once it is over."
