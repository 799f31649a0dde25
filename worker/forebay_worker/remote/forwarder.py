"""``python -I -m forebay_worker.remote.forwarder SOCKET PORT COMMAND …``: within a sandbox, before the user's command.

Programs name a proxy by a host and a port, and the one that lets them out (:mod:`forebay_worker.remote.egress`) is at a socket in a file.
This listens at the port, on the sandbox's own loopback interface, and passes connections on. It has no right that the command lacks: who
ends it, or goes to the socket, gains nothing. Then it becomes the command; what passes on is no child of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys

from forebay_worker.remote.tunnel import join

NOT_FOUND, NOT_RUN = 127, 126
"""As a shell's."""


def main() -> None:
    """Never returns."""
    path, port, *command = sys.argv[1:]
    listening = socket.create_server(("127.0.0.1", int(port)))
    child = os.fork()
    if not child:
        os.setsid()  # what a terminal sends to the command is none of this one's
        if not os.fork():
            _detach()
            asyncio.run(_pass_on(listening, path))
        os._exit(0)
    os.waitpid(child, 0)
    listening.close()
    try:
        os.execvp(command[0], command)  # noqa: S606 no shell is the point
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN)


def _detach() -> None:
    """Who reads what the command writes is to see its end."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


async def _pass_on(listening: socket.socket, path: str) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            out = await asyncio.open_unix_connection(path)
        except OSError:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            await join((reader, writer), out)

    server = await asyncio.start_server(carry, sock=listening)
    await server.serve_forever()


if __name__ == "__main__":
    main()
