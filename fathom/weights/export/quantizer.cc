#include "fathom/weights/export/quantizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "fathom/base/near_names.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/os/sha256.h"
#include "fathom/text/file_kind.h"
#include "fathom/text/json.h"
#include "fathom/weights/checkpoint/linear_format.h"
#include "fathom/weights/checkpoint/quant_config.h"
#include "fathom/weights/export/checkpoint_writer.h"
#include "fathom/weights/export/quant_declaration.h"
#include "fathom/weights/stored_tensors.h"

namespace fathom {
namespace {

constexpr std::string_view kSideFiles[] = {"generation_config.json", "tokenizer.json",
                                           "tokenizer_config.json", "chat_template.jinja"};
constexpr int64_t kMaxSideFileBytes = 256ll << 20;
constexpr JsonLimits kConfigLimits{.big_integer = JsonLimits::BigInteger::kRound};

// What becomes of one tensor of the output.
struct Job {
  const TensorRef* copy = nullptr;  // set for a tensor that stays as it is
  std::string weight;               // else: the weight it belongs to
  size_t part = 0;                  // and which of its tensors it is
  float input_scale = 0;            // not 0: it is this number
};

std::string module_of(std::string_view weight_name) {
  return std::string(weight_name.substr(0, weight_name.rfind(".weight")));
}

bool matches_module(std::string_view pattern, const std::string& module) {
  return matches_glob(pattern, module) || matches_glob(pattern, module + ".weight");
}

bool matches_any(std::string_view pattern, const std::vector<std::string>& modules) {
  return std::any_of(modules.begin(), modules.end(),
                     [&](const std::string& module) { return matches_module(pattern, module); });
}

// What to write in place of a pattern that matches nothing.
std::string pattern_hint(const std::string& pattern, const std::vector<std::string>& modules) {
  constexpr size_t kMaxTyped = 256;  // nobody mistypes more
  if (modules.empty() || pattern.size() > kMaxTyped) return {};
  for (const std::string& wider : {pattern + ".*", "*" + pattern + "*"}) {
    if (!pattern.empty() && matches_any(wider, modules)) return did_you_mean({quoted(wider)});
  }
  std::unordered_set<std::string> known(modules.begin(), modules.end());
  for (const std::string& module : modules) {
    if (const size_t dot = module.rfind('.'); dot != std::string::npos)
      known.insert(str_cat("*", module.substr(dot)));  // "*.o_proj"
  }
  const auto near = near_names(pattern, {known.begin(), known.end()}, 1);
  if (!near.empty()) return did_you_mean({quoted(near.front())});
  const auto linear = std::find_if(modules.begin(), modules.end(), [](const std::string& module) {
    return in_quant_scope(module + ".weight", QuantScope::kCompressors);
  });
  const std::string& example = linear != modules.end() ? *linear : modules.front();
  return str_cat(", expected a pattern of modules such as ", quoted(example));
}

class Quantizer {
 public:
  Quantizer(const Checkpoint& source, const QuantizeOptions& options)
      : source_(source), options_(options) {}

  Result<QuantizeReport> run(const std::string& target) {
    FATHOM_TRY(read_config());
    FATHOM_TRY(check_ignore());
    FATHOM_TRY(make_plan());
    if (report_.num_weights == 0) return nothing_to_quantise();
    CheckpointWriterOptions writer;
    writer.max_shard_bytes = options_.max_shard_bytes;
    writer.source_directory = source_.directory();
    FATHOM_ASSIGN(writer.source_digest, source_digest());
    writer.options = options_text();
    FATHOM_TRY(collect_side_files(writer));
    FATHOM_ASSIGN(const WriteReport written,
                  write_checkpoint(target, plan_, writer, [&](size_t tensor, TensorSink& sink) {
                    return produce(tensor, sink);
                  }));
    report_.input_bytes = source_.total_bytes();
    report_.output_bytes = written.data_bytes;
    report_.num_shards = written.num_shards;
    report_.reused_shards = written.reused_shards;
    return std::move(report_);
  }

 private:
  Status read_config() {
    FATHOM_ASSIGN(config_text_,
                  read_file(source_.directory() + "/config.json", JsonLimits{}.max_bytes));
    const std::string path = join_path(source_.directory(), "config.json");
    FATHOM_ASSIGN(const Json config, parse_json_file(config_text_, kConfigLimits, path));
    constexpr int64_t kMaxLayers = 1024;
    const Json* layers = config.find("num_hidden_layers");
    if (layers == nullptr || !layers->is_int() || layers->as_int() < 1 ||
        layers->as_int() > kMaxLayers) {
      return corrupt(str_cat(path, ": num_hidden_layers is ",
                             layers == nullptr  ? std::string("missing")
                             : layers->is_int() ? str_cat(layers->as_int())
                                                : std::string(layers->kind_name()),
                             ", expected an integer from 1 to ", kMaxLayers));
    }
    num_layers_ = layers->as_int();
    const Json* type = config.find("model_type");
    is_v4_ = type != nullptr && type->is_string() && type->as_string() == "deepseek_v4";
    return {};
  }

  bool is_draft(std::string_view name) const {
    return layer_number(name, num_layers_) >= num_layers_;
  }

  // A pattern that keeps nothing is a mistake: what was to stay would be quantised.
  Status check_ignore() const {
    if (options_.ignore.empty()) return {};
    std::vector<std::string> modules;
    for (const TensorRef& t : source_.tensors()) {
      if (t.entry.name.ends_with(".weight")) modules.push_back(module_of(t.entry.name));
    }
    for (const std::string& pattern : options_.ignore) {
      if (matches_any(pattern, modules)) continue;
      return invalid_argument(str_cat("--ignore ", quoted(pattern), " matches no weight",
                                      pattern_hint(pattern, modules)));
    }
    return {};
  }

  bool ignored(std::string_view weight) const {
    const std::string module = module_of(weight);
    return std::any_of(options_.ignore.begin(), options_.ignore.end(),
                       [&](const auto& pattern) { return matches_module(pattern, module); });
  }

  bool selected(std::string_view name) const {
    return in_quant_scope(name, options_.scope) && !is_draft(name) && !ignored(name);
  }

  // A copy that calls itself quantised would not be.
  Status nothing_to_quantise() const {
    const auto tensors = source_.tensors();
    const auto in_scope = std::count_if(tensors.begin(), tensors.end(), [&](const TensorRef& t) {
      return in_quant_scope(t.entry.name, options_.scope) && !is_draft(t.entry.name);
    });
    if (in_scope > 0) {
      return unsupported(str_cat("nothing to quantise: --ignore leaves out all ", in_scope,
                                 " weights of --scope"));
    }
    return unsupported(str_cat("nothing to quantise: of the ", tensors.size(), " tensors of ",
                               source_.directory(),
                               " none is a weight of --scope, expected the layers of a DeepSeek "
                               "model; compressors is the widest scope"));
  }

  Status make_plan() {
    std::unordered_set<std::string> replaced;  // scales of weights that are quantised anew
    for (const TensorRef& t : source_.tensors()) {
      if (!selected(t.entry.name)) continue;
      FATHOM_ASSIGN(const StoredLinear stored, describe_linear(source_, t.entry.name));
      for (const TensorRef* scale : {stored.scale, stored.global_scale}) {
        if (scale != nullptr) replaced.insert(scale->entry.name);
      }
    }
    std::vector<ModuleFormat> modules;
    for (const TensorRef& t : source_.tensors()) {
      const std::string& name = t.entry.name;
      if (replaced.contains(name) || (!options_.keep_draft && is_draft(name))) continue;
      if (selected(name)) {
        FATHOM_TRY(plan_quantised(name));
        note_module(name, options_.format, modules);
        continue;
      }
      plan_.push_back(t.entry);
      jobs_.push_back({.copy = &t, .weight = {}, .part = 0});
      ++report_.copied_tensors;
      if (name.ends_with(".weight") && t.entry.shape.size() == 2)
        FATHOM_TRY(note_kept(name, modules));
    }
    declaration_ = declare_quantization(modules, options_.tool_version);
    for (const TensorEntry& t : plan_) {
      total_bytes_ += tensor_bytes(t.dtype, t.shape).value_or(0);
    }
    return {};
  }

  void note_module(const std::string& weight, Format format, std::vector<ModuleFormat>& modules) {
    modules.push_back({module_of(weight), format});
    if (in_quant_scope(weight, QuantScope::kExperts)) expert_format_ = format;
  }

  // A matrix that stays as it is.
  Status note_kept(const std::string& weight, std::vector<ModuleFormat>& modules) {
    FATHOM_ASSIGN(const StoredLinear stored, describe_linear(source_, weight));
    note_module(weight, stored.format, modules);
    return {};
  }

  // What V4's config.json calls the experts' format; empty for formats that it has no word for.
  std::string_view expert_dtype() const {
    if (!is_v4_) return {};
    if (expert_format_ == Format::kMxfp4) return "fp4";
    if (expert_format_ == Format::kFp8Block || expert_format_ == Format::kFp8BlockUe8m0) {
      return "fp8";
    }
    return {};
  }

  // 0: it is not known what the weight's products read, or that is nothing but zeros.
  float input_scale_of(const std::string& weight) const {
    const auto known = options_.input_amax.find(weight);
    if (options_.format != Format::kNvfp4 || known == options_.input_amax.end()) return 0;
    return known->second > 0 ? nvfp4_global_scale(known->second) : 0;
  }

  Status plan_quantised(const std::string& weight) {
    FATHOM_ASSIGN(const StoredLinear stored, describe_linear(source_, weight));
    if (!can_decode_rows(stored.format)) {
      return unsupported(str_cat(source_.locate(*stored.weight), " is stored as ",
                                 format_name(stored.format),
                                 ", which quantize cannot read\nhint: leave it out with --ignore"));
    }
    FATHOM_ASSIGN(const auto tensors,
                  plan_quantised_matrix(weight, stored.n, stored.k, options_.format));
    ++report_.num_weights;
    for (size_t part = 0; part < tensors.size(); ++part) {
      plan_.push_back(
          {.name = tensors[part].name, .dtype = tensors[part].dtype, .shape = tensors[part].shape});
      jobs_.push_back({.copy = nullptr, .weight = weight, .part = part});
    }
    if (const float scale = input_scale_of(weight); scale > 0) {
      plan_.push_back(
          {.name = module_of(weight) + ".input_scale", .dtype = Format::kF32, .shape = {}});
      jobs_.push_back({.copy = nullptr, .weight = weight, .input_scale = scale});
      ++report_.num_input_scales;
    }
    return {};
  }

  Status produce(size_t tensor, TensorSink& sink) {
    const Job& job = jobs_[tensor];
    if (job.copy != nullptr) {
      std::vector<std::byte> piece(
          static_cast<size_t>(std::min<int64_t>(job.copy->entry.bytes(), int64_t{16} << 20)));
      for (int64_t at = 0; at < job.copy->entry.bytes();) {
        const auto count = static_cast<size_t>(
            std::min<int64_t>(static_cast<int64_t>(piece.size()), job.copy->entry.bytes() - at));
        FATHOM_TRY(source_.read_at(*job.copy, at, std::span(piece).first(count)));
        FATHOM_TRY(sink.append(std::span(piece).first(count)));
        at += static_cast<int64_t>(count);
        advance(static_cast<int64_t>(count));
      }
      return {};
    }
    if (job.input_scale > 0) {
      FATHOM_TRY(sink.append(std::as_bytes(std::span(&job.input_scale, 1))));
      advance(sizeof(job.input_scale));
      return {};
    }
    if (cached_weight_ != job.weight) FATHOM_TRY(quantize(job.weight));
    const StoredTensor& t = cached_.tensors[job.part];
    FATHOM_TRY(sink.append(t.bytes));
    advance(static_cast<int64_t>(t.bytes.size()));
    return {};
  }

  void advance(int64_t bytes) {
    done_bytes_ += bytes;
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  }

  Status check_finite(const StoredLinear& stored, std::span<const float> w) const {
    const auto bad = std::find_if(w.begin(), w.end(), [](float x) { return !std::isfinite(x); });
    if (bad == w.end()) return {};
    const int64_t i = bad - w.begin();
    return corrupt(str_cat(source_.describe(*stored.weight), ": element ", i, " at byte ",
                           stored.weight->entry.begin + i * format_info(stored.format).bits / 8,
                           " is ", *bad, ", expected a finite number"));
  }

  Result<std::vector<float>> decode(const std::string& weight, int64_t* n, int64_t* k) {
    FATHOM_ASSIGN(const StoredLinear stored, describe_linear(source_, weight));
    *n = stored.n;
    *k = stored.k;
    std::vector<std::byte> values(static_cast<size_t>(stored.weight->entry.bytes()));
    FATHOM_TRY(source_.read(*stored.weight, values));
    std::vector<std::byte> scales;
    RowMajorMatrix m{.format = stored.format, .n = stored.n, .k = stored.k};
    m.values = values.data();
    if (stored.scale != nullptr) {
      scales.resize(static_cast<size_t>(stored.scale->entry.bytes()));
      FATHOM_TRY(source_.read(*stored.scale, scales));
      FATHOM_TRY(check_block_scales(source_, stored, scales, 0));
      m.scales = scales.data();
    }
    if (stored.global_scale != nullptr) {
      FATHOM_ASSIGN(m.global, read_tensor_scale(source_, *stored.global_scale));
    }
    std::vector<float> w(static_cast<size_t>(stored.n * stored.k));
    for (int64_t row = 0; row < stored.n; ++row) {
      decode_row_major_row(
          m, row,
          std::span(w).subspan(static_cast<size_t>(row * stored.k), static_cast<size_t>(stored.k)));
    }
    FATHOM_TRY(check_finite(stored, w));
    return w;
  }

  Status quantize(const std::string& weight) {
    int64_t n = 0;
    int64_t k = 0;
    FATHOM_ASSIGN(const std::vector<float> w, decode(weight, &n, &k));
    FATHOM_ASSIGN(float amax, matrix_amax(w, weight));
    if (const std::string partner = fused_partner(weight);
        options_.format == Format::kNvfp4 && !partner.empty() && source_.find(partner) != nullptr) {
      int64_t other_n = 0;
      int64_t other_k = 0;
      FATHOM_ASSIGN(const std::vector<float> other, decode(partner, &other_n, &other_k));
      FATHOM_ASSIGN(const float other_amax, matrix_amax(other, partner));
      amax = std::max(amax, other_amax);
    }
    FATHOM_ASSIGN(cached_, quantize_matrix(w, n, k, options_.format, weight, amax));
    cached_weight_ = weight;
    // Where a shard orders its tensors by size the parts of a weight do not follow each other.
    if (!measured_.insert(weight).second) return {};
    report_.weights.push_back({weight, n, k, cached_.error});
    report_.total.add(cached_.error);
    return {};
  }

  // Identifies the input without reading all of it: the config, names and places of tensors, and
  // for the data when each file was last changed.
  Result<std::string> source_digest() const {
    std::string text = config_text_;
    for (int f = 0; f < static_cast<int>(source_.file_names().size()); ++f) {
      FATHOM_ASSIGN(const FileTime changed, source_.last_change(f));
      str_append(text,
                 str_cat("\n", source_.file_names()[static_cast<size_t>(f)], " ",
                         source_.file_bytes(f), " ", changed.seconds, " ", changed.nanoseconds));
    }
    for (const TensorRef& t : source_.tensors()) {
      str_append(text, str_cat("\n", t.entry.name, " ", t.entry.begin, " ", t.entry.end));
    }
    return to_hex(sha256(text));
  }

  std::string options_text() const {
    std::string text = str_cat("format=", format_name(options_.format),
                               " scope=", static_cast<int>(options_.scope),
                               " draft=", options_.keep_draft, " shard=", options_.max_shard_bytes);
    for (const std::string& pattern : options_.ignore)
      str_append(text, " ignore=" + pattern);
    if (options_.input_amax.empty()) return text;
    std::string amax;
    for (const auto& [weight, value] : options_.input_amax)
      str_append(amax, str_cat(weight, " ", value, "\n"));
    return str_cat(text, " inputs=", to_hex(sha256(amax)));
  }

  Status collect_side_files(CheckpointWriterOptions& writer) const {
    FATHOM_ASSIGN(std::string config, rewrite_config(config_text_, declaration_.quantization_config,
                                                     options_.keep_draft, expert_dtype()));
    writer.side_files.emplace_back("config.json", std::move(config));
    if (!declaration_.sidecar.empty()) {
      writer.side_files.emplace_back("hf_quant_config.json", declaration_.sidecar);
    }
    for (std::string_view name : kSideFiles) {
      const std::string path = str_cat(source_.directory(), "/", name);
      Result<std::string> text = read_file(path, kMaxSideFileBytes);
      if (text.ok()) {
        writer.side_files.emplace_back(name, std::move(text).value());
      } else if (text.status().code() != StatusCode::kNotFound) {
        return std::move(text).status();
      }
    }
    return {};
  }

  const Checkpoint& source_;
  const QuantizeOptions& options_;
  std::string config_text_;
  int64_t num_layers_ = 0;
  bool is_v4_ = false;
  TensorPlan plan_;
  std::vector<Job> jobs_;
  QuantDeclaration declaration_;
  Format expert_format_ = Format::kNone;
  QuantizedMatrix cached_;
  std::string cached_weight_;
  std::unordered_set<std::string> measured_;  // weights that stand in the report
  QuantizeReport report_;
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

}  // namespace

Result<QuantizeReport> quantize_checkpoint(const Checkpoint& source,
                                           const std::string& target_directory,
                                           const QuantizeOptions& options) {
  if (!can_write_format(options.format)) {
    return unsupported(str_cat("quantize cannot write ", format_name(options.format), ", expected ",
                               format_names(writable_formats())));
  }
  return Quantizer(source, options).run(target_directory);
}

}  // namespace fathom
