"""E-mail through an operator's SMTP server."""

from __future__ import annotations

import smtplib
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.headerregistry import Address as HeaderAddress
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from typing import Literal

from forebay_service.people.addresses import ENCODED_WORD, address_of

from forebay_billing.documents.messages import Message
from forebay_billing.settings import Settings
from forebay_billing.tasks.webhooks import Undelivered

SMTP_SECONDS = 15.0


@dataclass(frozen=True)
class Mailbox:
    """How mail is sent. ``security``: ``starttls`` and ``tls`` check the server's certificate, ``none`` is for a server on this host."""

    host: str
    port: int
    security: Literal["starttls", "tls", "none"]
    sender: str
    user: str | None = None
    password: str = field(default="", repr=False)

    def send(self, to: str, message: Message, at_ns: int) -> None:
        """Hands a mail for one address over to the server. Raises Undelivered."""
        mail, file = EmailMessage(), message.attachment
        try:
            recipient = address_of(to)
            mail["From"], mail["To"] = (HeaderAddress(addr_spec=one) for one in (self.sender, recipient))
            mail["Subject"] = _without_encoded_words(message.subject)
        except ValueError as error:
            raise Undelivered(f"The mail cannot be written ({error}).") from None
        if [one.addr_spec for one in mail["To"].addresses] != [recipient]:
            raise Undelivered(f"The mail cannot be written ({to!r} is not one address).")
        mail["Date"] = format_datetime(datetime.fromtimestamp(at_ns // 10**9, UTC))
        mail["Message-ID"] = f"<{message.id}@{make_msgid().rpartition('@')[2]}"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.text)
        if file is not None:
            main, _, sub = file.media_type.partition("/")
            mail.add_attachment(file.content, maintype=main, subtype=sub, filename=file.name)
        try:
            self._hand_over(mail, recipient)
        except (smtplib.SMTPException, OSError) as error:
            raise Undelivered(f"The mail server {self.host}:{self.port} did not take it ({type(error).__name__}: {error}).") from None

    def _hand_over(self, mail: EmailMessage, recipient: str) -> None:
        """The envelope has the one recipient, whatever the headers say."""
        context = ssl.create_default_context()
        if self.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(self.host, self.port, timeout=SMTP_SECONDS, context=context)
        else:
            server = smtplib.SMTP(self.host, self.port, timeout=SMTP_SECONDS)
        with server:
            if self.security == "starttls":
                server.starttls(context=context)
            if self.user is not None:
                server.login(self.user, self.password)
            server.send_message(mail, self.sender, [recipient])


def _without_encoded_words(subject: str) -> str:
    """The subject as it is read: what looks like an encoded word in it came from a notebook's name, and is not decoded."""
    return subject.replace(ENCODED_WORD, "= ?")


def mailbox_of(settings: Settings) -> Mailbox | None:
    """The operator's mail server; None where none is set. Raises SettingsError."""
    if settings.smtp_host is None:
        return None
    password = settings.smtp_password_text()
    return Mailbox(settings.smtp_host, settings.smtp_port, settings.smtp_security, settings.smtp_from, settings.smtp_user, password)
