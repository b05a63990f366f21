"""Says to a SuperLink that a node has gone, in the name of its key: a node that was killed could not.

For a minute after the last sign of life Flower takes such a node for present and refuses its key a second time. Run as
a program, so that the process of the caller need not import Flower: leave.py ADDRESS ROOT PRIVATE-KEY NODE
"""

from __future__ import annotations

import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor


def leave(address: str, root: str, private_key: Path, node: int) -> None:
    key = load_ssh_private_key(private_key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signing = NodeAuthHttpInterceptor(key, key.public_key())
    with FleetHttpClient.from_server_address(
        address, False, root, interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperNode"), signing]
    ) as superlink:
        superlink.DeactivateNode(DeactivateNodeRequest(node_id=node))


if __name__ == "__main__":
    leave(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
