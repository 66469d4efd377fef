"""The kubelet's PodResources service (v1): which container has which devices of its node.

``wire`` takes the protobuf message apart and ``unary`` speaks one gRPC call as HTTP/2 (h2), both without any I/O;
``client`` has the unix socket, the time limit, and the words for whatever goes wrong. What a device id means is not
known here.
"""
