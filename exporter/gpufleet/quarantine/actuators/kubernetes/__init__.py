"""Kubernetes: nodes that bear our mark, pods that move, jobs that get a lost retry back.

``api`` says what is asked of an API server and how it refuses, ``client`` asks a real one; only that imports the
official client. The other modules decide by what was read, and write with a condition.
"""
