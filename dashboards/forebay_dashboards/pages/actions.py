"""*Operator*: asks whether an action is meant, and does it."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from forebay_service.languages import Text, plural

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.actions import DEVICE_ACTIONS, NODE_ACTIONS, SESSION_ACTIONS, Action, read_cause, read_grace
from forebay_dashboards.http.handler import PageHandler, Problem
from forebay_dashboards.text import codes
from forebay_dashboards.text.causes import cause

SESSION_DONE = {
    "park": Text("The session is being parked."),
    "move": Text("The session is on its way."),
    "revoke": Text("The session gives its lease back."),
    "end": Text("The session has ended."),
}

logger = logging.getLogger(__name__)


class ActionPage(PageHandler):
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
            self.ask(name, action, error.text)
            return
        logger.info("an operator acted", extra={"action": f"operator_{self.kind}_{act}", "who": self.visitor.name, "subject": name})
        if "HX-Request" in self.request.headers:
            self.show("fragments/action_done.html", sentence=sentence)
        else:
            self.redirect(self.services.settings.prefix + self.back, status=HTTPStatus.SEE_OTHER)

    def action(self, act: str) -> Action:
        return self.actions[act]

    def ask(self, name: str, action: Action, problem: Text | None = None) -> None:
        """The question, with what was typed before where it was refused."""
        fact = self.fact(name)
        if fact is None:
            kind = codes.word(self.kind, "kind")
            sentence = Text("There is no %(kind)s “%(name)s” any more.", kind=kind, name=name[:64])
            raise Problem(HTTPStatus.NOT_FOUND, Text("No such %(kind)s", kind=kind), sentence)
        template = "fragments/action.html" if "HX-Request" in self.request.headers else "operator_action.html"
        typed = {field: self.get_body_argument(field, "")[:600] for field in ("cause", "grace")}
        address = f"operator/{self.kind}s/{quote(name, safe='')}/{action.act}"
        question = Text("%(act)s %(kind)s %(name)s?", act=action.name, kind=codes.word(self.kind, "kind"), name=name)
        values = {"question": question, "fact": fact, "problem": problem, "typed": typed, "address": address, "back": self.back}
        self.show(template, action=action, **values)

    def fact(self, name: str) -> Text | None:
        """Who or what it is, in a few words; None where there is no such thing."""
        raise NotImplementedError

    async def do(self, name: str, act: str) -> Text:
        """Does it, and says so. Raises FormError, UpstreamRefused, UpstreamUnavailable."""
        raise NotImplementedError


class SessionAction(ActionPage):
    """``operator/sessions/{session}/park``, ``move``, ``revoke`` and ``end``."""

    kind, actions, back = "session", SESSION_ACTIONS, "operator/sessions"

    def fact(self, name: str) -> Text | None:
        session = self.services.feed.pool_copy.session(name)
        if session is None:
            return None
        what, state = session.process or session.flavor, codes.word(session.state, "state")
        return Text("%(user)s of %(tenant)s: %(what)s, %(state)s", user=session.user, tenant=session.tenant, what=what, state=state)

    async def do(self, name: str, act: str) -> Text:
        if act == "end":
            await self.services.pool.end_session(self.token, name)
        else:
            await self.services.pool.command_session(self.token, name, act)
        return SESSION_DONE[act]


class DeviceAction(ActionPage):
    """``operator/devices/{device}/close`` and ``open``."""

    kind, actions, back = "device", DEVICE_ACTIONS, "operator/nodes"

    def fact(self, name: str) -> Text | None:
        device = self.services.feed.pool_copy.device(name)
        if device is None:
            return None
        where = {"model": device.model, "node": device.node, "state": codes.word(device.state, "state")}
        if device.causes:
            return Text("%(model)s on %(node)s, %(state)s: %(cause)s", cause=cause(device.causes), **where)
        return Text("%(model)s on %(node)s, %(state)s", **where)

    async def do(self, name: str, act: str) -> Text:
        body: dict[str, Any] = {"cordoned": act == "close"}
        if act == "close":
            body["cause"] = read_cause(self.get_body_argument("cause", ""))
        await self.services.pool.set_device(self.token, name, body)
        return Text("%(name)s is closed.", name=name) if act == "close" else Text("%(name)s is open.", name=name)


class NodeAction(ActionPage):
    """``operator/nodes/{node}/drain`` and ``return``."""

    kind, actions, back = "node", NODE_ACTIONS, "operator/nodes"

    def fact(self, name: str) -> Text | None:
        node = self.services.feed.pool_copy.node(name)
        state = None if node is None else codes.word(node.state, "state")
        return None if node is None else plural("%(count)s device, %(state)s", "%(count)s devices, %(state)s", node.devices, state=state)

    async def do(self, name: str, act: str) -> Text:
        body: dict[str, Any] = {"drain": act == "drain"}
        if act == "drain":
            body["grace_seconds"] = read_grace(self.get_body_argument("grace", ""))
        await self.services.pool.set_node(self.token, name, body)
        return Text("%(name)s is being drained.", name=name) if act == "drain" else Text("%(name)s serves again.", name=name)


def _status(error: Exception) -> int:
    if isinstance(error, UpstreamRefused):
        return error.status
    return HTTPStatus.BAD_REQUEST if isinstance(error, FormError) else HTTPStatus.SERVICE_UNAVAILABLE
