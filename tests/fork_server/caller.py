"""What stands for an interpreter: ``caller.py FOLDER PYTHON ARGUMENT…`` has a server in FOLDER run the arguments, or becomes PYTHON."""

import json
import os
import signal
import socket
import struct
import sys

ROLES = {
    "forebay_pool": "services",
    "forebay_worker": "services",
    "fake_worker.py": "services",
    "stand_in_worker.py": "services",
    "standin_compilers_worker.py": "services",
    "hurried_compilers_worker.py": "services",
    "unwilling_library_worker.py": "services",
    "forebay_billing": "billing",
    "forebay_dashboards": "dashboards",
    "forebay": "programs",
    "function_sweep.py": "databases",
    "operator_sweep.py": "databases",
    "repeated_sweep.py": "databases",
    "sparse_sweep.py": "databases",
    "wrong_calls.py": "databases",
    "gpu": "programs",
    "gpu.peer": "programs",
}
"""Of modules and scripts; all other scripts and what ``-c`` gives are programs."""
STANDIN = "standin:"
"""How the names of its devices begin."""
LIBRARY = "FOREBAY_WORKER_COLLECTIVES"
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SERVER_LOST = 70
"""The exit status where the server ended before it said how the fork did."""


def role_of(arguments):
    """Which server runs these arguments of an interpreter, if one does."""
    first, *rest = arguments or ["-"]
    name = rest[0] if first == "-m" else os.path.basename(first)
    if name not in ROLES and first != "-c" and first.startswith("-"):
        return None
    if any(argument.startswith(STANDIN) for argument in rest):
        return "standin"
    role = ROLES.get(name, "programs")
    return "collectives" if role == "services" and os.environ.get(LIBRARY) == "gloo" else role


def connect(folder, role):
    """A connection to the server of this role; None where there is none. Ends where there was one: a test's time would tell nobody."""
    try:
        server = socket.socket(socket.AF_UNIX)
        server.connect(os.path.join(folder, role))
    except FileNotFoundError:
        return None
    except ConnectionRefusedError:
        end_as(None)
    return server


def status_of(server):
    """What ``waitpid`` said of the fork; signals that come meanwhile are passed on."""
    for number in PASSED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: server.send(bytes([number])))
    told = server.recv(4, socket.MSG_WAITALL)
    return struct.unpack("i", told)[0] if told else None


def end_as(status):
    """Ends by the same signal or with the same status."""
    if status is None:
        sys.stderr.write("the server of forks has ended\n")
        os._exit(SERVER_LOST)
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def main(folder, python, *arguments):
    role = role_of(list(arguments))
    server = connect(folder, role) if role else None
    if server is None:
        os.execv(python, [python, *arguments])  # noqa: S606 no shell is the point
    ignored = [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN]
    asked = json.dumps({"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd(), "ignored": ignored}).encode()
    socket.send_fds(server, [struct.pack("I", len(asked))], [0, 1, 2])
    server.sendall(asked)
    end_as(status_of(server))


main(*sys.argv[1:])
