"""Every setting of the edge."""

from __future__ import annotations

from typing import Annotated, ClassVar

from forebay_service.settings import PREFIX, Prefix, ServiceSettings
from pydantic import Field

Seconds = Annotated[float, Field(gt=0, le=3600)]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/]+(/\S*)?$")]


class Settings(ServiceSettings):
    """The settings of the edge. ``docs/reference/edge.md`` lists them."""

    package: ClassVar[str] = "forebay_edge"
    peers: ClassVar[tuple[str, ...]] = ("hub_api_url", "pool_url")

    port: int = Field(default=8784, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    prefix: Prefix = Field(default="/services/edge/", description=PREFIX)
    hub_api_url: HttpUrl = Field(default="http://127.0.0.1:8081/hub/api", description="JupyterHub's API; JupyterHub gives it.")
    hub_token: str = Field(
        min_length=1, repr=False, description="This service's own token, with custom:forebay:service; JupyterHub gives it."
    )
    pool_url: HttpUrl = Field(description="The pool's address with its prefix, such as http://127.0.0.1:8781/services/pool/.")
    streams_per_user: int = Field(default=32, ge=1, le=10_000, description="Most streams of one user at a time; more are refused with 429.")
    upstream_seconds: Seconds = Field(default=10, description="Longest wait for the pool's answer, and for a worker's door to open.")
    ping_seconds: Seconds = Field(default=20, description="Each stream gets a ping so often, so that no proxy takes it for an idle one.")
