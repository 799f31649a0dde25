"""Everything this service refuses, with the HTTP status and the code word of its JSON answer."""

from __future__ import annotations

from forebay_service import errors


class BillingError(errors.RequestError):
    """Base: ``str(error)`` is one sentence for the caller."""


class InvalidRequest(BillingError, errors.Invalid):
    """A field, query argument or body that is missing, unknown or out of range."""


class InvalidPrice(BillingError):
    """A price that no price book accepts: below zero, too high, in an unknown currency, or valid from the past."""

    status = 400
    code = "invalid_price"


class InvalidPriceList(BillingError):
    """A text that is no price list; the message names the line."""

    status = 400
    code = "invalid_price_list"


class ClosedToPrices(BillingError):
    """A price from a past that was rated already, or that lies in a finalised month."""

    status = 409
    code = "already_rated"


class ClosedToPlans(BillingError):
    """A plan that would change a month that is finalised."""

    status = 409
    code = "finalised"


class InvalidPlan(BillingError):
    """Terms that no month can have, or in a currency that is not the tenant's."""

    status = 400
    code = "invalid_plan"


class InvalidProfile(BillingError):
    """A billing profile that no invoice can be made out to."""

    status = 400
    code = "invalid_profile"


class InvalidCredit(BillingError):
    """A credit, payment, refund or credit note of an amount or time that cannot be."""

    status = 400
    code = "invalid_credit"


class Undeliverable(BillingError):
    """A mail that the mail server did not take; the message says why."""

    status = 409
    code = "undelivered"


class Forbidden(BillingError, errors.Forbidden):
    """A known caller who may not do this."""


class UnknownFlavor(BillingError):
    """A flavor that the price book has never held."""

    status = 404
    code = "unknown_flavor"


class KnownFlavor(BillingError):
    """A first price for a flavor that has one."""

    status = 409
    code = "known_flavor"


class UnknownTenant(BillingError):
    """A tenant for which nothing was ever recorded."""

    status = 404
    code = "unknown_tenant"


class UnknownRecord(BillingError):
    """A usage record that was never accepted."""

    status = 404
    code = "unknown_record"


class UnknownInvoice(BillingError):
    """An invoice, credit note, line or credit that is not there, or not the caller's."""

    status = 404
    code = "unknown_invoice"


class UnknownBudget(BillingError):
    """A budget that is not in force, or not the caller's to change."""

    status = 404
    code = "unknown_budget"


class UnknownChannel(BillingError):
    """Alerts go to no such place."""

    status = 404
    code = "unknown_channel"


class UnknownRecipient(BillingError):
    """Reports are mailed to no such address."""

    status = 404
    code = "unknown_recipient"


class RecordConflict(BillingError, errors.Conflict):
    """The same (source, id) arrived again with another content."""


class PaymentsOff(BillingError):
    """This installation sends nothing to Stripe, or the tenant is not known there yet."""

    status = 409
    code = "payments_off"


class BadWebhook(BillingError):
    """A webhook that is not proven to come from Stripe, or not now. The message has neither payload nor secret."""

    status = 400
    code = "bad_webhook"


class PaymentsUnavailable(BillingError):
    """Stripe did not answer, or refused. Nothing of ours has changed."""

    status = 502
    code = "payments_unavailable"


class AlreadyCorrected(BillingError):
    """A usage record can be reversed once."""

    status = 409
    code = "already_corrected"


class NotNow(BillingError):
    """What was asked for does not fit how the month, the invoice or the credit stands."""

    status = 409
    code = "not_now"


class PreconditionFailed(BillingError, errors.PreconditionFailed):
    """What stands is not what ``If-Match`` or ``If-None-Match`` expect: somebody changed it meanwhile."""


class KeyReused(BillingError):
    """An idempotency key that was used for another request."""

    status = 409
    code = "key_reused"


class TooLarge(BillingError, errors.TooLarge):
    """A body longer than the service reads, or records that last too long for one batch."""


class Unpriced(BillingError):
    """Usage of a flavor that has no price in the tenant's currency at the time."""

    status = 422
    code = "unpriced"


class LedgerError(BillingError):
    """The books do not add up. Nothing is written or shown; an operator must look."""

    status = 500
    code = "ledger"


class StoreUnavailable(BillingError, errors.Unavailable):
    """The database cannot be read or written right now. Nothing was written; send the same again later."""


CLOSING = "The billing service is shutting down; nothing was written, send the same again later."
