"""Which accounts ``make up`` takes, and what it says of them."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="giving files away needs root")


@pytest.fixture
def accounts(local: Any) -> Any:
    return local("accounts")


@pytest.fixture
def place(local: Any) -> Iterator[Any]:
    """An installation of a version before, in which all is root's, in a folder that everybody may pass."""
    folder = Path(tempfile.mkdtemp(prefix="forebay-"))
    folder.chmod(0o755)
    state = folder / "state"
    for name in ("pool", "billing", "log", "homes/ann/work", "homes/bob"):
        (state / name).mkdir(parents=True)
    for name in ("cookie_secret", "hub.sqlite", "pool/pool.sqlite", "billing/billing.sqlite3", "log/hub.log", "homes/ann/work/a.ipynb"):
        (state / name).write_text(name)
    yield local("place").Place(state, "127.0.0.1", 8000)
    shutil.rmtree(folder)


def owner(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


def test_a_name_keeps_its_number_and_no_other_gets_it(accounts: Any, tmp_path: Path) -> None:
    file = tmp_path / "uids.json"
    register = accounts.Register(file, range(100, 110), taken=lambda number: False)
    assert [register.of(name) for name in ("ann", "bob", "ann")] == [100, 101, 100]
    assert accounts.Register(file, range(100, 110), taken=lambda number: False).of("cid") == 102
    assert json.loads(file.read_text()) == {"ann": 100, "bob": 101, "cid": 102}


def test_a_number_that_the_machine_has_is_not_given_and_one_that_it_has_got_since_is_given_up(accounts: Any, tmp_path: Path) -> None:
    users = {100}
    register = accounts.Register(tmp_path / "uids.json", range(100, 110), taken=users.__contains__)
    assert register.of("ann") == 101
    users.add(101)
    assert register.of("ann") == 102


def test_without_a_number_left_one_sentence_says_so(accounts: Any, tmp_path: Path) -> None:
    register = accounts.Register(tmp_path / "uids.json", range(100, 101), taken=lambda number: False)
    register.of("ann")
    with pytest.raises(accounts.AccountsError, match="none of the numbers 100-100 is left for bob; give more in FOREBAY_UIDS"):
        register.of("bob")


def test_root_and_its_group_are_the_machines(accounts: Any) -> None:
    assert accounts.taken(0) and not accounts.taken(accounts.range_of(accounts.NUMBERS)[0])


@pytest.mark.parametrize("text", ["", "60600", "60600-60602", "0-100", "a-b", "60700-60600", f"1-{2**31}"])
def test_a_range_that_cannot_be_used_is_named(accounts: Any, text: str) -> None:
    with pytest.raises(accounts.AccountsError, match=r"FOREBAY_UIDS=.* cannot be used; give the first and the last"):
        accounts.range_of(text)


def test_a_folder_that_others_cannot_pass_is_found_behind_links_too(accounts: Any, tmp_path: Path) -> None:
    open_folder, shut = Path(tempfile.mkdtemp()), tmp_path / "shut"
    open_folder.chmod(0o755)
    shut.mkdir(mode=0o700)
    (shut / "python").write_text("")
    (open_folder / "python3").symlink_to(shut / "python")
    (open_folder / "python").symlink_to("python3")
    first = next(folder for folder in (*reversed(shut.parents), shut) if not folder.stat().st_mode & 0o001)
    assert accounts.closed_folder([Path("/usr/bin"), open_folder]) is None
    assert accounts.closed_folder([open_folder / "python"]) == first
    shutil.rmtree(open_folder)


def test_the_groups_that_open_an_accelerator_are_found_and_root_is_none_of_them(accounts: Any, tmp_path: Path) -> None:
    modes = {"all": (0o666, 70), "group": (0o660, 71), "owner": (0o600, 72), "root": (0o660, 0)}
    if os.getuid() != 0:
        modes = {"all": (0o666, os.getgid()), "owner": (0o600, os.getgid())}
    for name, (mode, group) in modes.items():
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
        os.chown(tmp_path / name, -1, group)
    assert accounts.device_groups([f"{tmp_path}/*"]) == ((71,) if os.getuid() == 0 else ())


def test_who_is_not_root_is_told_in_one_sentence_that_every_cell_reads_every_secret(accounts: Any, place: Any) -> None:
    found, sentence = accounts.found(place, {}, euid=1000)
    assert found is None
    assert sentence == (
        "Everything runs as your own user (uid 1000), so every cell can read every secret of this installation: "
        "it is for one person, or for trying."
    )


def test_a_state_folder_behind_one_that_others_cannot_pass_is_said_by_name(accounts: Any, place: Any) -> None:
    place.state.parent.chmod(0o700)
    found, sentence = accounts.found(place, {}, euid=0)
    assert found is None
    assert sentence == (
        f"Everything runs as root, since other users cannot pass {place.state.parent} (mode 0700), so every cell can read every secret "
        "of this installation: it is for one person, or for trying."
    )


@AS_ROOT
def test_an_installation_of_a_version_before_is_taken_over_once(accounts: Any, place: Any) -> None:
    register = accounts.register_of(place, {})
    group, services, workers = (register.of(name) for name in (accounts.GROUP, accounts.SERVICES, accounts.WORKERS))
    taken = accounts.Accounts(register, hide=True, namespace=1)
    secret = place.state / "cookie_secret"
    os.link(secret, place.state / "homes" / "bob" / "mine")
    assert accounts.take_over(place, taken) == 8, "two folders of services with a file each, two homes, a folder and a file in one"
    assert accounts.take_over(place, taken) == 0
    ann = register.of("ann")
    assert owner(place.state) == (0, group, 0o710)
    assert owner(place.state / "pool") == (services, services, 0o700)
    assert owner(place.state / "billing" / "billing.sqlite3")[0] == services
    assert owner(place.state / "sockets") == (services, workers, 0o1771)
    assert owner(place.state / "libraries") == (services, workers, 0o1730)
    assert owner(place.state / "homes" / "ann") == (ann, ann, 0o700)
    assert owner(place.state / "homes" / "ann" / "work" / "a.ipynb")[0] == ann
    assert owner(secret) == (0, 0, 0o600), "it was linked into a home"
    assert owner(place.state / "log") == (0, 0, 0o700)


@AS_ROOT
def test_a_database_that_root_has_put_back_is_given_to_its_service(accounts: Any, place: Any) -> None:
    taken = accounts.Accounts(accounts.register_of(place, {}), hide=True, namespace=None)
    accounts.take_over(place, taken)
    (place.state / "pool" / "pool.sqlite").unlink()
    (place.state / "pool" / "pool.sqlite").write_text("restored")
    assert accounts.take_over(place, taken) == 1
    assert owner(place.state / "pool" / "pool.sqlite")[0] == taken.services == taken.workers
