"""E-mail through an operator's SMTP server."""

from __future__ import annotations

import smtplib
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from typing import Literal

from forebay_billing.tasks.alert_webhooks import Undelivered

SMTP_SECONDS = 15.0


@dataclass(frozen=True)
class Attachment:
    """A file that goes with a mail."""

    name: str
    media_type: str
    content: bytes = field(repr=False)


@dataclass(frozen=True)
class Mailbox:
    """How mail is sent. ``security``: ``starttls`` and ``tls`` check the server's certificate, ``none`` is for a server on this host."""

    host: str
    port: int
    security: Literal["starttls", "tls", "none"]
    sender: str
    user: str | None = None
    password: str = field(default="", repr=False)

    def send(self, to: str, subject: str, text: str, id: str, at_ns: int, attachment: Attachment | None = None) -> None:
        """Hands a message over to the server. ``id`` names it, so that a reader sees a repetition for what it is. Raises Undelivered."""
        message = EmailMessage()
        try:
            message["From"], message["To"], message["Subject"] = self.sender, to, subject
        except ValueError as error:
            raise Undelivered(f"The mail cannot be written ({error}).") from None
        message["Date"] = format_datetime(datetime.fromtimestamp(at_ns // 10**9, UTC))
        message["Message-ID"] = f"<{id}@{make_msgid().rpartition('@')[2]}"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        if attachment is not None:
            main, _, sub = attachment.media_type.partition("/")
            message.add_attachment(attachment.content, maintype=main, subtype=sub, filename=attachment.name)
        try:
            self._hand_over(message)
        except (smtplib.SMTPException, OSError) as error:
            raise Undelivered(f"The mail server {self.host}:{self.port} did not take it ({type(error).__name__}: {error}).") from None

    def _hand_over(self, message: EmailMessage) -> None:
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
            server.send_message(message)
