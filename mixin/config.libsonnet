// Everything that a site may want to change, each with when to change it. Override with `+ { _config+:: { … } }`.
{
  _config+:: {
    // Sources of GPU metrics, in order of preference: on a GPU that two of them report, the first one counts.
    // Leave out what you don't run: each source costs every rule another query. One of gpufleet, dcgm (names of
    // dcgm-exporter before 4.9) and dcgm49 (names and units since).
    sources: ['gpufleet'],

    // What runs models. Leave out what you don't run. One of vllm, sglang, tgi, triton, trtllm, nim.
    inferenceSystems: ['vllm', 'sglang', 'tgi', 'triton', 'trtllm'],

    // Where RDMA traffic comes from, in order of preference: gpufleet's nic_* families, node_exporter's
    // node_infiniband_*.
    networkSources: ['gpufleet', 'node_exporter'],

    // Put between the braces of every selector of gpufleet's metrics, as in 'job="gpufleet"'. Its names are its own,
    // so set it only where one Prometheus holds GPUs that these rules must not see.
    gpufleetSelector: '',
    // The same for dcgm-exporter, as in 'job="dcgm-exporter"'.
    dcgmSelector: '',
    // The same for node_exporter, as in 'job="node"'.
    nodeExporterSelector: '',
    // The same for kube-state-metrics, as in 'job="kube-state-metrics"'.
    kubeStateMetricsSelector: '',
    // The same for the training processes' metrics, which come with gpufleet's.
    trainingSelector: '',
    // The same for the systems that run models. NIM's names are so general that it needs one of its own.
    inferenceSelector: '',
    // Names such as num_requests_running belong to anyone: say which job is NIM.
    nimSelector: 'job="nim"',

    // The label of a model server's series that holds its pod, by which a run that serves is known: it may be idle.
    // Change it if your relabelling writes another one; '' if there is none.
    inferencePodLabel: 'pod',
    // The same for its namespace.
    inferenceNamespaceLabel: 'namespace',

    // The external label that tells clusters apart. Change it if yours has another name.
    clusterLabel: 'cluster',
    // True shows the variable `cluster` on dashboards. Rules keep clusters apart in any case.
    showMultiCluster: false,

    // dcgm-exporter's labels of the workload: Prometheus renames them to exported_pod and so on where its scrape
    // config has honor_labels: false. Then set this one and the next to the exported_ ones.
    dcgmPodLabel: 'pod',
    // The same for its namespace, which stands for the project.
    dcgmNamespaceLabel: 'namespace',
    // The label with the batch job, from dcgm-exporter's files of the Slurm prolog; '' if there is none.
    dcgmJobLabel: 'hpc_job',
    // The label with the node's name: 'hostname' since 4.8.3, 'Hostname' before. Both are read; change it if your
    // relabelling writes another one.
    dcgmNodeLabels: ['hostname', 'Hostname'],
    // The label of node_exporter's series that holds the node's name; a port behind it is dropped.
    nodeExporterNodeLabel: 'instance',

    // Labels that a run is told apart by, beside the cluster. Leave them, unless your owners' configuration says
    // that two projects may share a run's name on purpose.
    runLabels: ['project', 'run', 'task'],
    // Namespaces whose use of GPUs is nobody's waste (burn-in, tests): a regular expression, matched whole. Their
    // runs get no alert that says they do nothing: idle, stalled, active in part.
    excludedNamespaces: '',
    // Projects whose runs may be idle without an alert, such as notebooks: a regular expression, matched whole.
    interactiveProjects: '.*(notebook|interactive|sandbox).*',

    // Money is shown in this unit: one of Grafana's, as currencyUSD or currencyEUR. It converts nothing.
    currencyUnit: 'currencyUSD',
    // Monthly budget of each cluster in the currency of the price book; 0 says there is none and leaves out its alerts.
    monthlyBudget: 0,

    // At least four scrapes, so that one or two lost ones don't make a hole. Raise it with your scrape interval.
    rateInterval: '5m',
    // How often the rules of runs and nodes are evaluated. Raise it if your Prometheus is short of CPU.
    evaluationInterval: '1m',
    // How often what GPUs do is recorded for their holders: means over rateInterval, a series for each GPU. Below some
    // 4,000 GPUs a Prometheus has time to do it each minute.
    readingsInterval: '2m',
    // The scrape interval of the exporters: the least step of a panel.
    scrapeInterval: '15s',
    // For how long a node that has stopped to answer still counts as capacity, and so as unavailable.
    capacityLookback: '1d',

    // False strips keep_firing_for from alerts: for rulers older than Prometheus 2.42, and some that only look alike.
    keepFiringFor: true,
    // Where each alert's page is; %s is its name. Change it if you keep your own runbooks.
    runbookURLPattern: 'https://github.com/gpufleet/gpufleet/blob/main/docs/runbooks/%s.md',

    // Limits of rules and alerts. Change one when its alert is too early, or too late, for your fleet.
    thresholds: {
      // Part of the median clock by which a node of a run must be slower to be called a straggler: lower it if your
      // GPUs are well matched, raise it if you see nodes named that are not slow.
      stragglerDeficit: 0.07,
      // The same in spreads of the run (median absolute deviations, scaled to standard deviations).
      stragglerSpread: 3,
      // Part of the time that a node must be throttled to be called a straggler.
      stragglerThrottled: 0.2,
      // Peers that a run needs so that its median means something.
      stragglerNodes: 3,
      // A GPU runs kernels but computes next to nothing: so it waits in a collective. The three limits are a
      // hypothesis that no run of ours on real GPUs has tested. At least so busy; lower it if your kernels have gaps.
      waitingBusy: 0.9,
      // At most so active; raise it if waiting GPUs of yours are more active.
      waitingSmActive: 0.3,
      // At most so much use of tensor cores; raise it if they are never quite idle.
      waitingTensorActive: 0.02,
      // Nodes from which on a straggler is worth waking someone: all of them wait.
      stragglerCriticalNodes: 32,
      // Part of the time in which kernels run, above which a GPU counts as busy: it has a reason to be hot, fast and on
      // its best link. Lower it if yours are used in short bursts.
      busy: 0.1,
      // Part of the time in which heat holds a busy GPU back. Raise it for rooms that are hot by intent.
      throttled: 0.2,
      // The same for the power brake, which a power supply pulls.
      powerBrake: 0.05,
      // Nodes with the power brake on at once: then it is the room's power, not a node's.
      powerBrakeNodes: 3,
      // Replays and recoveries of all NVLinks of a GPU in an hour. Raise it if your links recover often without harm.
      nvlinkErrorsPerHour: 100,
      // Times the median of its model in the cluster from which on it is this GPU's trouble. Lower it where many cables
      // of one model are bad.
      nvlinkErrorsOverMedian: 10,
      // Corrected memory errors in a day that say a board ages. Raise it if your boards correct more for years.
      correctedErrorsPerDay: 100,
      // Minutes of a day in which a GPU was held back by heat, to be called recurring.
      recurringMinutes: 60,
      // Hours of a day in which a GPU was slower than its peers by slowerThanPeers, to count as a sign.
      slowerHours: 2,
      // Part of its run's median clock by which a GPU is then slower.
      slowerThanPeers: 0.05,
      // What the signs of a GPU at risk must add up to. 1 calls at a single sign.
      risk: 2,
      // Nodes with a new fault in half an hour that make it the fleet's problem rather than theirs.
      fleetWideNodes: 5,
      // The same as a part of the nodes with that driver: the larger of the two counts.
      fleetWidePart: 0.02,
      // Part of the time in which a run's GPUs run kernels, below which it is called idle.
      idle: 0.02,
      // Seconds without a step after which a run is called stalled, unless its own steps take a tenth of that. Raise it
      // if your evaluations take longer.
      stalledSeconds: 600,
      // Seconds within which a run has made a step, to be taken for one whose processes are all there, though the exporter
      // of one of its nodes is down. Raise it above the time of your longest step.
      missingStepSeconds: 120,
      // Part of the cycles in which a node of a run uses tensor cores, below which it does nothing.
      inactive: 0.05,
      // The same for the others of its run, above which they work.
      active: 0.2,
      // Seconds after which a run that writes no checkpoints, or has no pace of its own yet, is overdue.
      checkpointSeconds: 14400,
      // How many of its own intervals a checkpoint may be late.
      checkpointIntervals: 3,
      // Steps without a number in ten minutes that are still nothing to speak of. Raise it to 5 or so for fp16 with a loss
      // scale that is tried out.
      nonfiniteSteps: 0,
      // Starts of a run's processes in an hour.
      restarts: 3,
      // Times the median loss of an hour that are called divergence. Raise it for losses that jump.
      divergedLoss: 1.5,
      // The same for the gradient norm.
      divergedGradient: 5,
      // Part of a run's own use of tensor cores of the six hours before, below which it has become slower.
      efficiency: 0.75,
      // Seconds from which on a first token is too late: what your users expect, at a bound of your server's histogram.
      ttftSeconds: 2.5,
      // The same for a whole answer.
      e2eSeconds: 30,
      // Part of the answers that may be too late. Lower it for a stricter objective.
      latencyObjective: 0.05,
      // Part of the requests that may fail. Lower it for a stricter objective.
      errorObjective: 0.01,
      // Requests a second below which a rate says nothing.
      requestsPerSecond: 0.05,
      // Part of the KV cache in use, above which it is full.
      kvCache: 0.95,
      // Packets sent again for each gigabyte, below which a network is well. Lower it for networks that lose nothing.
      retransmitsPerGigabyte: 100,
      // Times the median of the nodes from which on it is one node's trouble.
      retransmitsOverMedian: 10,
      // Packets a second that a node sends again, below which no number for each gigabyte matters. Raise it if nodes that
      // hardly send anything are named.
      retransmitsPerSecond: 1,
      // Part of the GPU time that a holder without a name may have. Raise it where people may use GPUs past the scheduler.
      unattributed: 0.05,
      // Seconds for which an exporter has read no GPU, to be called stalled. Raise it to four of your --poll.interval.
      pollStalledSeconds: 60,
      // Part of the exporters that are down, above which it wakes someone.
      exportersDown: 0.1,
      // And at least so many: raise it if your clusters are large and nodes come and go.
      exportersDownLeast: 2,
      // Times the budget that a month would cost at the pace of the last six hours. Raise it if you spend in bursts.
      budgetPace6h: 2,
      // The same at the pace of the last three days: both must be over their limit.
      budgetPace3d: 1.2,
      // Part of a project's cost of a week that is unused, for the alert about it.
      unusedPart: 0.5,
      // Least unused money of a week that is worth an alert, in the currency of the price book.
      unusedLeast: 1000,
    },

    // Alerts that not every shop wants. True switches one on.
    optionalAlerts: {
      // Loss and gradient norm leave their own past: off, because warm-up and new data do that too.
      lossDivergence: false,
      // A run uses its GPUs less than six hours ago: off, because a change of the sequence length does that too.
      efficiencyDrop: false,
      // Half of a project's money of a week went unused: off, because small projects always do that.
      unusedSpend: false,
    },

    // Names, places and defaults of dashboards. Change them to fit in among your own.
    dashboards: {
      // In front of each title. Change it to sort among your own.
      titlePrefix: 'GPU fleet / ',
      // Dashboards with the first tag link to each other.
      tags: ['gpufleet'],
      // In front of links between dashboards, where Grafana is served under a path.
      linkPrefix: '',
      // How often a dashboard asks again. Raise it if many people keep one open.
      refresh: '1m',
      // Times are shown in this zone. Set 'utc' where people of several zones talk about one picture.
      timezone: 'browser',
      // The data source that is chosen at first: 'default' is Grafana's own.
      datasource: 'default',
      // Which data sources can be chosen: a regular expression.
      datasourceFilterRegex: '',
      // Dashboards are linked by these; change one only if it is taken.
      uids: {
        fleet: 'gpufleet-fleet',
        node: 'gpufleet-node',
        gpu: 'gpufleet-gpu',
        run: 'gpufleet-run',
        health: 'gpufleet-health',
        cost: 'gpufleet-cost',
        inference: 'gpufleet-inference',
        interconnect: 'gpufleet-interconnect',
        capacity: 'gpufleet-capacity',
        exporter: 'gpufleet-exporter',
      },
    },
  },
}
