"""The courier at a site: a ClientApp that hands the content of a message to the resident worker and returns its answer.

Flower starts a process for every message; this is all that runs in it. The worker's socket and the largest answer are
in the node's own configuration, never in the message. Whatever goes wrong here is answered with a fixed sentence.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsaddle.sites.flower.records import Letter, pack, unpack
from fedsaddle.sites.handing import NOT_OURS, ask, sentence

client = ClientApp()


@client.query()
def carry(message: Message, context: Context) -> Message:
    return Message(pack(answer(message, context)), reply_to=message)


def answer(message: Message, context: Context) -> Letter:
    try:
        letter = unpack(message.content)
    except ValueError:
        return Letter("", error=NOT_OURS)
    try:
        worker, limit = str(context.node_config["worker"]), int(context.node_config["limit"])
        return Letter(letter.ticket, ask(worker, letter.content, limit, message.metadata.ttl))
    except Exception as error:
        return Letter(letter.ticket, error=sentence(error))
