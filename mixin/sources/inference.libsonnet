// What systems that run models call the same thing. `model` is their label with the model's name ('' if they have
// none). A word is a list of names of which a version has one, with matchers where a name counts several things;
// `_bucket`, `_sum`, `_count` follow from a histogram's. `finished` counts every request that has ended; where a system
// counts those that failed apart from it, `apart` says so.
local openAI = {
  model: 'model_name',
  running: ['num_requests_running'],
  waiting: ['num_requests_waiting'],
  prompt_tokens: ['prompt_tokens_total'],
  generation_tokens: ['generation_tokens_total'],
  ttft: ['time_to_first_token_seconds'],
  e2e: ['e2e_request_latency_seconds'],
};
{
  vllm: openAI {
    prefix: 'vllm:',
    // The engine before V1 counted the GPU's cache apart.
    kv_usage: ['kv_cache_usage_perc', 'gpu_cache_usage_perc'],
    itl: ['inter_token_latency_seconds', 'time_per_output_token_seconds'],
    queue_time: ['request_queue_time_seconds'],
    finished: ['request_success_total'],
    // There is no count of failures: a request ends for a reason.
    failed: [{ name: 'request_success_total', matchers: ['finished_reason="error"'] }],
    aborted: [{ name: 'request_success_total', matchers: ['finished_reason="abort"'] }],
    preemptions: ['num_preemptions_total'],
    prefix_hits: ['prefix_cache_hits_total', 'gpu_prefix_cache_hits_total'],
    prefix_queries: ['prefix_cache_queries_total', 'gpu_prefix_cache_queries_total'],
  },
  sglang: openAI {
    prefix: 'sglang:',
    running: ['num_running_reqs'],
    waiting: ['num_queue_reqs'],
    kv_usage: ['token_usage'],
    itl: ['inter_token_latency_seconds', 'time_per_output_token_seconds'],
    queue_time: ['queue_time_seconds'],
    finished: ['num_requests_total'],
    aborted: ['num_aborted_requests_total'],
    preemptions: ['num_retracted_requests_total'],
    // Each of a model's processes has a series of its own and tells of the whole.
    ranks: true,
  },
  tgi: {
    prefix: 'tgi_',
    model: '',
    running: ['batch_current_size'],
    waiting: ['queue_size'],
    itl: ['request_mean_time_per_token_duration'],
    e2e: ['request_duration'],
    queue_time: ['request_queue_duration'],
    prompt_tokens: ['request_input_length_sum'],
    generation_tokens: ['request_generated_tokens_sum'],
    finished: ['request_count'],
    failed: ['request_failure'],
  },
  triton: {
    prefix: 'nv_',
    model: 'model',
    waiting: ['inference_pending_request_count'],
    finished: ['inference_request_success'],
    failed: ['inference_request_failure'],
    apart: true,
    // Counters of microseconds beside a count: means, no quantiles.
    e2e_total: { sum: 'inference_request_duration_us', count: 'inference_request_success', scale: ' / 1e6' },
    queue_total: { sum: 'inference_queue_duration_us', count: 'inference_request_success', scale: ' / 1e6' },
  },
  trtllm: openAI {
    prefix: 'trtllm_',
    kv_usage: ['kv_cache_utilization'],
    itl: ['time_per_output_token_seconds'],
    queue_time: ['request_queue_time_seconds'],
    finished: ['request_success_total'],
    failed: ['request_error_total'],
    apart: true,
  },
  nim: openAI {
    // Names without a prefix: only in the job that is said to be NIM.
    prefix: '',
    selector: 'nimSelector',
    kv_usage: ['gpu_cache_usage_perc'],
    itl: ['time_per_output_token_seconds'],
    finished: ['request_success_total'],
    failed: ['request_failure_total'],
    apart: true,
  },
}
