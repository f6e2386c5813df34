#include "fathom/serve/metrics/catalogue.h"

namespace fathom::serve {
namespace {

using enum MetricKind;

// clang-format off
constexpr MetricInfo kCatalogue[] = {
    // As in vLLM.
    {"num_requests_running", kGauge, "", "Requests in the running batch."},
    {"num_requests_waiting", kGauge, "", "Requests that wait to be admitted."},
    {"kv_cache_usage_perc", kGauge, "", "Share of KV cache blocks that requests own, 0 to 1."},
    {"cache_config_info", kGauge, "block_size,num_gpu_blocks,num_cpu_blocks,cache_dtype", "The KV cache as it was set up; always 1."},
    {"prompt_tokens_total", kCounter, "", "Prompt tokens computed; those found in the prefix cache are not, repeated ones after a preemption are."},
    {"generation_tokens_total", kCounter, "", "Tokens generated."},
    {"prefix_cache_queries_total", kCounter, "", "Prompt tokens looked up in the prefix cache."},
    {"prefix_cache_hits_total", kCounter, "", "Prompt tokens found in the prefix cache."},
    {"num_preemptions_total", kCounter, "", "Requests that lost their blocks to others and were computed again."},
    {"request_success_total", kCounter, "finished_reason", "Requests that ended, by reason: stop, length, abort, error."},
    {"request_errors_total", kCounter, "code", "Errors that clients were told, by code."},
    {"spec_decode_num_drafts_total", kCounter, "", "Times that a request had drafts in a step."},
    {"spec_decode_num_draft_tokens_total", kCounter, "", "Tokens computed as drafts."},
    {"spec_decode_num_accepted_tokens_total", kCounter, "", "Drafts that turned out right."},
    {"spec_decode_num_accepted_tokens_per_pos_total", kCounter, "position", "Drafts that turned out right, by their place, from 0."},
    {"time_to_first_token_seconds", kHistogram, "", "From a request's arrival to its first token."},
    {"inter_token_latency_seconds", kHistogram, "", "Between two tokens of a request."},
    {"request_time_per_output_token_seconds", kHistogram, "", "Mean time between tokens of a request, told at its end."},
    {"e2e_request_latency_seconds", kHistogram, "", "From a request's arrival to its end."},
    {"request_queue_time_seconds", kHistogram, "", "From a request's arrival to its first step."},
    {"request_prefill_time_seconds", kHistogram, "", "From a request's first step to its first token."},
    {"request_decode_time_seconds", kHistogram, "", "From a request's first token to its last."},
    {"request_inference_time_seconds", kHistogram, "", "From a request's first step to its last token."},
    {"request_prompt_tokens", kHistogram, "", "Tokens of a request's prompt."},
    {"request_generation_tokens", kHistogram, "", "Tokens of a request's answer."},
    {"request_params_max_tokens", kHistogram, "", "Most tokens a request allowed."},
    {"request_params_n", kHistogram, "", "Choices a request asked for."},
    {"iteration_tokens_total", kHistogram, "", "Tokens of a step, prompts and answers."},
    // Our own.
    {"step_seconds", kHistogram, "phase", "Time of a step; phase prefill: with prompt tokens, decode: without."},
    {"model_flops_total", kCounter, "", "Floating-point operations of the model for the tokens computed, by formula."},
    {"model_bytes_total", kCounter, "", "Bytes of weights and cache that the steps had to read, by formula."},
    {"draft_pauses_total", kCounter, "", "Times that a request paused drafting because it lost time by it."},
    {"draft_batch_limit", kGauge, "", "Beside more requests drafts gain no time, as measured; -1: beside any number, or not known."},
    {"numerical_errors_total", kCounter, "", "Requests that ended because their logits were not finite."},
    {"tool_parse_recoveries_total", kCounter, "kind", "Departures from the form of tool calls that were put right."},
    {"grammar_compilations_total", kCounter, "", "Grammars compiled for constrained decoding."},
    {"grammar_cache_hits_total", kCounter, "", "Grammars found in their cache."},
    {"grammar_refusals_total", kCounter, "", "Grammars and schemas refused."},
    {"grammar_cache_bytes", kGauge, "", "Size of the cache of grammars."},
    {"http_connections", kGauge, "", "Open connections."},
    {"kv_events_published_total", kCounter, "", "Batches of KV events handed to ZeroMQ."},
    {"kv_events_dropped_total", kCounter, "", "Batches of KV events dropped because the publisher lagged behind."},
    {"engine_healthy", kGauge, "", "1 while the engine goes forward, 0 when it is stalled or faulted."},
    {"engine_draining", kGauge, "", "1 while no new request is taken because the server shuts down."},
    {"engine_last_step_age_seconds", kGauge, "", "Time since the last step ended; 0 before the first."},
    {"device_memory_bytes", kGauge, "device,kind", "Memory by what it is for, as planned at the start."},
    {"startup_seconds", kGauge, "phase", "Time of each phase of the start."},
    {"kernel_fallback_info", kGauge, "op,wanted,used,reason", "Ops that run another kernel than the wanted one; always 1."},
    {"build_info", kGauge, "version,commit,arch", "What this program is; always 1."},
};

constexpr std::string_view kErrorCodes[] = {
    "invalid_json", "invalid_value", "unsupported_parameter", "context_length_exceeded",
    "too_large_for_pool", "invalid_schema", "grammar_too_complex", "bad_request",
    "invalid_api_key", "host_not_allowed", "admin_disabled", "model_not_found", "route_not_found",
    "method_not_allowed", "body_too_large", "uri_too_long",
    "headers_too_large", "unsupported_media_type", "queue_full", "rate_limit_exceeded",
    "internal_error", "numerical_error", "constraint_fault", "engine_fault", "loading", "draining",
    "overloaded", "queue_timeout", "engine_stalled", "request_timeout", "aborted", "other",
};
// clang-format on

}  // namespace

std::span<const MetricInfo> metric_catalogue() {
  return kCatalogue;
}

const MetricInfo* find_metric(std::string_view name) {
  for (const MetricInfo& metric : kCatalogue) {
    if (metric.name == name) return &metric;
  }
  return nullptr;
}

std::string_view metric_kind_name(MetricKind kind) {
  switch (kind) {
    case kCounter:
      return "counter";
    case kGauge:
      return "gauge";
    case kHistogram:
      return "histogram";
  }
  return "";
}

std::span<const std::string_view> error_codes() {
  return kErrorCodes;
}

}  // namespace fathom::serve
