"""Started as root, an installation keeps logins, services and workers apart on this machine too: shown from cells."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from processes import alive, command_line, family, suspend

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes under other uids"),
]

PEOPLE = ("acme-member", "globex-owner")
WORKER_END_SECONDS = 30
ATTEMPT = """
import json
from pathlib import Path
def refusal(path):
    try:
        list(Path(path).iterdir()) if Path(path).is_dir() else open(path, 'rb').read(1)
    except OSError as error:
        return type(error).__name__
    return 'read'
print(json.dumps({path: refusal(path) for path in PATHS}))
"""
LISTEN = """
import threading, time, zmq
socket, heard = zmq.Context.instance().socket(zmq.SUB), []
if KNOWN:
    socket.curve_serverkey = socket.curve_publickey = INFO['curve_publickey'].encode()
    socket.curve_secretkey = INFO['curve_secretkey'].encode()
socket.subscribe(b'')
socket.connect(f"tcp://127.0.0.1:{INFO['iopub_port']}")
def listen():
    while True:
        heard.extend(socket.recv_multipart())
threading.Thread(target=listen, daemon=True).start()
time.sleep(1)
"""
WHO = """
import importlib.util, os, pathlib, sys
pathlib.Path("made.txt").write_text("by the job")
ours = [name for name in ("forebay_pool", "forebay_hub", "forebay_service") if importlib.util.find_spec(name)]
print("uid", os.getuid(), "home", pathlib.Path.home(), "args", sys.argv[1:], "packages", ours)
"""
LIBRARY_SECONDS_MAX = 500
TRAINING = """
import os
os.environ["FOREBAY_COMPILE"] = "1"
import torch
from forebay import _C
from torch import nn
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(128, 128)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
x = torch.randn(16, 64, 128).cuda()
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
    torch.cuda.synchronize()
    largest = max(_C.segments(), key=lambda one: one["calls"] * one["times"])
    return largest["tier"], largest["why"]
"""
ADDING = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
one = torch.tensor([1.0 + dist.get_rank()], device="cuda")
dist.all_reduce(one)
print("sum", one.item())
dist.destroy_process_group()
"""
REFUSALS = {"PermissionError", "FileNotFoundError"}
"""The second is what a hidden process's folder gives."""


@dataclass
class Apart:
    """An installation whose logins are kept apart, with a kernel of each of two people."""

    cloud: Any
    people: dict[str, Any]
    kernels: dict[str, Any]

    def process(self, part: str) -> psutil.Process:
        """The first one whose command line has this in it."""
        return next(one for one in family(self.cloud.process.pid) if part in command_line(one))

    def kernel_of(self, name: str) -> psutil.Process:
        return psutil.Process(int(self.kernels[name].run("import os; print(os.getpid())")))

    def worker_of(self, name: str) -> psutil.Process | None:
        """The one that serves the person's one session, once the pool's database tells it, which nothing waits for."""
        with sqlite3.connect(f"file:{self.cloud.state}/pool/pool.sqlite?mode=ro", uri=True) as books:
            found = books.execute("select pid from workers join sessions on sessions.worker = workers.id where user = ?", [name])
            row = found.fetchone()
        books.close()
        return None if row is None else psutil.Process(row[0])

    def order(self, name: str, method: str, end: str = "") -> None:
        """What the operator asks of the pool about the person's one session."""
        token = self.cloud.person("operator").new_token()
        (session,) = [row for row in self.cloud.service("pool/api/sessions", token).json() if row["user"] == name]
        address = f"{self.cloud.url}/services/pool/api/sessions/{session['session']}{end}"
        httpx.request(method, address, headers={"Authorization": f"token {token}"}, timeout=30).raise_for_status()

    def attempts(self, name: str, paths: list[str]) -> dict[str, str]:
        """What a cell of the person meets that reads these files and folders."""
        refusals: dict[str, str] = json.loads(self.kernels[name].run(f"PATHS = {paths!r}\n{ATTEMPT}"))
        return refusals


def proc_mounts() -> list[str]:
    """How /proc is mounted, with the options of the instance itself, which every namespace would see change."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if line.split()[4] == "/proc"]


@pytest.fixture(scope="module", autouse=True)
def machines_proc() -> list[str]:
    """Before anything is started."""
    return proc_mounts()


def open_kernels(cloud: Any, kernel_type: Any) -> Apart:
    people = {name: cloud.person(name) for name in PEOPLE}
    for person in people.values():
        person.spawn("dev.1gb")
        person.open_lab()
    return Apart(cloud, people, {name: kernel_type(person, "digits.ipynb") for name, person in people.items()})


@pytest.fixture(scope="module")
def apart(passable: Any, starter: Callable[..., Any], kernel_type: Any) -> Apart:
    return open_kernels(starter(passable.folder / "state", passable.prefix), kernel_type)


def uids(apart: Apart) -> dict[str, int]:
    return {name: int(kernel.run("import os; print(os.getuid())")) for name, kernel in apart.kernels.items()}


def test_the_start_says_in_one_sentence_who_runs_as_whom(apart: Apart) -> None:
    (line,) = [line for line in apart.cloud.printed.splitlines() if "root" in line]
    assert line.startswith("Started as root: each login runs under a uid of its own, services under "), line
    assert f", the proxy under {apart.process('traefik --configfile').uids().real}, none of them reads" in line
    assert "had other owners" not in apart.cloud.printed


def test_logins_services_workers_and_the_proxy_have_uids_of_their_own_and_the_hub_is_root(apart: Apart) -> None:
    apart.kernels[PEOPLE[0]].run("import torch; torch.ones(3, device='cuda')")
    logins = set(uids(apart).values())
    services = {apart.process(f"-m forebay_{name} --config").uids().real for name in ("pool", "billing", "dashboards")}
    workers = {apart.process("-m forebay_worker").uids().real}
    proxy = {apart.process("traefik --configfile").uids().real}
    assert len(logins) == 2 and len(services) == len(workers) == 1
    assert len({0} | logins | services | workers | proxy) == 6
    assert apart.process("-m jupyterhub").uids().real == 0


def test_a_job_runs_under_its_logins_uid_in_its_home_and_sees_no_package_of_the_services(apart: Apart) -> None:
    """Submitted and followed by the command line in the login's own server."""
    name = PEOPLE[0]
    apart.kernels[name].run(f"import pathlib\npathlib.Path('who.py').write_text({WHO!r})")
    printed = apart.kernels[name].run("!forebay submit -f --name who who.py --epochs 3; forebay jobs list")
    home, uid = apart.cloud.state / "homes" / name, uids(apart)[name]
    assert f"uid {uid} home {home} args ['--epochs', '3'] packages []" in printed, printed
    assert "has succeeded" in printed and "| who " in printed
    made = home / "made.txt"
    assert (made.read_text(), made.stat().st_uid) == ("by the job", uid)


def test_no_cell_reads_anothers_home_or_what_is_the_hubs_or_a_services(apart: Apart) -> None:
    state = apart.cloud.state
    one, other = PEOPLE
    files = ["cookie_secret", "hub.sqlite", "logins.json", "uids.json", "log/hub.log", "up.lock"]
    files += ["proxy", "proxy/proxy.toml", "proxy/routes.toml"]
    files += ["pool", "pool/pool.sqlite", "billing", "billing/billing.sqlite3", "sockets", "libraries"]
    files += [f"homes/{other}", f"homes/{other}/digits.ipynb"]
    paths = [str(state / file) for file in files]
    assert all(Path(path).exists() for path in paths)
    assert set(apart.attempts(one, paths).values()) == {"PermissionError"}
    assert apart.attempts(one, [str(state / "homes" / one / "digits.ipynb")]) == {str(state / "homes" / one / "digits.ipynb"): "read"}


def test_no_cell_reads_what_another_process_was_given_or_the_log_that_it_writes_to(apart: Apart) -> None:
    one, other = PEOPLE
    names = ("jupyterhub", "forebay_pool", "forebay_billing", "forebay_dashboards", "forebay_worker")
    strangers = [*(apart.process(f"-m {name}") for name in names), apart.kernel_of(other)]
    paths = [f"/proc/{process.pid}/{entry}" for process in strangers for entry in ("environ", "mem", "cwd", "fd")]
    refusals = apart.attempts(one, paths)
    assert set(refusals.values()) <= REFUSALS, refusals
    assert apart.attempts(one, ["/proc/self/environ"]) == {"/proc/self/environ": "read"}
    server = apart.kernel_of(one).parent()
    assert server is not None
    log = f"/proc/{server.pid}/fd/2"
    assert os.path.samefile(log, apart.cloud.state / "log" / "servers" / f"{one}.log")
    assert apart.attempts(one, [log]) == {log: "PermissionError"}


def test_a_cell_sees_no_processes_but_its_users_own_and_ends_no_others(apart: Apart) -> None:
    one, other = PEOPLE
    seen = "import os; print({os.stat(f'/proc/{entry}').st_uid for entry in os.listdir('/proc') if entry.isdigit()})"
    assert apart.kernels[one].run(seen) == f"{{{uids(apart)[one]}}}\n"
    _, errors = apart.kernels[one].execute(f"import os; os.kill({apart.kernel_of(other).pid}, 9)")
    assert [error.partition(":")[0] for error in errors] == ["PermissionError"]


def test_nobody_hears_what_anothers_kernel_prints(apart: Apart) -> None:
    """Kernels publish on a port that every process of this machine may connect to: with the keys of the connection file it is heard."""
    one, other = PEOPLE
    file = apart.kernels[one].run("from ipykernel.connect import get_connection_info; print(get_connection_info())")
    for known in (False, True):
        apart.kernels[other].run(f"INFO, KNOWN = {json.loads(file)!r}, {known}\n{LISTEN}")
        apart.kernels[one].run("print('aloud')")
        heard = apart.kernels[other].run("time.sleep(1); print(any(b'aloud' in part for part in heard))")
        assert heard == f"{known}\n"


def test_the_services_do_not_read_each_others_surroundings_and_workers_nothing_of_theirs(apart: Apart) -> None:
    worker, pool = apart.process("-m forebay_worker"), apart.process("-m forebay_pool --config")
    as_worker = psutil.Process(worker.pid).uids().real
    group = apart.cloud.state.stat().st_gid
    for path in (f"/proc/{pool.pid}/environ", str(apart.cloud.state / "pool" / "pool.sqlite")):
        reading = subprocess.run(["cat", path], user=as_worker, group=as_worker, extra_groups=[group], capture_output=True, text=True)
        assert "Permission denied" in reading.stderr


def test_the_proxy_reads_its_own_files_and_nothing_else_of_the_installation_and_none_of_the_hubs_variables(apart: Apart) -> None:
    proxy, state = apart.process("traefik --configfile"), apart.cloud.state
    hub = apart.process("-m jupyterhub")
    names = ("cookie_secret", "hub.sqlite", "logins.json", "pool/pool.sqlite", "billing", f"homes/{PEOPLE[0]}/digits.ipynb")
    group = {"user": proxy.uids().real, "group": proxy.gids().real, "extra_groups": [state.stat().st_gid]}
    for path in (*(state / name for name in names), Path(f"/proc/{hub.pid}/environ")):
        reading = subprocess.run(["cat", str(path)], capture_output=True, text=True, **group)
        assert "Permission denied" in reading.stderr, path
    for name in ("proxy.toml", "routes.toml"):
        assert subprocess.run(["cat", str(state / "proxy" / name)], capture_output=True, check=True, **group).stdout
    writing = subprocess.run(["touch", str(state / "proxy" / "routes.toml"), str(state / "proxy" / "other")], capture_output=True, **group)
    assert writing.stderr.decode().count("Permission denied") == 2
    assert set(proxy.environ()) <= {"PATH", "LC_CTYPE"}, "the second is Python's own"


def test_a_proxy_that_is_killed_is_back_under_its_account_with_all_routes(
    apart: Apart, kernel_type: Any, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    proxy = apart.process("traefik --configfile")
    uid = proxy.uids().real
    assert uid != 0
    proxy.kill()
    psutil.wait_procs([proxy], timeout=10)

    def served() -> bool:
        try:
            pages = [httpx.get(f"{apart.cloud.url}/{path}", timeout=5) for path in ("hub/health", "services/pool/health")]
        except httpx.HTTPError:
            return False
        return all(page.status_code == httpx.codes.OK for page in pages)

    assert eventually(served)
    again = apart.process("traefik --configfile")
    assert again.pid != proxy.pid and again.uids().real == uid
    for name, kernel in apart.kernels.items():  # connections through the old one are gone
        kernel.close()
        apart.kernels[name] = kernel_type(apart.people[name], "digits.ipynb")
    assert len(set(uids(apart).values())) == len(PEOPLE)


def test_the_machines_own_proc_is_as_it_was(machines_proc: list[str], apart: Apart) -> None:
    assert apart.process("-m forebay_worker").is_running()
    assert proc_mounts() == machines_proc


def test_the_device_works_over_the_border_of_accounts_and_is_billed(apart: Apart, eventually: Callable[[Callable[[], Any]], Any]) -> None:
    """Commands over the socket of a worker that is another user, bulk data over memory that it made."""
    cell = "import torch\nx = torch.arange(2**20, dtype=torch.float32).to('cuda:0')\nprint((x * 2).sum().item(), (x + 1).cpu()[-1].item())"
    for kernel in apart.kernels.values():
        assert kernel.run(cell) == "1099510579200.0 1048576.0\n"
    owner = apart.cloud.person("globex-owner").new_token()

    def billed() -> Any:
        return apart.cloud.service("billing/api/usage", owner, tenant="globex").raise_for_status().json()["records"]

    assert eventually(billed)


def test_tensors_move_from_the_worker_of_one_account_to_that_of_another(
    apart: Apart, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    kernel = apart.kernels[PEOPLE[0]]
    kernel.run("import torch\nmoved = torch.full((3,), 7.0, device='cuda:0')\nprint(moved.sum().item())")
    before = eventually(lambda: apart.worker_of(PEOPLE[0]))
    uid = before.uids().real
    apart.order(PEOPLE[0], "POST", "/move")
    assert kernel.run("print((moved + 1).sum().item())").endswith("24.0\n")
    after = eventually(lambda: (worker := apart.worker_of(PEOPLE[0])) != before and worker)
    assert after.uids().real != uid


@pytest.mark.full_sweep
def test_a_library_of_a_tenants_loop_is_found_by_the_worker_of_another_account(apart: Apart, kernel_type: Any) -> None:
    apart.kernels[PEOPLE[0]].close()
    kernel = apart.kernels[PEOPLE[0]] = kernel_type(apart.people[PEOPLE[0]], "digits.ipynb")
    kernel.run(TRAINING)
    deadline = time.monotonic() + LIBRARY_SECONDS_MAX
    while not (said := kernel.run("print(train(100))")).startswith("(2,"):
        assert time.monotonic() < deadline, said
    apart.order(PEOPLE[0], "POST", "/move")
    moved = [kernel.run("print(train(100))").splitlines()[-1] for _ in range(3)]
    assert moved[-1].startswith("(2,"), moved
    assert oct((apart.cloud.state / "libraries").stat().st_mode)[-4:] == "1730"
    (folder,) = (apart.cloud.state / "libraries").glob("[!.]*")
    assert oct(folder.stat().st_mode)[-4:] == "2770"
    assert {oct(path.stat().st_mode)[-3:] for path in folder.iterdir()} == {"660"}


@pytest.mark.full_sweep
def test_processes_of_one_program_add_up_over_workers_of_several_accounts(apart: Apart) -> None:
    kernel = apart.kernels[PEOPLE[0]]
    kernel.run(f"open('adding.py', 'w').write({ADDING!r})")
    assert kernel.run("!torchrun --nproc-per-node 2 adding.py").count("sum 3.0") == 2


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.full_sweep)], ids=["the pool", "its keeper too"])
def test_a_pool_that_is_killed_leaves_its_workers_to_the_next_one_which_may_end_them(
    apart: Apart, whole: bool, kernel_type: Any, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    """Workers are processes of another uid, and the next pool a child of other parents: it finds them all the same."""
    kernel = apart.kernels[PEOPLE[0]]
    kernel.run("import torch\nkept = torch.full((3,), 7.0, device='cuda:0')\nprint(kept.sum().item())")
    worker = eventually(lambda: apart.worker_of(PEOPLE[0]))
    keeper = apart.process("forebay_service.processes.supervisor the service pool")
    victim = keeper if whole else keeper.children()[0]
    victim.kill()
    psutil.wait_procs([victim], timeout=10)
    assert worker.is_running()
    assert kernel.run("print((kept + 1).sum().item())").endswith("24.0\n"), "before it may stand that it waited for the next pool"
    worker = apart.worker_of(PEOPLE[0])  # the same, or where its tensors went from there, since another cell had the device
    suspend(worker.pid)
    apart.order(PEOPLE[0], "DELETE")
    assert psutil.wait_procs([worker], timeout=WORKER_END_SECONDS)[0]
    kernel.close()
    apart.kernels[PEOPLE[0]] = kernel_type(apart.people[PEOPLE[0]], "digits.ipynb")


@pytest.mark.full_sweep
def test_where_the_kernel_refuses_user_namespaces_it_is_said_and_workers_are_with_the_services(
    passable: Any, starter: Callable[..., Any], kernel_type: Any
) -> None:
    """As it does below a changed root; which, here, is the same as the machine's."""
    root = passable.folder / "root"
    root.mkdir()
    changed = ["unshare", "--mount", "sh", "-euc", 'mount --rbind / "$1"; exec chroot "$@"', "sh", str(root)]
    cloud = starter(passable.folder / "other", [*passable.prefix, *changed])
    assert "workers have no account of their own (uid 607" in cloud.printed and "unshare: Operation not permitted" in cloud.printed
    person = cloud.person(PEOPLE[0])
    person.spawn("dev.1gb")
    person.open_lab()
    kernel = kernel_type(person, "digits.ipynb")
    assert kernel.run("import torch\nprint(torch.ones(3, device='cuda').sum().item())") == "3.0\n"
    refused = Apart(cloud, {}, {PEOPLE[0]: kernel}).attempts(PEOPLE[0], [str(cloud.state / "pool" / "pool.sqlite")])
    assert set(refused.values()) == {"PermissionError"}
    kernel.disconnect()
    assert cloud.stop() == 0


@pytest.mark.full_sweep
def test_ctrl_c_stops_everything_and_after_a_restart_everybody_has_the_same_uid_home_and_bill(
    apart: Apart, passable: Any, starter: Callable[..., Any], kernel_type: Any
) -> None:
    """The last test here, as it stops the installation of the others."""
    before = uids(apart)
    owner = apart.cloud.person("globex-owner").new_token()

    def billed(cloud: Any) -> Any:
        return cloud.service("billing/api/usage", owner, tenant="globex").raise_for_status().json()["records"]

    records, logins, processes = billed(apart.cloud), apart.cloud.logins, family(apart.cloud.process.pid)
    apart.kernels[PEOPLE[0]].run("open('mine', 'w').write('mine')")
    for kernel in apart.kernels.values():
        kernel.disconnect()
    assert apart.cloud.stop() == 0
    assert records and processes and alive(processes) == []
    assert not list(apart.cloud.state.with_name("home").iterdir()), "something was written into the home folder"
    again = open_kernels(starter(apart.cloud.state, passable.prefix), kernel_type)
    assert again.cloud.logins == logins and billed(again.cloud) == records
    assert uids(again) == before
    assert again.kernels[PEOPLE[0]].run("print(open('mine').read())") == "mine\n"
    assert "had other owners" not in again.cloud.printed
    for kernel in again.kernels.values():
        kernel.disconnect()
    assert again.cloud.stop() == 0
