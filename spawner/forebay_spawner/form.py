"""The choice on the spawn page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forebay_service.languages import Text, now_language, plural
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
<summary>{count}</summary>
{cards}
</details>""")

_CAPTION = Text("The size of your virtual device. You pay while a cell or a process computes on it, and for nothing else.")

_NOTICE = Markup('<p class="alert alert-warning" role="alert" id="forebay-notice">{sentence}</p>')

_NO_BUTTON = Markup("<style>#spawn_form [type=submit] { display: none }</style>")

_BUDGET = Markup('<p class="text-body-secondary mb-1">{sentence}</p>')

_SEVERAL = Text(
    "Of several devices each computes its part of a batch that comes again and again; "
    "what cannot be divided runs on the first. All are billed."
)

_NO_DEVICE = Text("No device of this installation can be lent to anybody; tell an operator.")

_UNKNOWN = Text("Billing does not answer: what is left of your budgets is not known now.")

_FORM = Markup("""\
<div lang="{language}">
{content}
</div>""")


def render_offers(offers: Sequence[Offer], chosen: str | None, budgets: Sequence[Budget] | None = ()) -> str:
    """The form, in the reader's language: budgets, and every flavor with its rate; those that cannot be served here cannot be chosen.

    ``budgets`` is None where nobody knows them.
    """
    here = [offer for offer in offers if offer.servable]
    elsewhere = [offer for offer in offers if not offer.servable]
    parts = [_NOTICE.format(sentence=budget.stops) for budget in budgets or () if budget.stops is not None]
    parts += [_BUDGET.format(sentence=budget.left) for budget in budgets or () if budget.left is not None]
    if budgets is None:
        parts.append(_BUDGET.format(sentence=_UNKNOWN))
    parts.append(_NOTICE.format(sentence=_NO_DEVICE) + _NO_BUTTON if chosen is None else _cards(_CAPTION, here, chosen))
    if elsewhere:
        count = plural(
            "%(count)s more flavor, which this installation cannot serve",
            "%(count)s more flavors, which this installation cannot serve",
            len(elsewhere),
        )
        parts.append(_ELSEWHERE.format(count=count, cards=_cards(Text("They need devices that are not here."), elsewhere, chosen)))
    return _framed(Markup("\n").join(parts))


def render_notice(sentence: Text) -> str:
    """One sentence in place of the form, and no button to start what cannot be."""
    return _framed(_NOTICE.format(sentence=sentence) + _NO_BUTTON)


def _framed(content: Markup) -> str:
    return str(_FORM.format(language=now_language(), content=content))


def _cards(caption: Text, offers: Iterable[Offer], chosen: str | None) -> Markup:
    return _CARDS.format(caption=caption, cards=Markup("\n").join(_card(offer, chosen) for offer in offers))


def _card(offer: Offer, chosen: str | None) -> Markup:
    state = " disabled" if not offer.servable else " checked" if offer.name == chosen else ""
    rate = offer.rate if offer.price_nano_per_hour is None else Text("%(amount)s an hour", amount=offer.rate)
    facts = [_FACT.format(style="", text=Text("%(memory)s, %(rate)s", memory=offer.memory, rate=rate))]
    if offer.servable:
        facts += [_fact(Text("Served by %(devices)s", devices=offer.served_by))] if offer.equivalents else []
        facts += [_fact(_SEVERAL)] if offer.several else []
        facts.append(_fact(Text("Now: %(wait)s", wait=offer.wait)))
    else:
        facts.append(_fact(offer.refusal))
    return _CARD.format(option=OPTION, name=offer.name, state=state, facts=Markup("\n").join(facts))


def _fact(text: Text) -> Markup:
    return _FACT.format(style=" text-body-secondary", text=text)
