"""``forebay login`` and ``forebay logout``: signs this machine in at a hub, by a code that is confirmed in a browser (RFC 8628)."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
import webbrowser
from typing import Any
from urllib.parse import urlsplit

from forebay.errors import ForebayError, NotConfigured, PoolRefused, PoolUnreachable
from forebay.service import LOOPBACK_HOSTS, Service, sign_in
from forebay.service.sign_in import Login

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables by which a session of a desktop is known, or a browser that somebody chose."""
PENDING, SLOWLY = "authorization_pending", "slow_down"
API = "hub/api/forebay/logins"
DESCRIPTION = "Signs this machine in at a hub: afterwards programs here have the virtual device cuda:0, without any settings."


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommands."""
    command = commands.add_parser("login", help="sign this machine in at a hub", description=DESCRIPTION)
    command.add_argument("hub", nargs="?", help="the hub's address, https://hub.example.org; without it that of the sign-in before")
    command.add_argument("--no-browser", action="store_true", help="open no browser; show the address and the code alone")
    command.set_defaults(perform=perform)
    out = commands.add_parser("logout", help="sign this machine out", description="Revokes this machine's token, and forgets it.")
    out.set_defaults(perform=perform_logout)


def perform(arguments: argparse.Namespace) -> int:
    """Until somebody has confirmed the code. Raises ForebayError."""
    url = hub_url(arguments.hub or _former_hub())
    hub = _hub(url)
    begun = hub.post(API, {"host": host_name()})
    page = _beside(url, begun["verification_path"])
    complete = _beside(url, begun["verification_path_complete"])
    print(f"Open {page} in a browser where you are signed in, and confirm the code {begun['user_code']}.")
    print("Compare the code: confirm no other one.", flush=True)
    if not arguments.no_browser and any(os.environ.get(name) for name in SCREENS):  # else it might be a browser in this terminal
        webbrowser.open(complete)
    answer = _wait(hub, begun)
    made = Login(url, _beside(url, answer["pool_path"]), answer["user"], answer["expires_at"], None)
    _end_earlier()
    where = sign_in.keep(made, answer["token"])
    until = time.strftime("%Y-%m-%d", time.localtime(made.expires_at))
    print(f"Signed in as {made.user} at {url} until {until}. The token is in {where}.")
    return 0


def perform_logout(_arguments: argparse.Namespace) -> int:
    """Forgets the token even where the hub cannot be told. Raises ForebayError."""
    kept = sign_in.kept()
    if kept is None:
        print("This machine is not signed in.")
        return 0
    trouble = _revoke(kept)
    sign_in.forget(kept)
    if trouble:
        raise ForebayError(f"The token is forgotten here, but not revoked: {trouble} Revoke it on {kept.hub}hub/token.")
    print(f"Signed out at {kept.hub}.")
    return 0


def _former_hub() -> str:
    """Raises NotConfigured."""
    kept = sign_in.kept()
    if kept is None:
        raise NotConfigured("Give the hub's address: `forebay login https://hub.example.org`.")
    return kept.hub


def hub_url(typed: str) -> str:
    """The address of a hub as somebody typed it, with a slash at its end. Raises NotConfigured."""
    url = typed if "://" in typed else f"https://{typed}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise NotConfigured(f"{typed} is no address of a hub; give one like https://hub.example.org.")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS:
        raise NotConfigured(f"{url} would send your token over the network in clear; give the hub's https address.")
    return f"{parts.scheme}://{parts.netloc}{re.sub(r'/hub(/.*)?$', '', parts.path.rstrip('/'))}/"


def host_name() -> str:
    """What this machine calls itself, as the hub takes it."""
    return re.sub(r"[^!-~]", "?", platform.node())[:100] or "unknown"


def _hub(url: str, token: str = "") -> Service:
    return Service(url, token, name="hub", variable="the address given")


def _beside(url: str, path: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{path}"


def _wait(hub: Service, begun: dict[str, Any]) -> dict[str, Any]:
    """What the hub answers once the code is confirmed. Raises ForebayError."""
    pause, deadline = float(begun["interval"]), time.monotonic() + begun["expires_in"]
    while time.monotonic() < deadline:
        time.sleep(pause)
        try:
            answer: dict[str, Any] = hub.post(f"{API}/token", {"device_code": begun["device_code"]})
            return answer
        except PoolRefused as refused:
            if refused.code == SLOWLY:
                pause += 5  # RFC 8628, section 3.5
            elif refused.code != PENDING:
                raise
        except PoolUnreachable as error:
            sys.stderr.write(f"forebay: {error} It is tried again.\n")
    raise ForebayError("The code was not confirmed in time; start again.")


def _revoke(kept: Login) -> str:
    """Has the hub revoke the token; why it did not, else nothing. One that is not valid any more needs none."""
    try:
        _hub(kept.hub, kept.secret()).delete(f"{API}/token")
    except NotConfigured:
        return ""
    except PoolRefused as refused:
        return "" if refused.status in (401, 403) else str(refused)
    except PoolUnreachable as error:
        return str(error)
    return ""


def _end_earlier() -> None:
    """Revokes the token of an earlier sign-in, which is about to be forgotten."""
    try:
        before = sign_in.kept()
    except NotConfigured:  # its file cannot be used, and is replaced
        return
    trouble = "" if before is None else _revoke(before)
    if trouble:
        sys.stderr.write(f"forebay: The token of the earlier sign-in could not be revoked: {trouble}\n")
