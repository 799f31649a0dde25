"""People of a real LDAP server, whose groups there are tenants and roles here."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import socket
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay_hub.groups import Groups, placing
from forebay_hub.tenants import directory_of
from hub_process import free_ports
from tornado.web import HTTPError
from traitlets.config import Config

SLAPD = shutil.which("slapd", path=f"{os.environ['PATH']}:/usr/sbin")
SUFFIX = "dc=example,dc=org"
PEOPLE = {"ada": "gpu-acme-admins", "ben": "gpu-acme", "olga": "gpu-operators", "eve": "others", "dan": "gpu-globex"}
"""Each with a group; everybody's password is the login and a number."""
TABLE = Groups(
    operators=frozenset({f"cn=gpu-operators,ou=groups,{SUFFIX}"}),
    tenants={
        "acme": {
            "owners": frozenset({f"cn=gpu-acme-admins,ou=groups,{SUFFIX}"}),
            "members": frozenset({f"cn=gpu-acme,ou=groups,{SUFFIX}"}),
        },
        "globex": {"members": frozenset({f"cn=gpu-globex,ou=groups,{SUFFIX}"})},
    },
)

pytestmark = [
    pytest.mark.skipif(SLAPD is None, reason="Debian's slapd is not on this machine"),
    pytest.mark.filterwarnings("ignore:(tag|type)Map is deprecated:DeprecationWarning"),  # ldap3 with a new pyasn1
]


def ldif() -> str:
    entries = [f"dn: {SUFFIX}\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: Example"]
    entries += [f"dn: ou={name},{SUFFIX}\nobjectClass: organizationalUnit\nou: {name}" for name in ("people", "groups")]
    for login in (*PEOPLE, "nobody"):
        who = f"dn: uid={login},ou=people,{SUFFIX}\nobjectClass: person\nobjectClass: uidObject"
        entries.append(f"{who}\nuid: {login}\ncn: {login}\nsn: {login}\nuserPassword: {login}-1")
    members: dict[str, list[str]] = {}
    for login, group in PEOPLE.items():
        members.setdefault(group, []).append(f"member: uid={login},ou=people,{SUFFIX}")
    for group, lines in members.items():
        entries.append("\n".join([f"dn: cn={group},ou=groups,{SUFFIX}", "objectClass: groupOfNames", f"cn: {group}", *lines]))
    return "\n\n".join(entries) + "\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("ldap")
    (folder / "data").mkdir()
    schemas = Path(str(SLAPD)).resolve().parents[2] / "etc" / "ldap" / "schema"
    included = "".join(f"include {schemas}/{name}.schema\n" for name in ("core", "cosine", "nis"))
    (folder / "slapd.conf").write_text(
        f"{included}pidfile {folder}/pid\naccess to attrs=userPassword by anonymous auth by * none\naccess to * by * read\n"
        f"database ldif\nsuffix {SUFFIX}\ndirectory {folder}/data\n"
    )
    (folder / "people.ldif").write_text(ldif())
    configured = ["-f", str(folder / "slapd.conf")]
    subprocess.run([str(SLAPD), "-Tadd", *configured, "-l", str(folder / "people.ldif")], check=True, timeout=60)
    (free,) = free_ports(1)
    with subprocess.Popen([str(SLAPD), *configured, "-d0", "-h", f"ldap://127.0.0.1:{free}"]) as process:
        try:
            while process.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", free), timeout=1).close()
                    break
                except OSError:
                    continue
            yield free
        finally:
            process.terminate()


@pytest.fixture
def authenticator(port: int) -> Any:
    directory = directory_of(
        {"operators": [], "tenants": {"acme": {"owners": ["root"], "members": ["eve"]}, "globex": {"owners": ["greta"]}}}
    )
    config = Config()
    config.LDAPAuthenticator.server_address = "127.0.0.1"
    config.LDAPAuthenticator.server_port = port
    config.LDAPAuthenticator.tls_strategy = "insecure"
    config.LDAPAuthenticator.bind_dn_template = [f"uid={{username}},ou=people,{SUFFIX}"]
    config.Authenticator.allow_all = True
    config.Authenticator.manage_groups = True
    made = placing("ldap", TABLE, lambda: directory)
    return made(config=config)


def sign_in(authenticator: Any, login: str, password: str | None = None) -> Any:
    found = asyncio.run(authenticator.get_authenticated_user(None, {"username": login, "password": password or f"{login}-1"}))
    with warnings.catch_warnings():  # the library closes no connection
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return None if found is None else found["groups"]


def test_groups_of_the_server_make_owners_members_and_operators(authenticator: Any) -> None:
    assert sign_in(authenticator, "ada") == [f"cn=gpu-acme-admins,ou=groups,{SUFFIX}", "tenant-acme"]
    assert sign_in(authenticator, "ben") == [f"cn=gpu-acme,ou=groups,{SUFFIX}", "tenant-acme"]
    assert sign_in(authenticator, "olga") == [f"cn=gpu-operators,ou=groups,{SUFFIX}"]
    assert sign_in(authenticator, "dan") == [f"cn=gpu-globex,ou=groups,{SUFFIX}", "tenant-globex"]


def test_who_is_named_and_in_no_group_stays_and_who_is_in_neither_is_refused(authenticator: Any) -> None:
    assert sign_in(authenticator, "eve") == ["tenant-acme"]
    with pytest.raises(HTTPError, match="nobody is in no group"):
        sign_in(authenticator, "nobody")


@pytest.mark.parametrize("password", ["wrong", "ada-1 ", "*", "ben-1"])
def test_a_wrong_password_is_refused_whatever_the_groups(authenticator: Any, password: str) -> None:
    assert sign_in(authenticator, "ada", password) is None


@pytest.mark.parametrize("login", ["*", "ada)(uid=*", "ada,ou=people", "", "ADA\0"])
def test_a_login_is_no_filter_and_no_name_of_an_entry(authenticator: Any, login: str) -> None:
    assert sign_in(authenticator, login, "ada-1") is None
