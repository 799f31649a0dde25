"""*Operator*: asks whether an action is meant, and does it."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from forebay_dashboards.access import View
from forebay_dashboards.actions import DEVICE_ACTIONS, NODE_ACTIONS, SESSION_ACTIONS, Action, read_cause, read_grace
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.visitor import Problem, Visit

logger = logging.getLogger(__name__)


class ActionPage(Visit):
    """``GET`` shows what will happen and a button, ``POST`` does it. htmx gets either as a fragment for the dialog."""

    view: View = "operator"
    page = "operator_action"
    kind: str
    actions: dict[str, Action]
    back: str
    """The page of the console where the thing stands."""

    async def get(self, name: str, act: str) -> None:
        self.ask(name, self.action(act))

    async def post(self, name: str, act: str) -> None:
        action = self.action(act)
        try:
            sentence = await self.do(name, act)
        except (FormError, UpstreamRefused, UpstreamUnavailable) as error:
            self.set_status(_status(error))
            self.ask(name, action, str(error))
            return
        logger.info("action=operator_%s_%s who=%s subject=%s", self.kind, act, self.visitor.name, name)
        if "HX-Request" in self.request.headers:
            self.show("fragments/action_done.html", sentence=sentence)
        else:
            self.redirect(self.services.settings.prefix + self.back, status=HTTPStatus.SEE_OTHER)

    def action(self, act: str) -> Action:
        return self.actions[act]

    def ask(self, name: str, action: Action, problem: str | None = None) -> None:
        """The question, with what was typed before where it was refused."""
        fact = self.fact(name)
        if fact is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"No such {self.kind}", f"There is no {self.kind} “{name[:64]}” any more.")
        template = "fragments/action.html" if "HX-Request" in self.request.headers else "operator_action.html"
        typed = {field: self.get_body_argument(field, "")[:600] for field in ("cause", "grace")}
        address = f"operator/{self.kind}s/{quote(name, safe='')}/{action.act}"
        values = {"name": name, "fact": fact, "problem": problem, "typed": typed, "address": address, "back": self.back, "kind": self.kind}
        self.show(template, action=action, **values)

    def fact(self, name: str) -> str | None:
        """Who or what it is, in a few words; None where there is no such thing."""
        raise NotImplementedError

    async def do(self, name: str, act: str) -> str:
        """Does it, and says so. Raises FormError, UpstreamRefused, UpstreamUnavailable."""
        raise NotImplementedError


class SessionAction(ActionPage):
    """``operator/sessions/{session}/park``, ``move``, ``revoke`` and ``end``."""

    kind, actions, back = "session", SESSION_ACTIONS, "operator/sessions"

    def fact(self, name: str) -> str | None:
        session = self.services.feed.mirror.session(name)
        return None if session is None else f"{session.user} of {session.tenant}: {session.process or session.flavor}, {session.state}"

    async def do(self, name: str, act: str) -> str:
        if act == "end":
            await self.services.pool.end_session(self.token, name)
        else:
            await self.services.pool.command_session(self.token, name, act)
        done = {"park": "is being parked", "move": "is on its way", "revoke": "gives its lease back", "end": "has ended"}
        return f"The session {done[act]}."


class DeviceAction(ActionPage):
    """``operator/devices/{device}/close`` and ``open``."""

    kind, actions, back = "device", DEVICE_ACTIONS, "operator/nodes"

    def fact(self, name: str) -> str | None:
        device = self.services.feed.mirror.device(name)
        return None if device is None else f"{device.model} on {device.node}, {device.state}{f': {device.cause}' if device.cause else ''}"

    async def do(self, name: str, act: str) -> str:
        body: dict[str, Any] = {"cordoned": act == "close"}
        if act == "close":
            body["cause"] = read_cause(self.get_body_argument("cause", ""))
        await self.services.pool.set_device(self.token, name, body)
        return f"{name} is {'closed' if act == 'close' else 'open'}."


class NodeAction(ActionPage):
    """``operator/nodes/{node}/drain`` and ``return``."""

    kind, actions, back = "node", NODE_ACTIONS, "operator/nodes"

    def fact(self, name: str) -> str | None:
        node = self.services.feed.mirror.node(name)
        return None if node is None else f"{node.devices} {'device' if node.devices == 1 else 'devices'}, {node.state}"

    async def do(self, name: str, act: str) -> str:
        body: dict[str, Any] = {"drain": act == "drain"}
        if act == "drain":
            body["grace_seconds"] = read_grace(self.get_body_argument("grace", ""))
        await self.services.pool.set_node(self.token, name, body)
        return f"{name} {'is being drained' if act == 'drain' else 'serves again'}."


def _status(error: Exception) -> int:
    if isinstance(error, UpstreamRefused):
        return error.status
    return HTTPStatus.BAD_REQUEST if isinstance(error, FormError) else HTTPStatus.SERVICE_UNAVAILABLE
