# One small image for every architecture that Python's own image has; nothing below names one.
# The base is Debian: the container toolkit injects the host's libnvidia-ml.so.1, which needs glibc.
ARG PYTHON_VERSION=3.13

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY exporter exporter
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel . \
 && python -m venv --without-pip /opt/gpufleet \
 && pip --python /opt/gpufleet/bin/python install --no-cache-dir /wheel/*.whl

FROM python:${PYTHON_VERSION}-slim-bookworm
LABEL org.opencontainers.image.title="gpufleet" \
      org.opencontainers.image.description="Prometheus exporter for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gpufleet /opt/gpufleet
# Counters and open incidents outlive the container here. The owner is fixed before VOLUME: a later change would be lost.
RUN install -d -o 65534 -g 65534 -m 0750 /var/lib/gpufleet
VOLUME /var/lib/gpufleet

# The NVIDIA container toolkit reads these: every GPU of the node, and of the driver only what NVML needs.
ENV PATH=/opt/gpufleet/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility

# A number, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 65534:65534
EXPOSE 9837

# With TLS, a password or another port, give the URL that answers (or switch the check off): Kubernetes ignores it anyway.
ENV GPUFLEET_HEALTH_URL=http://127.0.0.1:9837/-/healthy
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['GPUFLEET_HEALTH_URL'], timeout=4)"]

ENTRYPOINT ["gpufleet"]
CMD ["exporter"]
