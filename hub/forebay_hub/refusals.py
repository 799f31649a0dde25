"""Endpoints of the hub whose refusals have the shape of our services (``docs/reference/http.md``)."""

from __future__ import annotations

from typing import Any

from forebay_service.errors import RequestError
from forebay_service.handler import error_document
from jupyterhub.apihandlers import APIHandler


class RefusingApi(APIHandler):  # type: ignore[misc] # jupyterhub has no type information
    """Base of such endpoints."""

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, RequestError):
            super().log_exception(typ, value, tb)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if not isinstance(error, RequestError):
            super().write_error(status_code, **kwargs)
            return
        self.set_status(error.status)
        self.set_header("Content-Type", "application/json")
        self.finish(error_document(error))
