"""Every option of the exporter, once: the flags, the keys of the configuration file and their defaults."""

from __future__ import annotations

from gpufleet.options import (
    ALERT_LABEL,
    ALERTMANAGER_URL,
    ANY_ADDRESS,
    API_SERVER,
    LIBRARY,
    LISTEN_ADDRESS,
    NODE_LABEL,
    NODE_NAME,
    PATH,
    SWITCH,
    URL_PATH,
    Option,
    choice,
    duration,
)

OPTIONS: tuple[Option, ...] = (
    Option("config.file", PATH, "configuration file (YAML); flags win over it", in_file=False),
    Option("node.name", NODE_NAME, "the node's name in metrics; default: $NODE_NAME, else the host name"),
    Option(
        "node.label",
        NODE_LABEL,
        "label of the node, such as node.kubernetes.io/instance-type=p5.48xlarge, for rules of --prices.file; repeat "
        "it for each; with an API server the node's own are known",
        repeatable=True,
    ),
    Option(
        "web.listen-address",
        LISTEN_ADDRESS,
        "address to serve on; may be repeated",
        default=":9837",
        repeatable=True,
    ),
    Option(
        "faults.listen-address",
        ANY_ADDRESS,
        "address on which pods of this node may ask for faults of their own GPUs, as gpufleet run does, such as :9839; "
        "or unix:/run/gpufleet/faults.sock, for jobs of Slurm and pods on the node's network, too; may be repeated; "
        "default: none",
        repeatable=True,
    ),
    Option("web.telemetry-path", URL_PATH, "path of the metrics", default="/metrics"),
    Option("web.config.file", PATH, "TLS and basic auth, in the format of exporter-toolkit's web configuration"),
    Option(
        "nvml.library",
        LIBRARY,
        "NVML, as a file or as a name to search for",
        default="libnvidia-ml.so.1",
    ),
    Option("poll.interval", duration(0.1, 60), "time between two polls of the driver, 100ms to 1m", default="1s"),
    Option(
        "poll.deadline",
        duration(0.01, 60),
        "a GPU that has not answered by then is shown as hung; default: the smaller of the interval and 1s",
    ),
    Option(
        "metrics.level",
        choice("core", "standard"),
        "core: at most 70 series a GPU; standard: at most 160",
        default="standard",
    ),
    Option(
        "metrics.nvlink",
        choice("totals", "links"),
        "NVLink as totals and the worst link, or each link",
        default="totals",
    ),
    Option(
        "quiesce.max",
        duration(1, 86_400),
        "a quiesced exporter takes the driver up again after this time",
        default="15m",
    ),
    Option("path.procfs", PATH, "where the host's /proc is", default="/proc"),
    Option("path.sysfs", PATH, "where the host's /sys is", default="/sys"),
    Option("state.dir", PATH, "what must outlive a restart is kept here", default="/var/lib/gpufleet"),
    Option(
        "control.socket",
        PATH,
        "socket of `gpufleet quiesce`; default: /run/gpufleet/control.sock, else control.sock in the state directory",
    ),
    Option("kmsg.path", PATH, "the kernel's log; a FIFO or a file with such records works too", default="/dev/kmsg"),
    Option(
        "kmsg.accept-userspace",
        SWITCH,
        "believe records that the kernel did not write itself; for tests: whoever may write to the log makes faults up",
        default="false",
    ),
    Option("owners.interval", duration(1, 300), "time between two looks at who holds each GPU", default="10s"),
    Option(
        "owners.max-age",
        duration(10, 86_400),
        "what a source of owners said last is good for so long; after that its GPUs are held by (unknown)",
        default="5m",
    ),
    Option(
        "owners.processes",
        SWITCH,
        "take whoever has a process on a GPU for its holder where neither the kubelet nor Slurm names one",
        default="true",
    ),
    Option(
        "owners.config.file",
        PATH,
        "further presets of project, run and task, and the pod labels that gpu_owner_info shows (YAML)",
    ),
    Option(
        "podresources.socket",
        PATH,
        "the kubelet's PodResources socket; default: /var/lib/kubelet/pod-resources/kubelet.sock on a node that has it",
    ),
    Option(
        "kubernetes.api-server",
        API_SERVER,
        "API server that tells of this node's pods: in-cluster, a URL such as http://127.0.0.1:8001, or none; default: "
        "in-cluster inside a pod",
    ),
    Option(
        "slurm.dir",
        PATH,
        "files of gpufleet's Slurm prolog; default: /run/gpufleet/slurm on a node that has it",
    ),
    Option("slurm.dcgm-dir", PATH, "job mapping of dcgm-exporter (its --hpc-job-mapping-dir), to be read too"),
    Option("slurm.jobstats-dir", PATH, "files of jobstats, such as /run/gpustat, to be read too"),
    Option("prices.file", PATH, "price book (YAML); gpufleet prices explain says what it comes to"),
    Option(
        "cost.utilization",
        choice("auto", "sm", "gpu", "tensor"),
        "what counts as used: SM activity, GPU utilization or tensor activity; auto: SM activity where it is reported, "
        "else GPU utilization",
        default="auto",
    ),
    Option(
        "alertmanager.url",
        ALERTMANAGER_URL,
        "Alertmanager that is told of an isolating incident at once, beside the rule GpuHardwareIncident; repeat it "
        "for each of an HA pair; default: none",
        repeatable=True,
    ),
    Option(
        "alertmanager.label",
        ALERT_LABEL,
        "label of those alerts, such as cluster=east-1; repeat it for each external label that the Prometheus with the "
        "rule adds and keeps, so that both make one alert; severity and team, where that rule has its own",
        repeatable=True,
    ),
    Option(
        "alertmanager.config.file",
        PATH,
        "how to speak to Alertmanager (YAML): tls_config (ca_file, cert_file, key_file, server_name, "
        "insecure_skip_verify), basic_auth (username, password or password_file), authorization (type, credentials or "
        "credentials_file), as in Prometheus",
    ),
    Option("log.level", choice("debug", "info", "warn", "error"), "least severe log line to write", default="info"),
    Option("log.format", choice("logfmt", "json"), "format of log lines", default="logfmt"),
)
