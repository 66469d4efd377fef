"""The other program: alerts in, one decision each, and what follows for the node and for the runs on it.

``alerts`` reads what Alertmanager sends, ``decide`` judges it (pure) by ``policy``, ``book`` and ``view``, ``worker``
writes the judgement down and only then has an actuator act. It knows nothing of the exporter.
"""
