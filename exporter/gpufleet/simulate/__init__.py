"""A simulated fleet: a scripted NVML driver in Python, the GPUs behind it, and scenarios that tell them what to do.

What belongs here stands *below* ``gpufleet.sources.nvml``: it answers the same functions with the same return codes in
the same buffers, so that everything above runs as it does on real hardware. Nothing here knows metrics or the web but
``fleet``, which serves many simulated nodes from one process. Whatever it produces says that it is simulated.
"""
