"""``python -m forebay_worker``: a worker, which serves one session on one device, or on several with a process for each."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import dataclasses
import functools
import ipaddress
import json
import logging
import math
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from forebay_worker import WorkerError, compile_queue, confinement, device_graphs, drivers, pytorch, standalone
from forebay_worker.compile_queue import Compiling
from forebay_worker.energy import EnergyMeter, counters_of
from forebay_worker.groups import device_library
from forebay_worker.groups.gang import TICKET_VARIABLE, Gang
from forebay_worker.pytorch import SeenDevice
from forebay_worker.user_code import programs, runtimes
from forebay_worker.user_code.kept_programs import KeptPrograms
from forebay_worker.user_code.kernels import ON_HOST, Kernels

if TYPE_CHECKING:
    from forebay_wire.message_parts import ProcessBounds

    from forebay_worker._executor import Server
    from forebay_worker.remote.host import ProcessHost

LOG = logging.getLogger("forebay.worker")

TOKEN_VARIABLE = "FOREBAY_WORKER_TOKEN"  # noqa: S105 # the variable's name, not a token
OTHERS_VARIABLE = "FOREBAY_OTHER_TICKETS"
PLAINTEXT_VARIABLE = "FOREBAY_WORKER_PLAINTEXT"
RECONNECT_VARIABLE = "FOREBAY_WORKER_RECONNECT_SECONDS"
WARM_VARIABLE = "FOREBAY_WORKER_WARM_PROGRAMS"
CLIENT_VARIABLE = "FOREBAY_URL"
DEFAULT_DEVICE = "cpu:0"
PR_SET_PDEATHSIG = 1
RECONNECT_SECONDS_MAX = 86_400
STOP_SECONDS_MAX = 5.0
"""How long the executor may take to reach its next command boundary when the worker must go."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m forebay_worker",
        description="Carries out the command stream of one virtual device on one device of this host, or on several.",
        epilog=f"The worker's token is read from the environment variable {TOKEN_VARIABLE}, a ticket also from {TICKET_VARIABLE}.",
    )
    what = result.add_mutually_exclusive_group(required=True)
    what.add_argument("--pool", metavar="URL[,URL]", help="the worker link of each pool, for example ws://127.0.0.1:8080/pool/api/worker")
    what.add_argument("--standalone", metavar="ADDRESS", help="diagnosis without a pool: listen here, with one endless lease")
    what.add_argument("--describe", action="store_true", help="print PyTorch's version, devices, and what drivers say, as JSON, and exit")
    result.add_argument("--worker", metavar="ID", help="the name the pool knows this worker by (with --pool)")
    devices = "cpu:0, cuda:N, hip:N, null:0, or NAME:N of an out-of-tree back end (default: cpu:0)"
    result.add_argument("--device", metavar="KIND:N", action="append", help=f"{devices}; given again for each further one of a session")
    others = f"where the process of a device on another host listens (--standalone), again for each; tickets: {OTHERS_VARIABLE}"
    result.add_argument("--other", metavar="ADDRESS", action="append", default=[], help=others)
    result.add_argument("--socket-dir", metavar="DIR", type=Path, help="where the command stream's Unix socket is made (with --pool)")
    result.add_argument("--listen", metavar="tcp:HOST:PORT", help="listen on TCP instead of a Unix socket; port 0 takes any")
    clear = f"what reaches this worker over a network may be in clear, too (default: {PLAINTEXT_VARIABLE} is 1)"
    result.add_argument("--plaintext", action="store_true", default=os.environ.get(PLAINTEXT_VARIABLE) == "1", help=clear)
    result.add_argument("--spill-dir", metavar="DIR", type=Path, help="where parked tensors go that memory has no place for")
    result.add_argument("--threads", metavar="N", type=int, help="threads of host operators (default: PyTorch's)")
    compiled = f"libraries are made of segments on which the device has worked so long (default: {compile_queue.AFTER_SECONDS:.0f})"
    result.add_argument("--compile-after", metavar="S", type=float, default=compile_queue.after_seconds(), help=compiled)
    result.add_argument("--libraries", metavar="DIR", type=Path, help="where they are kept, one tenant's alone (default: nowhere)")
    result.add_argument("--kernels", action="store_true", help="programs may launch kernels of their own on a GPU that is theirs alone")
    result.add_argument("--ticket", metavar="HEX", help="the ticket the client will show: 64 hex digits (with --standalone)")
    result.add_argument("--memory", metavar="BYTES", type=int, help="the memory limit (with --standalone; default: the devices' memory)")
    homes = "where storages of several devices lie: filling one after the other, and in parts where a batch of rows comes again and again; "
    homes += "the first alone; or, for diagnosis, in turn, or in stages whatever that costs, of one device or of several"
    result.add_argument("--homes", choices=("fill", "data-parallel", "scatter", "pipeline", "mesh"), default="data-parallel", help=homes)
    result.add_argument(
        "--resume-seconds", metavar="S", type=float, default=0.0, help="live on for so long without a pool (default: 0, end with the pool)"
    )
    back = f"a client over TCP whose connection breaks is waited for so long (default: {RECONNECT_VARIABLE}, else 0, not at all)"
    result.add_argument("--reconnect-seconds", metavar="S", type=float, default=os.environ.get(RECONNECT_VARIABLE, "0"), help=back)
    result.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    return result


def die_with_parent() -> None:
    """Asks the kernel to end this process when the one that started it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise WorkerError(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")


def describe() -> None:
    """Prints what ``--describe`` promises."""
    build = pytorch.build()
    seen = [(device, drivers.driver_of(device.kind, device.index, device.uuid)) for device in pytorch.seen_devices()]
    devices = [dataclasses.asdict(device) | {"driver": driver and dataclasses.asdict(driver)} for device, driver in seen]
    print(json.dumps({"torch": build.version, "accelerator": build.accelerator, "devices": devices}))


def address_of(options: argparse.Namespace) -> str:
    """Where the command stream listens. Raises WorkerError."""
    if options.standalone:
        return str(options.standalone)
    if options.listen:
        return str(options.listen)
    if options.socket_dir is None:
        raise WorkerError("--socket-dir says where the command stream's socket is made; or give --listen")
    return f"unix:{options.socket_dir / options.worker}.sock"


def run(options: argparse.Namespace) -> None:
    """Serves until the session ends. Raises WorkerError."""
    devices = [pytorch.find_device(name) for name in options.device]
    elsewhere = others_elsewhere(options)
    with contextlib.ExitStack() as stack:
        gang = gang_of(devices[1:], options)
        if gang is not None:
            stack.callback(gang.stop)
            gang.start()
        server = server_of(devices[0], [*([] if gang is None else gang.others), *elsewhere], options)
        stack.callback(remove_socket, server.address)
        kept = KeptPrograms(options.libraries)
        programs.accept(server, devices, bool(elsewhere), options.threads, kept)
        if (library := device_library.library_of(devices[0], options.listen or options.standalone)) is not None:
            server.collect_by(library)
        compiling = compiling_of(server, devices[0], gang is None and not elsewhere, options)
        if compiling is not None:
            stack.callback(compiling.close)
        try:
            asyncio.run(serve(server, devices, gang, compiling, kept, options))
        finally:
            server.end()
            if not server.join(STOP_SECONDS_MAX):
                LOG.error("an operator does not end", extra={"action": "abandon"})
                stack.close()
                os._exit(1)


def gang_of(devices: Sequence[SeenDevice], options: argparse.Namespace) -> Gang | None:
    """The processes of a session's other devices; None where there are none, or nothing is computed."""
    if not devices or devices[0].kind == "null":
        return None
    passed = ("--log-level", options.log_level, *(() if options.threads is None else ("--threads", str(options.threads))))
    return Gang(devices, options.socket_dir, options.worker or "device", passed)


def others_elsewhere(options: argparse.Namespace) -> list[tuple[str, bytes]]:
    """Addresses and tickets of the processes on other hosts. Raises WorkerError."""
    tickets = [ticket for ticket in os.environ.pop(OTHERS_VARIABLE, "").split(",") if ticket]
    if len(tickets) != len(options.other):
        raise WorkerError(f"{len(options.other)} --other, and {len(tickets)} tickets in {OTHERS_VARIABLE}")
    return [(address, bytes.fromhex(ticket)) for address, ticket in zip(options.other, tickets, strict=True)]


def server_of(device: SeenDevice, others: list[tuple[str, bytes]], options: argparse.Namespace) -> Server:
    """The executor, which listens. Raises WorkerError."""
    executor = pytorch.load_executor(device.kind)
    is_off = os.environ.get(compile_queue.SWITCH) == "0"
    homes = "rows" if is_off and options.homes == "data-parallel" else options.homes
    where = (address_of(options), options.threads, str(options.spill_dir or ""), others, homes)
    limit = functools.partial(pytorch.limit_accelerator_memory, device)
    graphs = None if is_off else device_graphs.maker_of(device)
    try:
        encryption = (not is_local(where[0]), options.plaintext)
        given = (device.kind, device.index, device.model, *where, limit, graphs, options.reconnect_seconds, *encryption)
        return cast("Server", executor.Server(*given))
    except (OSError, RuntimeError, ValueError) as error:
        raise WorkerError(f"the executor cannot start: {error}") from None


def compiling_of(server: Server, device: SeenDevice, alone: bool, options: argparse.Namespace) -> Compiling | Kernels | None:
    """What compiles for the device: libraries of segments for the host's, of a session that has it alone; for others kernels of programs.
    None where nothing does."""
    if device.kind != "cpu":
        return Kernels(server, device, options.kernels)
    server.take_kernels(ON_HOST, 0, "", None)
    if not alone or os.environ.get(compile_queue.SWITCH) == "0":
        return None
    server.compile(options.compile_after)
    return Compiling(server, pytorch.build().version, options.threads or len(os.sched_getaffinity(0)), options.libraries)


async def serve(
    server: Server,
    devices: Sequence[SeenDevice],
    gang: Gang | None,
    compiling: Compiling | Kernels | None,
    kept: KeptPrograms,
    options: argparse.Namespace,
) -> None:
    """Serves the pool, or one client alone, until that ends, a process of another device does, or a signal comes."""
    energy, heard = contextlib.ExitStack(), nothing if compiling is None else compiling.hear
    if options.standalone:
        limit_bytes = options.memory or sum(one.memory_bytes for one in devices)
        ticket = options.ticket or os.environ.pop(TICKET_VARIABLE)
        work = asyncio.ensure_future(standalone.serve(server, bytes.fromhex(ticket), limit_bytes, heard))
    else:
        from forebay_worker.link import Worker, WorkerLink  # not needed, and slow to load, without a pool

        token = os.environ.pop(TOKEN_VARIABLE)
        worker = Worker(options.worker, devices[0], pytorch.build().version, runtimes.served(devices))
        meter = energy.enter_context(EnergyMeter(functools.partial(counters_of, devices, bool(options.other))))
        keepers = [kept.keep_in, *([compiling.keep_in] if isinstance(compiling, Compiling) else [])]
        hosts = functools.partial(host_of_process, devices, options)
        is_warmed = os.environ.pop(WARM_VARIABLE, "") == "1" and not options.other
        ready = functools.partial(programs.load_ahead, options.threads, devices, kept) if is_warmed else nothing
        link = WorkerLink(worker, server, meter, options.resume_seconds, heard, keepers, hosts, ready)
        work = asyncio.ensure_future(link.run(options.pool.split(","), token))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    tasks = [work]
    if gang is not None:
        tasks.append(asyncio.ensure_future(gang.watch()))
    if compiling is not None:
        tasks.append(asyncio.ensure_future(compiling.run()))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    except asyncio.CancelledError:
        LOG.info("stopped by a signal", extra={"action": "stop"})
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        energy.close()


def host_of_process(devices: Sequence[SeenDevice], options: argparse.Namespace, bounds: ProcessBounds, ticket: str) -> ProcessHost:
    """What takes the executor's place for a session that is a process."""
    from forebay_worker.remote.host import ProcessHost  # sessions of calls need none of it

    door = options.listen or f"unix:{options.socket_dir}/{options.worker}.process"
    return ProcessHost(door, not is_local(door), bounds, ticket, options.spill_dir, runtimes.why_no_process(devices))


def nothing() -> None:
    """Nobody hears the executor's bell but the link."""


def is_local(address: str) -> bool:
    """Whether only programs on this host reach an address of a command stream."""
    if not address.startswith("tcp:"):
        return True
    host = address.removeprefix("tcp:").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check(options: argparse.Namespace) -> None:
    """Raises WorkerError for options that do not go together."""
    if options.standalone and not re.fullmatch("[0-9a-fA-F]{64}", options.ticket or os.environ.get(TICKET_VARIABLE, "")):
        raise WorkerError("--ticket takes the 64 hex digits that the client will show")
    if options.pool and not options.worker:
        raise WorkerError("--worker takes the name that the pool knows this worker by")
    if options.pool and not os.environ.get(TOKEN_VARIABLE):
        raise WorkerError(f"{TOKEN_VARIABLE} is not set; the pool gives each worker a token of its own")
    if options.threads is not None and options.threads < 1:
        raise WorkerError(f"--threads {options.threads}: at least one is needed")
    if not 0 <= options.resume_seconds < math.inf:
        raise WorkerError(f"--resume-seconds {options.resume_seconds}: a number of seconds is needed, 0 for none")
    if not 0 <= options.reconnect_seconds <= RECONNECT_SECONDS_MAX:
        raise WorkerError(f"--reconnect-seconds {options.reconnect_seconds}: a number of seconds up to a day is needed, 0 for none")
    if not options.compile_after >= 0:
        raise WorkerError(f"--compile-after {options.compile_after}: a number of seconds is needed, 0 for at once")
    if options.memory is not None and options.memory < 1:
        raise WorkerError(f"--memory {options.memory}: at least one byte is needed")


def remove_socket(address: str) -> None:
    """The socket's file goes when the client comes; this is for a worker that no client came to."""
    if address.startswith("unix:"):
        Path(address.removeprefix("unix:")).unlink(missing_ok=True)


def main() -> int:
    """The exit status: 0 after a session, 1 where the worker could not work."""
    options = parser().parse_args()
    options.device = options.device or [DEFAULT_DEVICE]
    os.environ.pop(CLIENT_VARIABLE, None)  # with it, torch would show this worker a virtual device in place of the real ones
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("websockets").setLevel(logging.WARNING)
    try:
        if options.describe:
            describe()
            return 0
        check(options)
        confinement.close()
        if not options.resume_seconds:
            die_with_parent()
        run(options)
    except WorkerError as error:
        print(f"forebay worker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
