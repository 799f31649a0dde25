"""The templates, and how values become text in them. Everything is escaped unless a template builds it."""

from __future__ import annotations

import time
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any
from urllib.parse import quote

from forebay_service import languages
from forebay_service.languages import Text
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from forebay_dashboards.forms import actions, etags
from forebay_dashboards.settings import Settings
from forebay_dashboards.tables import spend
from forebay_dashboards.text import audit, causes, codes, estimates, money, quantities, times

PARKED = "@parked"
"""What billing calls parked bytes among flavors."""
STATIC_FILES = {
    "colours.css": "text/css; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "htmx-2.0.11.min.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "jobs.js": "text/javascript; charset=utf-8",
    "tables.js": "text/javascript; charset=utf-8",
    "idiomorph-0.8.0.min.js": "text/javascript; charset=utf-8",
    "idiomorph-LICENSE.txt": "text/plain; charset=utf-8",
    "htmx-LICENSE.txt": "text/plain; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


SHARED = ("colours.css", "icon.svg")
"""Of those, what JupyterHub's pages have too."""


def static_content(name: str) -> bytes:
    """A file of STATIC_FILES."""
    return resources.files("forebay_service" if name in SHARED else "forebay_dashboards").joinpath("static", name).read_bytes()


def open_environment(settings: Settings) -> Environment:
    """The template environment of the service."""
    environment = Environment(
        loader=PackageLoader("forebay_dashboards"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        extensions=["jinja2.ext.i18n"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.install_gettext_callables(  # type: ignore[attr-defined] # the extension adds it
        languages.now_gettext, languages.now_ngettext, newstyle=True, pgettext=languages.now_pgettext
    )
    environment.globals.update(gettext=_gettext, _=_gettext)
    prefix = settings.prefix
    versions = {name: sha256(static_content(name)).hexdigest()[:12] for name in STATIC_FILES}

    def static_url(name: str) -> str:
        return f"{prefix}static/{name}?v={versions[name]}"

    environment.globals.update(
        prefix=prefix,
        hub_home=settings.hub_home,
        sign_out_url=settings.hub_home.removesuffix("/home") + "/logout",
        installation=settings.name,
        logo_url=settings.logo_url or static_url("icon.svg"),
        help_url=settings.help_url or f"{prefix}help",
        static_url=static_url,
        periods=times.PERIODS,
        language=languages.now_language,
        languages=languages.NAMES,
        script_texts=_script_texts,
        session_actions=actions.session_actions,
        device_actions=actions.device_actions,
        node_actions=actions.node_actions,
    )
    environment.filters.update(
        amount=_amount,
        total=_total,
        duration=_duration,
        wait_left=lambda row: estimates.left(row, time.time_ns()),
        when=_when,
        memory=_memory,
        energy=_energy,
        mass=quantities.format_mass,
        drawn=spend.energy,
        price=_price,
        flavor=lambda name: Text("parked memory") if name == PARKED else name,
        say=languages.now_said,
        code=codes.word,
        why=codes.why,
        consequence=codes.consequence,
        unserved=codes.unserved,
        why_job=codes.why_job,
        stamp=etags.stamp_of,
        action=audit.action,
        column=audit.column,
        cause=causes.cause,
        budget_name=codes.budget_name,
        milli=lambda milli: money.format_decimal(milli, 3),
        quoted=lambda text: quote(text, safe=""),
        percent=lambda bps: f"{money.format_decimal(bps, 2)} %",
        nano=lambda nano: money.format_decimal(nano, 9),
        price_text=money.format_price_per_hour,
        count=lambda number: f"{number:,}",
        hours=lambda seconds: f"{round(seconds / 3600, 2):,g}",
        time_length=_length,
        days=lambda seconds: f"{round(seconds / 86_400, 2):,g}",
    )
    return environment


def _gettext(message: str, /, **values: object) -> Markup:
    """A template's text in the reader's language, with values as Jinja's own puts them in; most texts have none, and are many on a page."""
    return Markup(languages.now_gettext(message)) % values if values else _plain(languages.now_language(), message)  # noqa: S704 - ours


@cache
def _plain(language: str, message: str) -> Markup:
    return Markup(languages.CATALOGUES[language].gettext(message)) % {}  # noqa: S704 - our own text


def _amount(nano: int, currency: str) -> Markup:
    return _figure(money.format_amount(nano, currency), money.format_exact(nano, currency))


def _total(nano: int, currency: str) -> Markup:
    return _figure(money.format_total(nano, currency), money.format_exact(nano, currency))


def _duration(duration_ns: int) -> Markup:
    return _figure(quantities.format_duration(duration_ns), quantities.format_nanoseconds(duration_ns))


def _memory(memory_bytes: int) -> Markup:
    return _figure(quantities.format_memory(memory_bytes), Text("%(count)s bytes", count=f"{memory_bytes:,}"))


def _energy(energy_mj: int) -> Markup:
    return _figure(quantities.format_energy(energy_mj), f"{energy_mj:,} mJ")


def _price(nano_per_hour: int, currency: str) -> Markup:
    text = Text("%(price)s %(currency)s/h", price=money.format_price_per_hour(nano_per_hour), currency=currency)
    return _figure(text, Text("%(price)s nano-%(currency)s per hour", price=f"{nano_per_hour:,}", currency=currency))


def _when(time_ns: int) -> Markup:
    return Markup(f'<time datetime="{times.iso(time_ns)}">{times.moment(time_ns):%Y-%m-%d %H:%M:%S} UTC</time>')  # noqa: S704 - digits


def _length(seconds: int) -> Text:
    """Of a time that may be chosen: whole minutes, hours or days."""
    if seconds < 3_600:
        return Text("%(count)s min", count=seconds // 60)
    return Text("%(count)s h", count=seconds // 3_600) if seconds < 7 * 86_400 else Text("%(count)s d", count=seconds // 86_400)


def _figure(text: str, exact: str) -> Markup:
    return Markup(f'<data value="{escape(str(exact))}" title="{escape(exact)}">{escape(text)}</data>')  # noqa: S704 - all is escaped


def _script_texts() -> dict[str, str]:
    """What the page's script says, in the reader's language, with ``{name}`` where values stand."""
    texts = {
        "live": Text("Live"),
        "lost": Text("Reconnecting"),
        "seconds": quantities.seconds_text("{seconds}"),
        "minutes": quantities.minutes_text("{minutes}", "{seconds}"),
        "hours": quantities.hours_text("{hours}", "{minutes}", "{seconds}"),
    }
    return {name: languages.now_said(text) for name, text in texts.items()}


def render(environment: Environment, template: str, language: str, **values: Any) -> str:
    """The page or fragment ``template`` in a language of CATALOGUES."""
    with languages.reading(language):
        return environment.get_template(template).render(**values)
