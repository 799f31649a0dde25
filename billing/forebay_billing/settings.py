"""Every setting of billing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from forebay_service.errors import SettingsError
from forebay_service.identity import Identity
from forebay_service.languages import CATALOGUES, SOURCE
from forebay_service.people.addresses import Address
from forebay_service.settings import ServiceSettings
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from forebay_billing.model.currencies import DECIMALS
from forebay_billing.reads.invoices import Issuer
from forebay_billing.rules.holds import Terms
from forebay_billing.writes.invoices import Conditions


def _currency(code: str) -> str:
    if code not in DECIMALS:
        raise ValueError(f"{code!r} is not a currency of ISO 4217")
    return code


def _language(code: str) -> str:
    if code not in CATALOGUES:
        raise ValueError(f"there are no texts in {code!r}; there are {', '.join(CATALOGUES)}")
    return code


Currency = Annotated[str, AfterValidator(_currency)]


def _several(value: Any) -> Any:
    """One secret may be given without brackets."""
    return (value,) if isinstance(value, str) else value


class TokenSettings(BaseModel):
    """A caller known by a fixed token, for an installation without a hub."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: Annotated[str, Field(min_length=16, repr=False)]
    name: Annotated[str, Field(min_length=1)]
    kind: Literal["user", "service"]
    tenant: str | None = None
    scopes: frozenset[str] = frozenset()

    def identity(self) -> Identity:
        """Who the bearer is."""
        return Identity(self.name, self.kind, self.tenant, self.scopes)


class Settings(ServiceSettings):
    """All of them; ``docs/reference/billing.md`` says the same to operators, and a test compares."""

    package: ClassVar[str] = "forebay_billing"

    state_dir: Annotated[Path, Field(description="Where the database is, unless database_url is set.")] = Path("var/billing")
    database_url: Annotated[
        str | None,
        Field(repr=False, description="Where the books are: sqlite:///path or postgresql+psycopg://user@host/name; none: in state_dir."),
    ] = None
    replicas: Annotated[
        int, Field(ge=1, le=9, description="Billing services on this database; more than one need PostgreSQL.")
    ] = 1
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8712
    hub_token: Annotated[
        str | None,
        Field(repr=False, description="Billing's own JupyterHub token: it tells whether the hub is well, and who left a tenant."),
    ] = None
    tokens: Annotated[tuple[TokenSettings, ...], Field(description="Fixed callers, for an installation without a hub.")] = ()
    currency: Annotated[Currency, Field(description="Currency in which tenants are billed.")] = "USD"
    tenant_currencies: dict[str, Currency] = Field({}, description="Other currencies, by tenant.")
    issuer_name: Annotated[str, Field(min_length=1, max_length=150, description="Who sends the invoices.")] = "Forebay"
    issuer_address: Annotated[str, Field(max_length=500, description="The sender's address, lines separated by newlines.")] = ""
    issuer_tax_id: Annotated[str, Field(max_length=128, description="The sender's tax number.")] = ""
    invoice_series: Annotated[
        str, Field(pattern=r"^[A-Z0-9][A-Z0-9-]{0,31}$", description="Before the numbers of invoices; a new one counts from 1.")
    ] = "INV"
    credit_note_series: Annotated[
        str, Field(pattern=r"^[A-Z0-9][A-Z0-9-]{0,31}$", description="The same, of credit notes.")
    ] = "CN"
    invoice_grace_days: Annotated[
        int, Field(ge=0, le=28, description="Days after a month's end at which its invoices are finalised; late usage waits for so long.")
    ] = 3
    invoice_days_until_due: Annotated[int, Field(ge=0, le=365, description="Days to pay an invoice.")] = 30
    stripe_mode: Annotated[
        Literal["off", "invoices", "meters"],
        Field(description="What Stripe is told: nothing, our invoices line by line, or hourly sums of usage."),
    ] = "off"
    stripe_key: Annotated[SecretStr | None, Field(description="Stripe's API key, better restricted than secret.")] = None
    stripe_key_file: Annotated[Path | None, Field(description="A file with the API key, instead.")] = None
    stripe_webhook_secrets: Annotated[
        tuple[SecretStr, ...], BeforeValidator(_several), Field(description="Signing secrets of our webhook endpoints at Stripe.")
    ] = ()
    stripe_webhook_secrets_file: Annotated[Path | None, Field(description="A file with these secrets, one a line, instead.")] = None
    stripe_auto_advance: Annotated[bool, Field(description="Whether Stripe collects finalised invoices by itself.")] = True
    stripe_collection: Annotated[
        Literal["charge_automatically", "send_invoice"], Field(description="Charge the payment method, or send a link to pay.")
    ] = "charge_automatically"
    stripe_days_until_due: Annotated[int, Field(ge=0, le=365, description="Days to pay an invoice that was sent.")] = 30
    stripe_meter_price: Annotated[
        str | None, Field(pattern=r"^price_\w+$", description="The metered price that customers are subscribed to in the mode meters.")
    ] = None
    stripe_return_url: Annotated[
        str | None, Field(pattern=r"^https?://", description="Where Stripe's customer portal leads back to.")
    ] = None
    stripe_api_url: Annotated[
        str | None, Field(pattern=r"^https?://", description="Another address of Stripe's API, such as a proxy's.")
    ] = None
    grams_co2_per_kwh: Annotated[
        float | None, Field(ge=0, le=5_000, description="CO₂ of the electricity that devices draw, in grams; none: it is not shown.")
    ] = None
    hold_margin_seconds: Annotated[
        float, Field(ge=0, le=86_400, description="How far ahead of the next heartbeat money is held for an open lease.")
    ] = 60.0
    hold_silence_seconds: Annotated[
        float, Field(gt=0, le=31_622_400, description="How long after the time that it covers a hold expires, if nothing is heard.")
    ] = 300.0
    language: Annotated[
        str, AfterValidator(_language), Field(description="Language of mails and notices to whoever chose none.")
    ] = SOURCE
    alert_private_addresses: Annotated[
        bool, Field(description="Whether webhooks of alerts may go to private addresses, and by plain HTTP.")
    ] = False
    webhook_ports: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65535)], ...],
        Field(description="Ports that webhooks may go to; where private addresses are allowed, they go to any port."),
    ] = (443, 8443)
    smtp_host: Annotated[str | None, Field(description="The mail server for alerts by e-mail; none: no e-mail.")] = None
    smtp_port: Annotated[int, Field(ge=1, le=65535, description="Its port.")] = 587
    smtp_security: Annotated[
        Literal["starttls", "tls", "none"], Field(description="How the connection to it is secured; none only on this host.")
    ] = "starttls"
    smtp_from: Annotated[Address, Field(description="Who mails come from.")] = "forebay@localhost"
    smtp_user: Annotated[str | None, Field(description="Who signs in to the mail server; none: nobody does.")] = None
    smtp_password: Annotated[SecretStr | None, Field(description="The password for that.")] = None
    smtp_password_file: Annotated[Path | None, Field(description="A file with the password, instead.")] = None
    busy_seconds: Annotated[float, Field(gt=0, le=60, description="How long a locked database is waited for.")] = 2.0

    @property
    def database(self) -> str:
        """The URL of the books. Raises SettingsError where several services would have an SQLite file each, or one that locks them out."""
        url = self.database_url or f"sqlite:///{self.state_dir.absolute() / 'billing.sqlite3'}"
        if self.replicas > 1 and url.startswith("sqlite"):
            raise SettingsError(
                f"replicas is {self.replicas} and the database is SQLite, which one service uses: set database_url to PostgreSQL."
            )
        return url

    def stripe_key_text(self) -> str:
        """The API key. Raises SettingsError where there is none."""
        text = _secret(self.stripe_key, self.stripe_key_file, "stripe_key_file")
        if not text:
            raise SettingsError(f"stripe_mode is {self.stripe_mode}: set stripe_key_file or stripe_key, Stripe's API key.")
        return text

    def stripe_webhook_secret_texts(self) -> tuple[str, ...]:
        """The signing secrets; without any, every webhook is refused. Raises SettingsError for a file that cannot be read."""
        given = tuple(secret.get_secret_value().strip() for secret in self.stripe_webhook_secrets)
        listed = _secret(None, self.stripe_webhook_secrets_file, "stripe_webhook_secrets_file").split()
        return tuple(secret for secret in (*given, *listed) if secret)

    def hold_terms(self) -> Terms:
        """How holds are made and expire."""
        return Terms(int(self.hold_margin_seconds * 10**9), int(self.hold_silence_seconds * 10**9))

    def smtp_password_text(self) -> str:
        """The mail server's password, empty where there is none. Raises SettingsError for a file that cannot be read."""
        return _secret(self.smtp_password, self.smtp_password_file, "smtp_password_file")

    def conditions(self) -> Conditions:
        """How invoices are made."""
        return Conditions(
            Issuer(self.issuer_name, self.issuer_address, self.issuer_tax_id), self.invoice_series, self.credit_note_series,
            self.invoice_days_until_due, self.stripe_mode != "off",
        )  # fmt: skip

    def currency_of(self, tenant: str) -> str:
        """What ``tenant`` is billed in."""
        return self.tenant_currencies.get(tenant, self.currency)


def _secret(given: SecretStr | None, path: Path | None, setting: str) -> str:
    if given is not None:
        return given.get_secret_value().strip()
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{setting}: {path} cannot be read ({type(error).__name__}).") from None
