"""The choice on the spawn page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from forebay_spawner.flavors import OPTION, Offer

_TABLE = Markup("""\
<table class="table" id="forebay-flavors">
<caption class="caption-top">The size of your virtual device.
You pay while a cell or a process computes on it, and for nothing else.</caption>
<thead><tr><th scope="col">Flavor</th><th scope="col">Memory</th><th scope="col">Rate per hour</th><th scope="col">Here</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>""")

_ROW = Markup("""\
<tr><td><div class="form-check">
<input class="form-check-input" type="radio" name="{option}" id="flavor-{name}" value="{name}" required{state}>
<label class="form-check-label" for="flavor-{name}">{name}</label></div></td><td>{memory}</td><td>{rate}</td><td>{here}</td></tr>""")

_NOTICE = Markup('<p class="alert alert-warning" role="alert" id="forebay-notice">{sentence}</p>')


def render_offers(offers: Sequence[Offer], chosen: str | None) -> str:
    """The form: every flavor with its rate; those that cannot be served here are shown, but cannot be chosen."""
    rows = Markup("\n").join(_row(offer, chosen) for offer in offers)
    table = _TABLE.format(rows=rows)
    if chosen is None:
        return render_notice("No device of this installation is free to be lent to anybody; tell an operator.") + str(table)
    return str(table)


def render_notice(sentence: str) -> str:
    """One sentence in place of the form."""
    return str(_NOTICE.format(sentence=sentence))


def _row(offer: Offer, chosen: str | None) -> Markup:
    state = " disabled" if not offer.servable else " checked" if offer.name == chosen else ""
    here = "available" if offer.servable else f"not here: {offer.reason or 'no device fits it'}"
    return _ROW.format(option=OPTION, name=offer.name, state=state, memory=offer.memory, rate=offer.rate, here=here)
