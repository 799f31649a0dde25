"""What a client asks a worker about checkpoints."""

from __future__ import annotations

from typing import Any

from forebay_wire import images


def told(client: Any, held: int = 0) -> images.Checkpoints:
    request = client.request()
    client.send(images.TellCheckpoints(request, held))
    reply = client.reply()
    while isinstance(reply, images.Checkpoints) and reply.request == 0:  # that some were dropped
        reply = client.reply()
    assert isinstance(reply, images.Checkpoints) and reply.request == request, reply
    return reply


def go_back(client: Any, number: int) -> images.WentBack:
    client.send(images.GoBack(client.request(), number))
    reply = client.reply()
    assert isinstance(reply, images.WentBack), reply
    return reply
