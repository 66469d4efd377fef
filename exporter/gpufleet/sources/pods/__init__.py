"""This node's pods, as the Kubernetes API server tells of them: a list, and a watch of what changes.

``decoding`` knows the objects and is pure; ``http`` is one request; ``api_server`` knows where and who; ``watch`` keeps
the picture on a thread of its own. It is optional: without it a pod's namespace and name are still known from the
kubelet.
"""
