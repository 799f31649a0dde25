"""What the services know, for Python: usage, prices, budgets, sessions, the queue, jobs, shared notebooks, invoices.

>>> from forebay.client import Client
>>> client = Client()
>>> for record in client.usage(): ...

It needs nothing that a notebook does not have: HTTP is this package's own (:mod:`forebay.service`), the types of answers are pydantic's.
"""

from __future__ import annotations

import os
from dataclasses import replace

from forebay.client.budgets import BudgetCalls
from forebay.client.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PreconditionFailed,
    Refused,
    ServiceFailed,
    TooManyRequests,
    Unauthorized,
)
from forebay.client.invoices import InvoiceCalls
from forebay.client.jobs import JobCalls
from forebay.client.notices import NoticeCalls
from forebay.client.pool import PoolCalls, PoolEvent
from forebay.client.prices import PriceCalls
from forebay.client.row import Row
from forebay.client.shared_notebooks import SharedNotebookCalls
from forebay.client.times import Moment
from forebay.client.usage import UsageCalls
from forebay.errors import ForebayError, NotConfigured, PoolUnreachable
from forebay.service import BILLING_VARIABLE, LOCAL, TOKEN_VARIABLE, URL_VARIABLE, Service, beside_pool, configured, service_at

__all__ = [
    "Client",
    "Conflict",
    "Forbidden",
    "ForebayError",
    "Invalid",
    "Moment",
    "NotConfigured",
    "NotFound",
    "PoolEvent",
    "PoolUnreachable",
    "PreconditionFailed",
    "Refused",
    "Row",
    "ServiceFailed",
    "TooManyRequests",
    "Unauthorized",
]


class Client(PoolCalls, JobCalls, SharedNotebookCalls, UsageCalls, PriceCalls, BudgetCalls, NoticeCalls, InvoiceCalls):
    """Everything that pool and billing answer to people: a method for each operation. It may be shared by threads.

    In a notebook of a hub it needs no argument. ``url`` is the pool's address, else ``FOREBAY_URL``; ``token`` one of JupyterHub, else
    ``FOREBAY_TOKEN`` or ``JUPYTERHUB_API_TOKEN``; ``billing_url`` is needed only where billing is not at ``/services/billing/`` beside
    a pool at ``/services/pool/``, and ``FOREBAY_BOOKS_URL`` does not say it.

    Raises NotConfigured where an address or the token is missing. Each method raises Refused for what the service will not do, and
    PoolUnreachable where it does not answer or in another way than this release reads.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, billing_url: str | None = None) -> None:
        pool_url = url or configured()
        if pool_url is None or pool_url == LOCAL:
            ways = f"give Client(url, token), sign in with `forebay login`, or set {URL_VARIABLE} to your pool's address"
            raise NotConfigured(f"No service is configured: {ways}.")
        books_url = billing_url or (None if url else os.environ.get(BILLING_VARIABLE, "").strip()) or beside_pool(pool_url)
        environment = {TOKEN_VARIABLE: token} if token else os.environ
        books = None if books_url is None else _billing(service_at(books_url, environment))
        super().__init__(service_at(pool_url, environment), books)


def _billing(service: Service) -> Service:
    return replace(service, name="billing service", variable=BILLING_VARIABLE)
