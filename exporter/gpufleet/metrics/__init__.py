"""From snapshots to exposition text: what each metric is called and means, and how a snapshot is written down.

``catalog`` holds every metric name, once; nothing else may invent one. ``sections`` says which series a snapshot has,
``render`` writes them (both pure), ``exposition`` keeps the newest text for scrapes, ``selfmetrics`` adds what the
process says of itself, ``page`` is the landing page, ``document`` writes docs/metrics.md. No driver, no HTTP here.
"""
