"""The one writer of snapshots: who calls the driver when, for how long it is waited for, and what is published.

What is read is decided by ``sources``; how it is shown, by ``metrics``. This package imports the standard library and
gpufleet only.
"""
