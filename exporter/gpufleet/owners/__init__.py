"""Who holds each GPU and slice, worked out from what witnesses said. Pure: no clock, no files, no network.

``device_ids`` finds the device that an id means, ``identity`` names a pod, a job or a process, ``resolve`` weighs the
witnesses. Only ``config`` reads a file, once at the start.
"""
