"""The resident courier and a SuperNode that is made here: messages that come in parts, late, or never to their end."""

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr, the extra `flower`, is not installed")

from flwr.app import Context, Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.common.serde import context_to_proto, message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PullTaskInputResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedsaddle.sites.flower import records, resident


class Node:
    """A SuperNode with one message, of which parts are not there until they were asked for often enough."""

    def __init__(self, missing):
        """missing: how often each part is asked for in vain."""
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 7  # of whoever sends it
        self.message = Message(records.pack(records.Letter("t", b"content")), dst_node_id=7,
                               message_type=records.KIND)
        self.message.metadata.__dict__["_message_id"] = self.message.object_id
        self.parts = {name: one.deflate() for name, one in get_all_nested_objects(self.message).items()}
        self.asked = dict.fromkeys(self.parts, 0)
        self.missing, self.lock, self.answers, self.ends = missing, threading.Lock(), [], []

    def PullTaskInput(self, request):
        context = Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={})
        return PullTaskInputResponse(context=context_to_proto(context))

    def PullMessages(self, request):
        return PullAppMessagesResponse(messages_list=[message_to_proto(self.message)],
                                       message_object_trees=[get_object_tree(self.message)])

    def PullObject(self, request):
        with self.lock:
            self.asked[request.object_id] += 1
            there = self.asked[request.object_id] > self.missing
        return PullObjectResponse(object_found=True, object_available=there,
                                  object_content=self.parts[request.object_id] if there else b"")

    def ConfirmMessageReceived(self, request):
        return None

    def PushTaskOutput(self, request):
        self.ends.append(request.sub_status)

    def close(self):
        pass


class Ended(BaseException):
    """In the place of a process's end."""


@pytest.fixture
def handled(monkeypatch):
    def handle(node, newer=lambda: ""):
        def end(code):
            raise Ended(code)

        monkeypatch.setattr(resident, "reach", lambda address, *more: node)
        monkeypatch.setattr(resident, "HeartbeatSender", lambda beat: SimpleNamespace(start=lambda: None,
                                                                                      stop=lambda: None))
        monkeypatch.setattr(resident, "carry", lambda message, context: records.unpack(message.content).content)
        monkeypatch.setattr(resident, "push_message", lambda supernode, answer, context: node.answers.append(answer))
        monkeypatch.setattr(resident.os, "_exit", end)
        monkeypatch.setattr(resident, "LOOK", 0.01)
        return resident.handle("nowhere", "token", newer)

    return handle


@pytest.mark.parametrize("missing", [0, 3])
def test_a_message_is_handed_over_once_all_its_parts_are_there(handled, missing):
    node = Node(missing)
    assert len(node.parts) > 1  # else there were no parts to come one by one
    assert handled(node) == ""
    assert node.answers == [b"content"] and node.ends == [SubStatus.COMPLETED]
    assert set(node.asked.values()) == {missing + 1}


def test_a_message_that_was_not_sent_to_its_end_gives_way_to_the_next(handled):
    """A SuperNode takes up a message only when the one before was answered or given up."""
    node, tokens = Node(10**9), iter(["", "", "the next one"])
    assert handled(node, lambda: next(tokens)) == "the next one"
    assert node.answers == [] and node.ends == [SubStatus.FAILED]
    threading.Event().wait(0.2)  # whoever was about to ask once more has
    asked = dict(node.asked)
    threading.Event().wait(0.2)
    assert node.asked == asked, "nobody asks for its parts any more"


def test_a_message_of_which_nothing_more_comes_ends_the_courier(handled, monkeypatch):
    monkeypatch.setattr(resident, "STUCK", 0.2)
    node = Node(10**9)
    with pytest.raises(Ended, match=str(resident.LOST)):
        handled(node)
    assert node.answers == []


def test_a_slow_message_is_not_given_up_while_its_parts_come(handled, monkeypatch):
    """Each part comes soon enough after the one before; all together take twice as long as is waited for one."""
    node, clock = Node(0), SimpleNamespace(now=0.0)
    turns = {name: number + 1 for number, name in enumerate(node.parts)}
    monkeypatch.setattr(resident, "STUCK", len(turns) * 0.5)
    pause = threading.Event()
    monkeypatch.setattr(resident, "time", SimpleNamespace(monotonic=lambda: clock.now,
                                                          sleep=lambda seconds: pause.wait(0.001)))

    def pull(request):
        with node.lock:
            clock.now += 0.01
            there = clock.now > turns[request.object_id]
        return PullObjectResponse(object_found=True, object_available=there,
                                  object_content=node.parts[request.object_id] if there else b"")

    node.PullObject = pull
    assert handled(node) == "" and node.answers == [b"content"]
    assert clock.now > 2 * resident.STUCK
