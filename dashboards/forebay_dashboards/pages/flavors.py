"""*Operator*: the table of flavors and prices, and its editor."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from http import HTTPStatus

from forebay_service.languages import Text
from pydantic import ValidationError

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.etags import expecting, overtaken, stamp_of
from forebay_dashboards.forms.flavor import (
    NEW,
    Edit,
    Editor,
    FlavorRow,
    Typed,
    Unsaved,
    judge,
    named,
    open_editor,
    reopen,
    retyped,
    table,
)
from forebay_dashboards.http.handler import OF_EVERY_FORM, PageHandler, Problem, not_so
from forebay_dashboards.rows.billing import PriceVersion
from forebay_dashboards.rows.pool import Flavor
from forebay_dashboards.text.times import moment
from forebay_dashboards.upstream.sections import Section, attempt

FIELD_CHARACTERS_MAX = 4096
REPEATED = ("price", "currency", "stamp", "runtimes")
"""Fields of the flavor editor that are there once for each currency, or for each box."""
PAGE = "operator_flavors.html"

logger = logging.getLogger(__name__)


class FlavorTable(PageHandler):
    """What all handlers of the flavor table share: reading it, and one row of it."""

    view: View = "operator"

    async def rows(self) -> tuple[Section[tuple[Flavor, ...]], Section[tuple[PriceVersion, ...]], Section[tuple[PriceVersion, ...]]]:
        """Flavors from the pool, and prices from billing: those in force, and those that are to come."""
        return await asyncio.gather(
            attempt(self.services.pool.flavors(self.token), Text("Memory and equivalents")),
            attempt(self.services.billing.prices(self.token), Text("Prices")),
            attempt(self.services.billing.coming_prices(self.token, self.now_ns), Text("Prices to come")),
        )

    async def show_table(self, template: str, editor: Editor | None) -> None:
        """All rows, one of them as a form where there is an ``editor``, or a form above them for a new one."""
        flavors, prices, coming = await self.rows()
        self.show(
            template,
            rows=table(flavors.content or (), prices.content or (), coming.content or ()),
            problems=[section.problem for section in (flavors, prices, coming) if section.problem],
            editor=editor,
            saved=None,
        )

    async def row(self, name: str) -> FlavorRow:
        """The row of ``name`` from both services; editing needs both. Raises Problem."""
        flavors, prices, coming = await self.rows()
        if flavors.content is None or prices.content is None:
            problem = flavors.problem or prices.problem or Text("Try again in a moment.")
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, Text("Not right now"), problem)
        for row in table(flavors.content, prices.content, coming.content or ()):
            if row.name == name:
                return row
        raise Problem(HTTPStatus.NOT_FOUND, Text("No such flavor"), Text("There is no flavor “%(name)s”.", name=name[:64]))

    @property
    def fragment(self) -> bool:
        """Whether htmx asks, which wants one row and not the page."""
        return "HX-Request" in self.request.headers


class FlavorsPage(FlavorTable):
    """``GET operator/flavors``, and its fragment ``operator/flavors/table``."""

    page = "operator_flavors"

    async def get(self, part: str | None = None) -> None:
        if part is None:
            await self.show_table(PAGE, None)
            return
        await self.show_table("fragments/flavor_table.html", None)


class FlavorPage(FlavorTable):
    """``GET operator/flavors/{name}``: one row as it is."""

    page = "operator_flavor"

    async def get(self, name: str) -> None:
        row = await self.row(name)
        if self.fragment:
            self.show("fragments/flavor_row.html", row=row, saved=None)
        else:
            await self.show_table(PAGE, None)


class FlavorForm(FlavorTable):
    """What the forms of a flavor share, of one that is there and of a new one."""

    async def stamped_row(self, name: str) -> FlavorRow:
        """The row, and the stamps of its prices, which are read first: then what is shown is never older than they are. Raises Problem."""
        try:
            versions = await self.services.billing.price_history(self.token, name)
        except UpstreamRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:  # a flavor that was never priced
                raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, Text("Not right now"), error.text) from None
            versions = ()
        except UpstreamUnavailable as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, Text("Not right now"), error.text) from None
        return replace(await self.row(name), stamps={one.currency: stamp_of(one.etag) for one in versions})

    def _typed(self) -> Typed:
        arguments: dict[str, object] = {}
        for name in self.request.body_arguments:
            values = [value[:FIELD_CHARACTERS_MAX] for value in self.get_body_arguments(name)]
            arguments[name] = values if name in REPEATED else values[-1]
        for name in OF_EVERY_FORM:
            arguments.pop(name, None)
        try:
            return Typed.model_validate(arguments)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "price"
            raise not_so(FormError(Text("The field %(name)s cannot be used: %(problem)s.", name=where, problem=first["msg"]))) from None

    async def _save(self, row: FlavorRow, edit: Edit) -> Unsaved | None:
        """Writes what changed, the pool's part first."""
        saved, flavor_saved, currencies = Text("Nothing was saved."), False, frozenset[str]()
        try:
            if edit.flavor_changed:
                others = row.flavor and row.flavor.model_copy(update={"runtimes": edit.runtimes, "egress": edit.egress})
                await self.services.pool.set_flavor(
                    self.token, row.name, edit.memory_bytes, edit.equivalents, others, expecting(edit.flavor_stamp)
                )
                flavor_saved = True
                saved = Text("Memory and equivalents were saved; the price was not.") if edit.prices else saved
                fields = {"action": "flavor_changed", "who": self.visitor.name, "flavor": row.name, "memory_bytes": edit.memory_bytes}
                logger.info("a flavor is changed", extra=fields)
            for new in edit.prices:
                price = await self.services.billing.set_price(
                    self.token, row.name, new.nano_per_hour, new.currency, new.first, edit.start_ns, expecting(new.stamp)
                )
                currencies |= {new.currency}
                saved = Text(
                    "What comes before the price in %(currency)s was saved, and this price too; what comes after it was not.",
                    currency=new.currency,
                )
                fields = {
                    "action": "price_changed", "who": self.visitor.name, "flavor": row.name, "currency": price.currency,
                    "price_nano_per_hour": price.price_nano_per_hour, "version": price.version,
                }  # fmt: skip
                logger.info("a price is changed", extra=fields)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            problem = saved if overtaken(error) else Text("%(saved)s %(problem)s", saved=saved, problem=error.text)
            return Unsaved(problem, flavor_saved, currencies)
        finally:
            self.services.browsers.tell_all("prices")
        return None

    async def _show_editor(self, editor: Editor) -> None:
        if self.fragment:
            self.show("fragments/flavor_editor.html", editor=editor)
        else:
            await self.show_table(PAGE, editor)

    async def _show_saved(self, row: FlavorRow, edit: Edit) -> None:
        if self.fragment:
            self.show("fragments/flavor_row.html", row=row, saved=_saved_sentence(row.name, edit))
        else:
            self.redirect(f"{self.services.settings.prefix}operator/flavors", status=HTTPStatus.SEE_OTHER)


class FlavorEditPage(FlavorForm):
    """``GET operator/flavors/{name}/edit`` shows the form, ``POST`` saves it, or removes the flavor."""

    page = "operator_flavor_edit"

    async def get(self, name: str) -> None:
        await self._show_editor(open_editor(await self.stamped_row(name)))

    async def post(self, name: str) -> None:
        if "remove" in self.request.body_arguments:
            await self._remove(name)
            return
        row, typed = await self.stamped_row(name), self._typed()
        judged = judge(row, typed)
        if isinstance(judged, Editor):
            await self._show_editor(judged)
            return
        unsaved = await self._save(row, judged)
        fresh = await self.stamped_row(name)
        if unsaved is not None:
            await self._show_editor(reopen(fresh, typed, unsaved))
        else:
            await self._show_saved(fresh, judged)

    async def _remove(self, name: str) -> None:
        stamp = self.get_body_argument("flavor_stamp", "")
        try:
            await self.services.pool.remove_flavor(self.token, name, expecting(stamp))
        except (UpstreamRefused, UpstreamUnavailable) as error:
            self.set_status(HTTPStatus(error.status) if isinstance(error, UpstreamRefused) else HTTPStatus.SERVICE_UNAVAILABLE)
            editor = open_editor(await self.stamped_row(name))
            await self._show_editor(replace(editor, problems={"form": error.text}))
            return
        logger.info("a flavor is removed", extra={"action": "flavor_removed", "who": self.visitor.name, "flavor": name})
        self.services.browsers.tell_all("prices")
        saved = Text("%(name)s is removed: nobody gets it any more. Its prices stay in the price book.", name=name)
        if self.fragment:
            self.show("fragments/flavor_removed.html", saved=saved)
        else:
            self.redirect(f"{self.services.settings.prefix}operator/flavors", status=HTTPStatus.SEE_OTHER)


class NewFlavorPage(FlavorForm):
    """``GET operator/flavors/new`` shows the form of a flavor that is not there yet, ``POST`` makes it."""

    page = "operator_flavor_new"

    async def get(self) -> None:
        await self.show_table(PAGE, open_editor(NEW))

    async def post(self) -> None:
        typed = self._typed()
        row, problem = named(typed)
        judged = judge(row, typed)
        if isinstance(judged, Editor) or problem is not None:
            editor = judged if isinstance(judged, Editor) else retyped(row, typed)
            await self._show_refused(replace(editor, problems={**editor.problems, **({"name": problem} if problem else {})}))
            return
        unsaved = await self._save(row, judged)
        if unsaved is None:
            self.redirect(f"{self.services.settings.prefix}operator/flavors", status=HTTPStatus.SEE_OTHER)
        elif unsaved.flavor_saved:
            await self.show_table(PAGE, reopen(await self.stamped_row(row.name), typed, unsaved))
        else:
            await self._show_refused(replace(retyped(row, typed), problems={"form": unsaved.problem}))

    async def _show_refused(self, editor: Editor) -> None:
        """What was typed, and what is wrong with it, above the table."""
        self.set_status(HTTPStatus.BAD_REQUEST)
        await self.show_table(PAGE, replace(editor, row=NEW, name=self.get_body_argument("name", "")[:FIELD_CHARACTERS_MAX]))


class PriceHistoryPage(FlavorTable):
    """``GET operator/flavors/{name}/prices``: every price the flavor ever had, and who set it."""

    page = "operator_prices"

    async def get(self, name: str) -> None:
        history = await attempt(self.services.billing.price_history(self.token, name), Text("Prices of %(name)s", name=name[:64]))
        versions = tuple(sorted(history.content or (), key=lambda price: (price.currency, -price.version)))
        template = "fragments/price_history.html" if self.fragment else "operator_prices.html"
        self.show(template, name=name, versions=versions, problem=history.problem)


def _saved_sentence(name: str, edit: Edit) -> Text:
    if not edit.flavor_changed and not edit.prices:
        return Text("Nothing was changed in %(name)s.", name=name)
    if edit.start_ns is not None:
        start = f"{moment(edit.start_ns):%Y-%m-%d %H:%M:%S}"
        return Text("%(name)s is saved. Prices apply from %(start)s UTC on, the rest to leases opened from now on.", name=name, start=start)
    return Text("%(name)s is saved. A price applies from now on, the rest to leases opened from now on.", name=name)
