"""Every setting of the pages."""

from __future__ import annotations

from typing import Annotated, ClassVar

from forebay_service.settings import PREFIX, Prefix, ServiceSettings
from pydantic import Field

Seconds = Annotated[float, Field(gt=0, le=3600)]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/]+(/\S*)?$")]

class Settings(ServiceSettings):
    """The settings of the pages. ``docs/reference/dashboards.md`` lists them."""

    package: ClassVar[str] = "forebay_dashboards"
    peers: ClassVar[tuple[str, ...]] = ("hub_api_url", "pool_url", "billing_url")

    port: int = Field(default=8783, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    prefix: Prefix = Field(default="/services/dashboards/", description=PREFIX)
    hub_api_url: HttpUrl = Field(default="http://127.0.0.1:8081/hub/api", description="JupyterHub's API; JupyterHub gives it.")
    hub_token: str = Field(
        min_length=1, repr=False, description="This service's own token, with custom:forebay:service; JupyterHub gives it."
    )
    hub_home: str = Field(default="/hub/home", description="Where the link to the notebooks leads.")
    public_url: HttpUrl | None = Field(
        default=None, description="Where browsers reach this installation, for links that are mailed; none: as the browser that asks does."
    )
    name: Annotated[str, Field(min_length=1, max_length=60)] = Field(default="Forebay", description="What the pages call the installation.")
    logo_url: Annotated[str, Field(pattern=r"^/\S*$")] | None = Field(
        default=None, description="The picture beside it, on the browser's host, such as /hub/logo; none: Forebay's icon."
    )
    help_url: HttpUrl | None = Field(default=None, description="Where links to help lead; none: to the page `help`.")
    pool_url: HttpUrl = Field(description="The pool's address with its prefix, such as http://127.0.0.1:8781/services/pool/.")
    billing_url: HttpUrl = Field(description="Billing's address with its prefix, such as http://127.0.0.1:8782/services/billing/.")
    upstream_seconds: Seconds = Field(default=5, description="Longest wait for an answer of pool or billing.")
    feed_silence_seconds: Seconds = Field(default=45, description="Silence on the pool's event stream after which it is opened anew.")
    feed_retry_seconds_max: Seconds = Field(default=10, description="Longest pause between attempts to open the pool's event stream.")
    update_seconds: Seconds = Field(default=0.2, description="A browser is told of changes at most this often.")
    browser_stall_seconds: Seconds = Field(default=10, description="A browser that has not read for this long is dropped; it reconnects.")
    browser_quiet_seconds: Seconds = Field(default=15, description="A sign of life is sent to a browser after this much quiet.")
    browsers_max: Annotated[int, Field(ge=1, le=100_000)] = Field(default=2000, description="Most open event streams of browsers.")
    page_records: Annotated[int, Field(ge=1, le=200)] = Field(default=25, description="Usage records on one page.")
    identity_seconds: Annotated[int, Field(ge=1, le=300)] = Field(
        default=10, description="How long JupyterHub's answer about a visitor is trusted; a revoked role works no longer than this."
    )
