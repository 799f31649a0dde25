"""``%flavor``, ``%gpu``, ``%%gpu``, ``%notify`` and ``%%forebay``: the same in a notebook's words."""

from __future__ import annotations

import argparse
import ast
import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from forebay import process
from forebay.errors import ForebayError
from forebay.notebook import amounts, bounds, remote_cells
from forebay.notebook.bounds import Bound
from forebay.toolkit import table
from forebay.toolkit.environments.environment import current

if TYPE_CHECKING:
    from forebay.journal import Journal
    from forebay.notebook.notifier import Notifier
    from forebay.notebook.status import Snapshot
    from forebay.texts import Texts
    from forebay.virtual_device import VirtualDevices

NOTIFY_USAGE = "usage: %notify [on | off | after TIME | channels on | channels off]"
GPU_USAGE = "usage: %gpu [quiet | loud]"
ONE_DEVICE = "There is no plan: the cell ran on one device, or on none. Flavors of several devices say so in their list.\n"
LINE_SHOWN_CHARS = 32
CELL_WORDS = "flavor", "max_cost", "max_time"
CELL_USAGE = "usage: %%gpu [flavor=NAME] [max_cost=AMOUNT] [max_time=30s | 10m | 1.5h] [profile [--top N] [--json FILE] | plan]"


class Presenter(Protocol):
    """What the magics need of the shell's presenter."""

    home: Mapping[str, Any] | None

    @property
    def journal(self) -> Journal: ...
    @property
    def notifier(self) -> Notifier: ...
    @property
    def texts(self) -> Texts: ...
    def hush(self, quiet: bool) -> None: ...
    def look(self) -> None: ...
    def snapshot(self) -> Snapshot: ...


class _Line(argparse.ArgumentParser):
    """Of the words behind ``%%gpu``: an error is an exception, since the process is the notebook's."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"%%gpu: {message}; {CELL_USAGE}")


@dataclass(frozen=True)
class Wish:
    """What stands behind ``%%gpu``."""

    flavor: str | None
    bound: Bound
    profile: argparse.Namespace | None
    plan: bool = False
    """Whether it is told how several devices divide the cell's steps."""


def wish(line: str) -> Wish:
    """Raises ValueError with the usage."""
    words, given = shlex.split(line), dict.fromkeys(CELL_WORDS, "")
    while words and words[0].partition("=")[0] in given and "=" in words[0]:
        name, _, given[name] = words.pop(0).partition("=")
    try:
        bound = bounds.bound(given["max_cost"] or None, given["max_time"] or None)
    except ValueError as error:
        raise ValueError(f"%%gpu: {error}; {CELL_USAGE}") from None
    if words == ["plan"] or (not words and (given["flavor"] or bound)):
        return Wish(given["flavor"] or None, bound, None, plan=bool(words))
    from forebay.toolkit.profiling.command import add_options

    parser = _Line(prog="%%gpu", add_help=False)
    add_options(parser.add_subparsers(required=True, metavar="profile").add_parser("profile", add_help=False))
    return Wish(given["flavor"] or None, bound, parser.parse_args(words))


def register(shell: Any, presenter: Presenter) -> None:
    """Adds the magics to an IPython shell."""

    def flavor(line: str) -> None:
        """%flavor: the sizes of the device; %flavor all: also those that cannot be had.

        %flavor NAME: chooses one for this notebook's device.
        """
        with in_one_sentence():
            _flavor(line.strip(), presenter)

    def gpu(line: str, cell: str | None = None) -> None:
        """%gpu: state, spend and last cells; %gpu quiet | loud: without, with a line below cells.

        %%gpu flavor=NAME: the cell on that flavor. %%gpu max_cost=0.50 max_time=10m: stops the cell there, its tensors stay.
        %%gpu profile [--top N] [--json FILE]: runs the cell, then says where its time went.
        %%gpu plan: runs the cell, then says how several devices divided its steps.
        """
        if cell is None:
            with in_one_sentence():
                _gpu(line.strip(), presenter)
        else:
            with in_one_sentence():
                wanted = wish(line)
            _cell(shell, cell, wanted, presenter)

    def notify(line: str) -> None:
        """%notify: whether pages tell when a long cell ends, fails, waits, or is stopped by a budget; %notify on | off: from now on.

        %notify after TIME: on, for cells that take so long (90s, 5m, 1h). Allow notifications in the panel, once in each browser.
        %notify channels on | off: by mail, webhook or Slack too, where you said on the page My usage.
        """
        with in_one_sentence():
            _notify(line.split(), presenter)

    def pip(line: str) -> None:
        """%pip install NAME: into the environment of this notebook's kernel, which is yours alone."""
        shell.system(f"{shlex.quote(sys.executable)} -m forebay.toolkit.environments.pip {line}")
        print(presenter.texts("pip"))

    def exec_cell(line: str, cell: str) -> None:
        """%%forebay exec [--in a,b] [--out c] [--flavor NAME]: the cell as a whole process beside a device, in a sandbox.

        It has the variables behind --in, and those behind --out come back: tensors, arrays, numbers, texts, lists and dicts.
        """
        with in_one_sentence():
            remote_cells.run(line, shell.transform_cell(cell), shell.user_ns)

    if current() is not None:
        shell.register_magic_function(pip, "line", "pip")
    shell.register_magic_function(notify, "line", "notify")
    shell.register_magic_function(flavor, "line", "flavor")
    shell.register_magic_function(gpu, "line_cell", "gpu")
    shell.register_magic_function(exec_cell, "cell", "forebay")


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """What a magic refuses, without a traceback through its own code."""
    from IPython.core.error import UsageError

    try:
        yield
    except (ForebayError, ValueError) as error:
        raise UsageError(str(error)) from None


def _flavor(name: str, presenter: Presenter) -> None:
    from forebay_wire.causes import cause_of

    from forebay.notebook import service_calls
    from forebay.toolkit.flavor import text

    if name in ("", "all"):
        devices = presenter.journal.devices()
        held = devices[0].flavor.name if 0 in devices and devices[0].flavor is not None else None
        rows = [{**row, "reason": presenter.texts.cause(cause_of(row.get("cause")), row.get("reason"))} for row in service_calls.flavors()]
        print(text(rows, held or next((str(row["name"]) for row in rows if row["chosen"]), None), "%flavor all", whole=bool(name)))
        return
    presenter.home = row = service_calls.choose(name)
    price = table.rate(row.get("price_nano_per_hour"), row.get("currency"))
    print(presenter.texts("chosen", flavor=name, memory=table.memory(row["memory_bytes"]), rate=price))


def _gpu(word: str, presenter: Presenter) -> None:
    if word in ("quiet", "loud"):
        presenter.hush(word == "quiet")
        print(presenter.texts(word))
    elif word:
        raise ValueError(f"%gpu: {word!r} is not known; {GPU_USAGE}")
    else:
        presenter.look()
        print(status(presenter.snapshot(), presenter))


def _notify(words: list[str], presenter: Presenter) -> None:
    from forebay.notebook.notifier import seconds_of

    notifier = presenter.notifier
    match words:
        case []:
            pass
        case ["on" | "off" as word]:
            notifier.set(word == "on")
        case ["after", text]:
            notifier.set(True, seconds_of(text))
        case ["channels", "on" | "off" as word]:
            notifier.set(notifier.on or word == "on", channels=word == "on")
        case _:
            raise ValueError(f"%notify: {' '.join(words)!r} is not known; {NOTIFY_USAGE}")
    print(presenter.texts("notify_on" if notifier.on else "notify_off", time=amounts.about(notifier.after_seconds, presenter.texts)))
    if notifier.on and notifier.channels:
        print(presenter.texts("notify_channels"))


def status(now: Snapshot, presenter: Presenter) -> str:
    """How the devices stand, as text."""
    texts = presenter.texts
    if process.installed is None:
        return texts("no_device", why=now["failure"] or (texts("not_set") if not now["configured"] else "import torch"))
    headers = [texts(key) for key in ("device", "flavor", "state", "rate", "memory")]
    money = amounts.cost({each["currency"]: each["nano"] for each in now["spent"]}, texts)
    lines = [table.render(headers, [_device(device, presenter) for device in now["devices"]])]
    lines.append(texts("spent", device=amounts.seconds(now["device_ns"]), cost=money))
    budget = now["budget"]
    if budget is not None and budget["left_nano"] is not None:
        lines.append(texts("left", left=amounts.money(budget["left_nano"], budget["currency"])))
    if budget is not None and budget["sentence"]:
        lines.append(budget["sentence"])
    if now["cells"]:
        headers = [texts(key) for key in ("cell", "flavor", "device_time", "waited", "cost")]
        lines.append(table.render(headers, [_used(cell, presenter) for cell in now["cells"]]))
    return "\n".join(lines)


def _device(device: Snapshot, presenter: Presenter) -> Sequence[str]:
    flavor, state = device["flavor"] or {}, presenter.texts(device["state"])
    if device["queued"] is not None:
        state = f"{state}: {device['queued']['reason']}"
    price = table.rate(flavor.get("price_nano_per_hour"), flavor.get("currency")) if flavor else "-"
    return [f"cuda:{device['device']}", flavor.get("name") or "-", state, price, table.memory(device["memory_bytes"])]


def _used(cell: Snapshot, presenter: Presenter) -> Sequence[str]:
    number = presenter.texts("between") if cell["cell"] is None else f"[{cell['cell']}]"
    money = amounts.cost({each["currency"]: each["nano"] for each in cell["cost"]}, presenter.texts)
    money = money if cell["cost_known"] else presenter.texts("cost_unknown")
    shown = presenter.texts("computing") if cell["open"] else amounts.seconds(cell["device_ns"])
    number = f"{number} {_shortened(cell['first_line'])}" if cell["first_line"] else number
    return [number, cell["flavor"], shown, amounts.seconds(cell["waited_ns"]), money]


def _shortened(line: str) -> str:
    return line if len(line) <= LINE_SHOWN_CHARS else line[: LINE_SHOWN_CHARS - 1] + "…"


def _cell(shell: Any, cell: str, wanted: Wish, presenter: Presenter) -> None:
    blocks = _compiled(shell, cell)
    with contextlib.ExitStack() as around:
        if wanted.flavor is not None:
            around.enter_context(_on_flavor(wanted.flavor))
        if wanted.bound:
            _priced(wanted.bound, presenter)
            around.enter_context(bounds.kept(wanted.bound, presenter.journal, presenter.texts))
        _run(shell, blocks, wanted)


@contextmanager
def _on_flavor(name: str) -> Iterator[None]:
    """The device on another flavor, and then as before."""
    with in_one_sentence():
        devices = _devices()
        before = devices.flavor(0).name
        devices.choose_flavor(0, name)
    try:
        yield
    finally:
        _go_back(devices, before, name)


def _priced(bound: Bound, presenter: Presenter) -> None:
    """Raises UsageError for a bound on what nobody bills."""
    with in_one_sentence():
        if bound.cost_nano is not None and _devices().flavor(0).price_nano_per_hour is None:
            raise ValueError(f"%%gpu: {presenter.texts('no_price')}; {CELL_USAGE}")


def _devices() -> VirtualDevices:
    import torch  # noqa: F401 activates the virtual device

    if process.installed is None:
        raise ForebayError(f"There is no virtual device in this process: {process.failure or 'FOREBAY_URL is not set.'}")
    return process.installed


def _go_back(devices: VirtualDevices, before: str, now: str) -> None:
    try:
        devices.choose_flavor(0, before)
    except ForebayError as error:
        sys.stderr.write(f"forebay: the device stays {now}, since it cannot be {before} again: {error}\n")


def _run(shell: Any, blocks: list[Any], wanted: Wish) -> None:
    if wanted.profile is None:
        for block in blocks:
            exec(block, shell.user_ns)  # noqa: S102 the user's own code
        if wanted.plan:
            _tell_plans()
        return
    from forebay.profile import Profiler
    from forebay.toolkit.profiling.command import write

    profiler = Profiler()
    profiler.start()
    failure: RuntimeError | None = None
    try:
        for block in blocks:
            exec(block, shell.user_ns)  # noqa: S102 as above
    finally:
        profile, failure = profiler.stop()
        sys.stdout.flush()
        write(profile, wanted.profile, sys.stdout)
    if failure is not None:
        raise failure


def _tell_plans() -> None:
    from forebay import _C, gang_work
    from forebay.toolkit.planner import executed

    read = (gang_work.read(index) for index in range(_C.device_count()))
    told = [executed.text(gang) for gang in read if gang is not None]
    print("".join(told) or ONE_DEVICE, end="")


def _compiled(shell: Any, cell: str) -> list[Any]:
    """The cell's code with the cell's line numbers; a last expression apart, in the way that shows its value."""
    source = "\n" + shell.transform_cell(cell)
    file = shell.compile.cache(source, shell.execution_count, raw_code=source)
    tree = ast.parse(source, file)
    blocks: list[ast.Module | ast.Interactive] = [tree]
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not cell.rstrip().endswith(";"):
        blocks.append(ast.Interactive([tree.body.pop()]))
    return [
        compile(block, file, "single" if isinstance(block, ast.Interactive) else "exec", shell.compile.flags, dont_inherit=True)
        for block in blocks
    ]
