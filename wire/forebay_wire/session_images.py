"""What pool, workers and clients say of images of sessions, and of sessions that begin as copies of others."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forebay_wire.message_parts import PATH_CHARACTERS_MAX, Count, Hex256, Message, Text
from forebay_wire.texts import Name

SHARED_IMAGE = 2**62
"""The number of the image with which a copy of another session begins (``forebay/image.h``)."""


class Fork(Message):
    """Of which session a forked process has a copy: its parent's, as it was in the moment of the fork."""

    session: Name
    key: Hex256
    """``resume_key`` of that session, which its own processes alone know."""
    checkpoint: Count


class Kept(Message):
    """An image of the session lies where :class:`Assign` said: another worker can go on from what was done until then."""

    type: Literal["kept"] = "kept"
    number: Count
    bytes: Count


class Copy(Message):
    """What the worker's session held at this checkpoint is to become the first image of another session, once the checkpoint has come;
    answered by :class:`Copied`. Neither session needs a lease for it."""

    type: Literal["copy"] = "copy"
    session: Name
    """The other one."""
    checkpoint: Count
    images: Annotated[str, Field(min_length=1, max_length=PATH_CHARACTERS_MAX)] | None = None
    """Its folder of images; None: it has none, and cannot have a copy."""
    images_fill_max: Annotated[float, Field(gt=0, le=1)] = 1.0
    """As of :class:`Assign`."""


class Copied(Message):
    """Answers :class:`Copy`."""

    type: Literal["copied"] = "copied"
    session: Name
    bytes: Count = 0
    why: Text = ""
    """Why there is no copy; empty: there is one."""
