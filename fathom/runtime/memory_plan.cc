#include "fathom/runtime/memory_plan.h"

#include <algorithm>

#include "fathom/base/checked_math.h"
#include "fathom/base/log.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

// Beyond this a cache serves nobody, and its bookkeeping grows (about 4 bytes a token).
constexpr int64_t kMostKvTokens = 16ll << 20;

// Blocks that fit into `bytes`; the padding of each layer to 64 bytes is left out of them.
int64_t blocks_within(int64_t bytes, const CacheLayout& cache) {
  const int64_t block = cache.bytes_per_block();
  if (block == 0) return kMostKvTokens / cache.block_tokens;
  int64_t padding = 0;
  for (const CacheGroup& group : cache.groups)
    padding += 64 * static_cast<int64_t>(group.layers.size());
  return std::max<int64_t>((bytes - padding) / block, 0);
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string line(std::string_view what, int64_t bytes, std::string_view note) {
  return str_cat("  ", padded(std::string(what), 14), padded(format_memory(bytes), 13), note, "\n");
}

Status does_not_fit(const MemoryPlan& plan, std::string_view flag) {
  const int64_t cache = plan.cache.blocks_for(plan.max_model_len) * plan.cache.bytes_per_block() +
                        plan.num_slots * plan.cache.bytes_per_slot();
  return out_of_memory(
      str_cat("the model does not fit: weights ", format_memory(plan.weight_bytes), ", step ",
              format_memory(plan.fixed_bytes() - plan.weight_bytes), " and a KV cache for ",
              plan.max_model_len, " tokens ", format_memory(cache), " make ",
              format_memory(plan.fixed_bytes() + cache), ", but ", format_memory(plan.budget_bytes),
              " may be used of ", format_memory(plan.available_bytes), " available\nhint: ", flag));
}

// The flag that helps, by what is too large.
std::string_view advice(const MemoryPlan& plan, const MemoryRequest& request) {
  if (plan.weight_bytes > plan.available_bytes) {
    return plan.shape.gpu != nullptr
               ? "the weights alone are too large for this GPU: use a smaller model or format"
               : "the weights alone are too large for this machine: use a smaller model or format";
  }
  if (plan.fixed_bytes() > plan.budget_bytes) {
    return request.max_num_seqs > 1
               ? "lower --max-num-batched-tokens or --max-num-seqs, or raise --memory-fraction"
               : "lower --max-num-batched-tokens, or raise --memory-fraction";
  }
  return "lower --max-model-len, use --kv-cache-dtype fp8_e4m3, or raise --memory-fraction";
}

// Sets slots and blocks, and the length if it may be lowered.
Status size_cache(MemoryPlan& plan, const MemoryRequest& request) {
  const CacheLayout& cache = plan.cache;
  if (cache.has_slots()) plan.num_slots = kSlotsOfSequence * request.max_num_seqs;
  const bool known = request.available_bytes > 0;
  const int64_t fixed = plan.fixed_bytes() + plan.num_slots * cache.bytes_per_slot();
  const int64_t left = known ? blocks_within(plan.budget_bytes - fixed, cache) : INT64_MAX;
  if (known && fixed > plan.budget_bytes) return does_not_fit(plan, advice(plan, request));
  if (cache.blocks_for(plan.max_model_len) > left) {
    if (request.max_model_len > 0 || left < 1) return does_not_fit(plan, advice(plan, request));
    plan.max_model_len = left * cache.block_tokens;
    plan.lowered = true;
  }
  const int64_t each = cache.blocks_for(plan.max_model_len);
  const auto wanted = checked_mul(each, request.max_num_seqs);
  const int64_t most = std::max(kMostKvTokens / cache.block_tokens, each);
  const bool all = request.sizing == KvSizing::kRemaining && known;
  plan.num_blocks = std::min({all ? INT64_MAX : wanted.value_or(INT64_MAX), left, most});
  FATHOM_ASSIGN(plan.cache_bytes, cache_bytes(cache, plan.num_blocks, plan.num_slots));
  return {};
}

}  // namespace

Result<MemoryPlan> plan_memory(const Model& model, const MemoryRequest& request) {
  const int64_t context = model.options().max_positions > 0
                              ? model.options().max_positions
                              : model.config().max_position_embeddings;
  if (request.max_model_len < 0 || request.max_model_len > context) {
    return invalid_argument(str_cat("--max-model-len is ", request.max_model_len,
                                    ", expected 1 to ", context, " (the model's context)"));
  }
  MemoryPlan plan;
  plan.weight_bytes = model.weights().bytes();
  plan.cache = model.cache_layout();
  plan.max_model_len = request.max_model_len > 0 ? request.max_model_len : context;
  plan.available_bytes = request.available_bytes;
  plan.budget_bytes =
      static_cast<int64_t>(static_cast<double>(request.available_bytes) * request.memory_fraction);
  plan.shape = {.max_num_seqs = request.max_num_seqs,
                .max_num_batched_tokens = request.max_num_batched_tokens,
                .max_model_len = plan.max_model_len,
                .max_queries = request.max_queries,
                .num_ids = request.num_ids,
                .drafts = request.drafts,
                .trees = request.trees,
                .num_threads = request.num_threads,
                .kernels = request.kernels,
                .gpu = request.gpu};
  FATHOM_ASSIGN(plan.step, step_memory(model, plan.shape));
  FATHOM_TRY(size_cache(plan, request));
  if (plan.lowered) {
    plan.shape.max_model_len = plan.max_model_len;
    log_info("context lowered from ", context, " to ", plan.max_model_len,
             " tokens: ", format_memory(plan.budget_bytes), " may be used, weights and step take ",
             format_memory(plan.fixed_bytes()), "; --max-model-len sets another length");
  }
  return plan;
}

std::string MemoryPlan::text() const {
  std::string out = "memory plan\n";
  out += line("weights", weight_bytes, "formats of the tensors");
  out += line("activations", step.activation_bytes,
              str_cat("largest step: ", shape.max_num_batched_tokens, " tokens, ",
                      shape.max_num_seqs, " sequences"));
  out += line("scratch", step.scratch_bytes,
              str_cat("largest kernel workspace, ", shape.num_threads, " threads"));
  if (step.hidden_bytes > 0) {
    out += line("hidden states", step.hidden_bytes, "what the draft head reads");
  }
  out += line("KV cache", cache_bytes,
              str_cat(num_blocks, " pages, ", cached_tokens(), " tokens",
                      num_slots > 0 ? str_cat(", ", num_slots, " slots") : std::string()));
  out +=
      line("all", total_bytes(),
           available_bytes == 0 ? std::string("available memory is not known")
                                : str_cat("of ", format_memory(budget_bytes), " that may be used, ",
                                          format_memory(available_bytes), " available"));
  for (const CacheGroup& group : cache.groups)
    out += str_cat("  ", cache.describe(group), "\n");
  for (const int64_t length : {max_model_len, max_model_len / 8, max_model_len / 64}) {
    if (length < 1) continue;
    out +=
        str_cat("  ", num_blocks / cache.blocks_for(length), " sequences of ", length, " tokens\n");
  }
  if (lowered) out += "  the context was lowered to fit; --max-model-len sets another length\n";
  return out;
}

}  // namespace fathom
