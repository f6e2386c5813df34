#include "fathom/api/options.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "fathom/os/thread_pool.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

// Texts as template arguments: the flag and its choices belong to the functions of a row.
template <size_t N>
struct Text {
  char data[N]{};

  constexpr Text(const char (&text)[N]) { std::copy_n(text, N, data); }  // NOLINT: implicit

  constexpr std::string_view view() const { return {data, N - 1}; }
};

Status value_error(std::string_view flag, std::string_view found, std::string_view expected) {
  return invalid_argument(
      str_cat("--", flag, " is '", found.substr(0, 64), "', expected ", expected));
}

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// "8k" is 8192, "2m" 2 Mi: counts of tokens are often written so.
std::optional<int64_t> parse_count(std::string_view text) {
  int64_t scale = 1;
  if (!text.empty()) {
    const char last = text.back();
    if (last == 'k' || last == 'K') scale = 1024;
    if (last == 'm' || last == 'M') scale = 1024 * 1024;
    if (scale != 1) text.remove_suffix(1);
  }
  const auto value = parse_number<int64_t>(text);
  int64_t product = 0;
  if (!value || __builtin_mul_overflow(*value, scale, &product)) return std::nullopt;
  return product;
}

std::optional<bool> parse_switch(std::string_view text) {
  if (text.empty() || text == "true" || text == "on" || text == "1") return true;
  if (text == "false" || text == "off" || text == "0") return false;
  return std::nullopt;
}

template <Text Flag, auto Member, int64_t Low, int64_t High>
constexpr OptionInfo count_row(std::string_view aliases, std::string_view help) {
  constexpr auto check = [](const EngineOptions& o) -> Status {
    if (o.*Member >= Low && o.*Member <= High) return {};
    return value_error(Flag.view(), str_cat(o.*Member),
                       High == INT64_MAX ? str_cat("at least ", Low) : str_cat(Low, " to ", High));
  };
  return {Flag.view(),
          aliases,
          "N",
          help,
          [](EngineOptions& o, std::string_view text) -> Status {
            const auto value = parse_count(text);
            if (!value) return value_error(Flag.view(), text, "an integer, such as 512 or 8k");
            o.*Member = *value;
            return {};
          },
          [](const EngineOptions& o) { return str_cat(o.*Member); },
          check};
}

template <Text Flag, auto Member>
constexpr OptionInfo seed_row(std::string_view help) {
  return {Flag.view(),
          "",
          "N",
          help,
          [](EngineOptions& o, std::string_view text) -> Status {
            const auto value = parse_number<uint64_t>(text);
            if (!value) return value_error(Flag.view(), text, "an integer from 0 to 2^64 - 1");
            o.*Member = *value;
            return {};
          },
          [](const EngineOptions& o) { return str_cat(o.*Member); },
          [](const EngineOptions&) { return Status{}; }};
}

Status set_seed(EngineOptions& o, std::string_view text) {
  if (text == "random") {
    o.seed.reset();
    return {};
  }
  const auto value = parse_number<uint64_t>(text);
  if (!value) return value_error("seed", text, "random, or an integer from 0 to 2^64 - 1");
  o.seed = *value;
  return {};
}

std::string get_seed(const EngineOptions& o) {
  return o.seed ? str_cat(*o.seed) : std::string("random");
}

// A real number in [Low, High], or in (Low, High] if 0 is no sensible value.
enum class LowEnd { kClosed, kOpen };

template <Text Flag, auto Member, int Low, int High, LowEnd End>
constexpr OptionInfo real_row(std::string_view value_name,
                              std::string_view aliases,
                              std::string_view help) {
  constexpr auto check = [](const EngineOptions& o) -> Status {
    const double v = o.*Member;
    // Written so that NaN fails.
    if ((End == LowEnd::kOpen ? v > Low : v >= Low) && v <= High) return {};
    return value_error(Flag.view(), str_cat(v),
                       str_cat(End == LowEnd::kOpen ? "above " : "", Low,
                               End == LowEnd::kOpen ? " and at most " : " to ", High));
  };
  return {Flag.view(),
          aliases,
          value_name,
          help,
          [](EngineOptions& o, std::string_view text) -> Status {
            const auto value = parse_number<double>(text);
            if (!value) return value_error(Flag.view(), text, "a number");
            o.*Member = *value;
            return {};
          },
          [](const EngineOptions& o) { return str_cat(o.*Member); },
          check};
}

template <Text Flag, auto Member>
constexpr OptionInfo switch_row(std::string_view aliases, std::string_view help) {
  return {Flag.view(),
          aliases,
          "",
          help,
          [](EngineOptions& o, std::string_view text) -> Status {
            const auto value = parse_switch(text);
            if (!value) return value_error(Flag.view(), text, "true or false");
            o.*Member = *value;
            return {};
          },
          [](const EngineOptions& o) { return str_cat(o.*Member); },
          [](const EngineOptions&) { return Status{}; }};
}

template <Text Flag, auto Member>
constexpr OptionInfo text_row(std::string_view value_name,
                              std::string_view aliases,
                              std::string_view help) {
  return {Flag.view(),
          aliases,
          value_name,
          help,
          [](EngineOptions& o, std::string_view text) -> Status {
            o.*Member = text;
            return {};
          },
          [](const EngineOptions& o) { return o.*Member; },
          [](const EngineOptions&) { return Status{}; }};
}

bool is_choice(std::string_view text, std::string_view choices) {
  while (true) {
    const size_t bar = choices.find('|');
    if (text == choices.substr(0, bar)) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

template <Text Flag, auto Member, Text Choices>
constexpr OptionInfo choice_row(std::string_view aliases, std::string_view help) {
  constexpr std::string_view kShown = Choices.view();
  OptionInfo row =
      text_row<Flag, Member>(kShown.substr(kShown.starts_with('|') ? 1 : 0), aliases, help);
  row.check = [](const EngineOptions& o) -> Status {
    if (is_choice(o.*Member, Choices.view())) return {};
    return value_error(Flag.view(), o.*Member, str_cat("one of ", Choices.view()));
  };
  return row;
}

Status set_pins(EngineOptions& o, std::string_view text) {
  if (text.empty()) return {};
  if (const size_t comma = text.find(','); comma != std::string_view::npos) {
    FATHOM_TRY(set_pins(o, text.substr(0, comma)));
    text.remove_prefix(comma + 1);
    return set_pins(o, text);
  }
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    return value_error("pin", text, "OP=VARIANT, such as q_b_proj=portable");
  }
  o.pins.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  return {};
}

std::string get_pins(const EngineOptions& o) {
  std::string out;
  for (const auto& [op, variant] : o.pins) {
    out += str_cat(out.empty() ? "" : ",", op, "=", variant);
  }
  return out;
}

constexpr int64_t kMostTokens = int64_t{1} << 30;
using O = EngineOptions;

constexpr OptionInfo kTable[] = {
    text_row<"model", &O::model>("DIR", "", "checkpoint in the Hugging Face layout"),
    text_row<"as", &O::preset>("NAME", "", "built-in description in place of a model"),
    choice_row<"format", &O::format, "|bf16|fp8_block|nvfp4">("", "weight format of a preset"),
    switch_row<"dummy-weights", &O::dummy_weights>(
        "", "random weights of the right shapes and formats"),
    seed_row<"dummy-seed", &O::dummy_seed>("seed of dummy weights"),
    choice_row<"device", &O::device, "cpu|cuda">("", "where the model runs"),
    switch_row<"cuda-graphs", &O::cuda_graphs>(
        "", "on a GPU, replay captured decode steps instead of launching each kernel"),
    count_row<"threads", &O::threads, 0, ThreadPool::kMaxThreads>(
        "", "CPU threads; 0: one a physical core"),
    switch_row<"pin-threads", &O::pin_threads>("", "keep each thread on its CPU"),
    choice_row<"isa", &O::isa, "auto|portable|avx2|avx512|amx">(
        "", "use instruction sets up to this one"),
    choice_row<"dtype", &O::dtype, "auto|bf16|f32">(
        "", "activations; auto is bf16, f32 is for comparisons"),
    choice_row<"kv-cache-dtype", &O::kv_cache_dtype, "auto|f32|bf16|fp8_e4m3">(
        "ctk", "KV cache; auto is the type of the activations"),
    count_row<"block-size", &O::block_size, 1, 1024>("page-size tokens-per-block",
                                                     "tokens of a KV page and of a prefix hit"),
    count_row<"max-model-len", &O::max_model_len, 0, kMostTokens>(
        "context-length ctx-size c", "tokens of prompt and answer; 0: the model's, lowered to fit"),
    count_row<"max-num-seqs", &O::max_num_seqs, 1, 65'536>("max-running-requests np parallel",
                                                           "sequences that run at once"),
    count_row<"max-num-batched-tokens", &O::max_num_batched_tokens, 1, kMostTokens>(
        "chunked-prefill-size max-num-tokens", "tokens of a step"),
    count_row<"prefill-chunk", &O::prefill_chunk, 0, kMostTokens>(
        "", "prompt tokens of one request in a step; 0: the whole budget"),
    count_row<"max-queue", &O::max_queue, 1, 1 << 20>("", "waiting requests, more are refused"),
    count_row<"max-waiting-tokens", &O::max_waiting_tokens, 1, INT64_MAX>(
        "", "prompt tokens of waiting requests"),
    real_row<"memory-fraction", &O::memory_fraction, 0, 1, LowEnd::kOpen>(
        "F", "gpu-memory-utilization mem-fraction-static", "share of the free memory to use"),
    choice_row<"kv-pool", &O::kv_pool, "request|remaining">(
        "", "pages: for max-num-seqs sequences of max-model-len, or all the memory that is left"),
    real_row<"queue-timeout", &O::queue_timeout_s, 0, 86'400, LowEnd::kClosed>(
        "S", "", "seconds a served request may wait; 0: no limit"),
    real_row<"request-timeout", &O::request_timeout_s, 0, 864'000, LowEnd::kClosed>(
        "S", "timeout to", "seconds a served request may take; 0: no limit"),
    switch_row<"prefix-cache", &O::prefix_cache>("enable-prefix-caching",
                                                 "reuse pages of equal prefixes"),
    switch_row<"batch-invariant", &O::batch_invariant>(
        "deterministic enable-deterministic-inference",
        "one attention form: a token's bits never depend on how it was computed"),
    {"seed", "", "N|random", "base of the random numbers of requests without a seed", set_seed,
     get_seed, [](const EngineOptions&) { return Status{}; }},
    choice_row<"moe", &O::moe, "auto|grouped|sorted|fused">("", "how experts run"),
    choice_row<"attention", &O::attention, "auto|absorbed|fused_rope">(
        "", "auto: by phase; absorbed: one form; fused_rope: fused decode preparation"),
    count_row<"attention-key-chunk", &O::attention_key_chunk, 1, 1 << 20>(
        "", "keys expanded at once in prefill; a multiple of the block size"),
    {"pin", "", "OP=VARIANT", "use this variant for an op or kernel; may be repeated", set_pins,
     get_pins, [](const EngineOptions&) { return Status{}; }},
};

std::string_view without_dashes(std::string_view flag) {
  while (!flag.empty() && flag.front() == '-')
    flag.remove_prefix(1);
  return flag;
}

bool has_alias(std::string_view aliases, std::string_view name) {
  for (size_t at = 0; at < aliases.size();) {
    const size_t end = std::min(aliases.find(' ', at), aliases.size());
    if (aliases.substr(at, end - at) == name) return true;
    at = end + 1;
  }
  return false;
}

Status check_source(const EngineOptions& o) {
  if (o.model.empty() == o.preset.empty()) {
    return invalid_argument("expected either a model directory (--model) or a preset (--as)");
  }
  if (!o.preset.empty() && !o.dummy_weights) {
    return invalid_argument(
        str_cat("--as ", o.preset, " has no weights of its own; add --dummy-weights"));
  }
  if (!o.format.empty() && o.preset.empty()) {
    return invalid_argument("--format is for presets (--as); a checkpoint has its formats");
  }
  return {};
}

}  // namespace

std::span<const OptionInfo> option_table() {
  return kTable;
}

const OptionInfo* find_option(std::string_view flag) {
  const std::string_view name = without_dashes(flag);
  for (const OptionInfo& row : kTable) {
    if (row.flag == name || has_alias(row.aliases, name)) return &row;
  }
  return nullptr;
}

Status set_option(EngineOptions& options, std::string_view flag, std::string_view text) {
  const OptionInfo* row = find_option(flag);
  if (row == nullptr) {
    return invalid_argument(str_cat("unknown option --", without_dashes(flag).substr(0, 64)));
  }
  EngineOptions changed = options;
  FATHOM_TRY(row->set(changed, text));
  FATHOM_TRY(row->check(changed));
  options = std::move(changed);
  return {};
}

Status check_batch_invariant(bool wanted, std::string_view device) {
  if (!wanted || device != "cuda") return {};
  return invalid_argument(
      "--batch-invariant is for --device cpu: on a GPU products of few rows and of many add up in "
      "different orders");
}

Status validate(const EngineOptions& o) {
  for (const OptionInfo& row : kTable)
    FATHOM_TRY(row.check(o));
  FATHOM_TRY(check_source(o));
  if (o.max_num_batched_tokens < o.max_num_seqs) {
    return invalid_argument(str_cat("--max-num-batched-tokens is ", o.max_num_batched_tokens,
                                    ", expected at least --max-num-seqs, ", o.max_num_seqs,
                                    ": each running sequence needs a token of a step"));
  }
  if (o.attention_key_chunk % o.block_size != 0) {
    return invalid_argument(str_cat("--attention-key-chunk is ", o.attention_key_chunk,
                                    ", expected a multiple of --block-size, ", o.block_size));
  }
  FATHOM_TRY(check_batch_invariant(o.batch_invariant, o.device));
  if (o.batch_invariant && o.attention == "fused_rope") {
    return invalid_argument(
        "--batch-invariant fixes the absorbed form; --attention fused_rope "
        "is another one");
  }
  return {};
}

std::string options_help() {
  constexpr size_t kColumn = 44;
  const EngineOptions defaults;
  std::string out;
  for (const OptionInfo& row : kTable) {
    std::string left = str_cat("  --", row.value.empty() ? "[no-]" : "", row.flag);
    if (!row.value.empty()) left += str_cat(" ", row.value);
    left.resize(std::max(left.size() + 2, kColumn), ' ');
    out += left;
    out += row.help;
    if (const std::string value = row.get(defaults); !value.empty()) {
      out += str_cat(" (default ", value, ")");
    }
    if (!row.aliases.empty()) {
      std::string aliases;
      for (char c : row.aliases)
        aliases += c == ' ' ? std::string(", --") : std::string(1, c);
      out += str_cat(" [--", aliases, "]");
    }
    out += '\n';
  }
  return out;
}

std::string options_json(const EngineOptions& options) {
  JsonWriter writer;
  writer.begin_object();
  for (const OptionInfo& row : kTable)
    writer.key(row.flag).string(row.get(options));
  writer.end_object();
  return writer.take();
}

}  // namespace fathom
