"""The choice on the spawn page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from forebay_spawner.flavors import OPTION, Offer

_TABLE = Markup("""\
<table class="table">
<caption class="caption-top">{caption}</caption>
<thead><tr><th scope="col">Flavor</th><th scope="col">Memory</th><th scope="col">Rate per hour</th><th scope="col">Here</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>""")

_ELSEWHERE = Markup("""\
<details id="forebay-elsewhere">
<summary>{count} more flavors, which this installation cannot serve</summary>
{table}
</details>""")

_ROW = Markup("""\
<tr><td><div class="form-check">
<input class="form-check-input" type="radio" name="{option}" id="flavor-{name}" value="{name}" required{state}>
<label class="form-check-label" for="flavor-{name}">{name}</label></div></td><td>{memory}</td><td>{rate}</td><td>{here}</td></tr>""")

_CAPTION = "The size of your virtual device. You pay while a cell or a process computes on it, and for nothing else."

_NOTICE = Markup('<p class="alert alert-warning" role="alert" id="forebay-notice">{sentence}</p>')

_NO_DEVICE = _NOTICE.format(sentence="No device of this installation can be lent to anybody; tell an operator.")


def render_offers(offers: Sequence[Offer], chosen: str | None) -> str:
    """The form: every flavor with its rate; those that cannot be served here can be unfolded, but not chosen."""
    here = [offer for offer in offers if offer.servable]
    elsewhere = [offer for offer in offers if not offer.servable]
    page = _NO_DEVICE if chosen is None else _table(_CAPTION, here, chosen)
    if elsewhere:
        page += _ELSEWHERE.format(count=len(elsewhere), table=_table("They need devices that are not here.", elsewhere, chosen))
    return str(page)


def render_notice(sentence: str) -> str:
    """One sentence in place of the form."""
    return str(_NOTICE.format(sentence=sentence))


def _table(caption: str, offers: Sequence[Offer], chosen: str | None) -> Markup:
    return _TABLE.format(caption=caption, rows=Markup("\n").join(_row(offer, chosen) for offer in offers))


def _row(offer: Offer, chosen: str | None) -> Markup:
    state = " disabled" if not offer.servable else " checked" if offer.name == chosen else ""
    here = "available" if offer.servable else offer.reason or "no device fits it"
    return _ROW.format(option=OPTION, name=offer.name, state=state, memory=offer.memory, rate=offer.rate, here=here)
