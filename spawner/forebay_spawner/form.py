"""The choice on the spawn page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from forebay_spawner.budgets import Budget
from forebay_spawner.flavors import OPTION, Offer

_CARDS = Markup("""\
<fieldset id="forebay-flavors">
<legend class="fs-6 text-body-secondary">{caption}</legend>
<div class="row row-cols-1 row-cols-md-2 g-3 mb-3">
{cards}
</div>
</fieldset>""")

_CARD = Markup("""\
<div class="col"><label class="card h-100" for="flavor-{name}"><span class="card-body d-block">
<span class="form-check d-block mb-1"><input class="form-check-input" type="radio" name="{option}" id="flavor-{name}" value="{name}" \
aria-describedby="flavor-{name}-facts" required{state}><span class="form-check-label fw-bold">{name}</span></span>
<span class="d-block" id="flavor-{name}-facts">{facts}</span>
</span></label></div>""")

_FACT = Markup('<span class="d-block{style}">{text}</span>')

_ELSEWHERE = Markup("""\
<details id="forebay-elsewhere" class="mb-3">
<summary>{count}, which this installation cannot serve</summary>
{cards}
</details>""")

_CAPTION = "The size of your virtual device. You pay while a cell or a process computes on it, and for nothing else."

_NOTICE = Markup('<p class="alert alert-warning" role="alert" id="forebay-notice">{sentence}</p>')

_BUDGET = Markup('<p class="text-body-secondary mb-1">{sentence}</p>')

_NO_DEVICE = "No device of this installation can be lent to anybody; tell an operator."


def render_offers(offers: Sequence[Offer], chosen: str | None, budgets: Sequence[Budget] = ()) -> str:
    """The form: budgets, and every flavor with its rate; those that cannot be served here can be unfolded, but not chosen."""
    here = [offer for offer in offers if offer.servable]
    elsewhere = [offer for offer in offers if not offer.servable]
    parts = [_NOTICE.format(sentence=budget.sentence) for budget in budgets if budget.state != "open" and budget.sentence]
    parts += [_BUDGET.format(sentence=budget.left) for budget in budgets if budget.left is not None]
    parts.append(_NOTICE.format(sentence=_NO_DEVICE) if chosen is None else _cards(_CAPTION, here, chosen))
    if elsewhere:
        count = f"{len(elsewhere)} more flavor{'s' if len(elsewhere) > 1 else ''}"
        parts.append(_ELSEWHERE.format(count=count, cards=_cards("They need devices that are not here.", elsewhere, chosen)))
    return str(Markup("\n").join(parts))


def render_notice(sentence: str) -> str:
    """One sentence in place of the form."""
    return str(_NOTICE.format(sentence=sentence))


def _cards(caption: str, offers: Iterable[Offer], chosen: str | None) -> Markup:
    return _CARDS.format(caption=caption, cards=Markup("\n").join(_card(offer, chosen) for offer in offers))


def _card(offer: Offer, chosen: str | None) -> Markup:
    state = " disabled" if not offer.servable else " checked" if offer.name == chosen else ""
    rate = offer.rate if offer.price_nano_per_second is None else f"{offer.rate} an hour"
    facts = [_FACT.format(style="", text=f"{offer.memory}, {rate}")]
    if offer.servable:
        facts += [_fact(f"Served by {offer.served_by}")] if offer.equivalents else []
        facts.append(_fact(f"Now: {offer.wait}"))
    else:
        facts.append(_fact(offer.reason or "no device fits it"))
    return _CARD.format(option=OPTION, name=offer.name, state=state, facts=Markup("\n").join(facts))


def _fact(text: str) -> Markup:
    return _FACT.format(style=" text-body-secondary", text=text)
