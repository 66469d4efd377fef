"""The NVIDIA driver, read through NVML.

``calls`` binds the C functions; ``fields`` and ``queries`` are the tables of what can be asked and how an answer
becomes a reading; ``device``, ``gpm``, ``mig`` and ``events`` use them; ``session`` opens and closes the library.
Nothing here starts a thread: ``collect`` decides who calls when.
"""
