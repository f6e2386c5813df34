#include "fathom/runtime/check_pins.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "fathom/base/near_names.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/runtime/sample/sampler.h"

namespace fathom {
namespace {

/// A part of a step on shapes.
using DryPart = std::function<Status(Recorder* recorder, const Pins* pins)>;

struct Part {
  DryPart run;
  std::vector<OpRecord> calls;  // without pins
};

using Names = std::vector<std::string>;

void add_name(Names& names, std::string_view name) {
  if (std::ranges::find(names, name) == names.end()) names.emplace_back(name);
}

std::string listed(const Names& names) {
  std::string out;
  for (const std::string& name : names)
    str_append(out, str_cat(out.empty() ? "" : ", ", name));
  return out;
}

// Steps between whose sizes layers choose other kernels, within the context of the model.
std::vector<BatchShape> shapes_of(const Model& model) {
  const int64_t context = model.config().max_position_embeddings;
  const int64_t tokens = std::clamp<int64_t>(context / 2, 1, 512);
  const int64_t prefix = std::min(model.options().attention.prefill_chunk, context - tokens);
  std::vector<BatchShape> out;
  for (const int64_t requests : {1, 2, 8, 64}) {
    BatchShape decode;
    decode.decode = {
        .count = requests, .new_tokens = 1, .cached = std::min<int64_t>(255, context - 1)};
    out.push_back(decode);
  }
  for (const int64_t cached : {int64_t{0}, prefix}) {
    BatchShape prefill;
    prefill.prefill = {.count = 1, .new_tokens = tokens, .cached = cached};
    out.push_back(prefill);
  }
  return out;
}

Status dry_sample(const Model& model,
                  const DryRunOptions& options,
                  const SamplingParams& params,
                  Recorder* recorder,
                  const Pins* pins) {
  static const TokenCounts none;
  Arena activations;
  Arena scratch;
  Exec ex;
  ex.backend = Backend::kDry;
  ex.kernels = options.kernels;
  ex.device = options.gpu;
  ex.num_threads = options.num_threads;
  ex.activations = &activations;
  ex.scratch = &scratch;
  ex.recorder = recorder;
  ex.pins = pins;
  const int64_t vocab = model.config().vocab_size;
  Sampler sampler(vocab, 1);
  const SampleRow row{.params = &params, .counts = &none, .banned = {}};
  SampleResult result;
  return sampler.sample(ex, make_view(nullptr, {1, vocab}, Format::kF32, "R,V"), std::span(&row, 1),
                        std::span(&result, 1));
}

// Every kind of pass that the model has, and both ways to choose a token.
Result<std::vector<Part>> parts_of(const Model& model, const Compute& compute) {
  const DryRunOptions options{
      .num_threads = compute.pool->size(), .kernels = &compute.kernels(), .gpu = compute.device()};
  std::vector<Part> parts;
  for (const DryPass pass : {DryPass::kForward, DryPass::kDraft}) {
    if (pass == DryPass::kDraft && !model.has_draft()) continue;
    for (const BatchShape& shape : shapes_of(model)) {
      parts.push_back({[&model, options, shape, pass](Recorder* recorder, const Pins* pins) {
                         DryRunOptions o = options;
                         o.recorder = recorder;
                         o.pins = pins;
                         o.pass = pass;
                         return dry_run(model, shape, o).status();
                       },
                       {}});
    }
  }
  SamplingParams largest;
  largest.temperature = 0.0f;
  for (const SamplingParams& params : {largest, *Sampler::largest_row().params}) {
    parts.push_back({[&model, options, params](Recorder* recorder, const Pins* pins) {
                       return dry_sample(model, options, params, recorder, pins);
                     },
                     {}});
  }
  for (Part& part : parts) {
    Recorder counter(RecordLevel::kShapes, 1);
    FATHOM_TRY(part.run(&counter, nullptr));
    Recorder recorder(RecordLevel::kShapes, std::max<int64_t>(counter.total(), 1));
    FATHOM_TRY(part.run(&recorder, nullptr));
    part.calls = recorder.records();
  }
  return parts;
}

Status unknown_name(std::string_view pin, std::string_view name, const std::vector<Part>& parts) {
  Names known = near_kernel_names(name);
  for (const Part& part : parts)
    for (const OpRecord& call : part.calls)
      add_name(known, call.op.name);
  return invalid_argument(str_cat(pin, "'", name, "' is unknown: no op of this model, no kernel",
                                  did_you_mean(near_names(name, std::move(known)))));
}

Status check_pin(const std::pair<std::string, std::string>& pin,
                 const std::vector<Part>& parts,
                 const KernelSet& available) {
  const auto& [name, variant] = pin;
  const std::string flag = str_cat("--pin ", name, "=", variant, ": ");
  const KernelEntry* const named = find_kernel(name);
  const Pins alone = {pin};
  Names kernels;
  Status refused;
  for (const Part& part : parts) {
    bool meant = false;
    for (const OpRecord& call : part.calls) {
      if (name != call.op.name && (named == nullptr || named->info.name != call.kernel)) continue;
      add_name(kernels, call.kernel);
      meant = true;
    }
    if (!meant) continue;
    Status status = part.run(nullptr, &alone);
    if (status.ok()) return {};
    if (refused.ok()) refused = std::move(status);
  }
  if (kernels.empty() && named != nullptr) kernels.emplace_back(named->info.name);
  if (kernels.empty()) return unknown_name(flag, name, parts);

  Names all;
  std::string have;
  for (const std::string& kernel : kernels) {
    Names own;
    if (const KernelEntry* entry = find_kernel(kernel)) {
      for (const VariantEntry& v : entry->variants(available))
        add_name(own, v.name);
    }
    str_append(have, str_cat(have.empty() ? "" : "; ", kernel, " has ",
                             own.empty() ? "none" : listed(own), " here"));
    for (const std::string& v : own)
      add_name(all, v);
  }
  if (std::ranges::find(all, variant) == all.end()) {
    return invalid_argument(str_cat(flag, "variant '", variant, "' is unknown: ", have,
                                    did_you_mean(near_names(variant, std::move(all)))));
  }
  if (refused.ok()) return {};
  return Status::error(refused.code(), str_cat(flag, refused.message()));
}

}  // namespace

Status check_pins(const Pins& pins, const Model& model, const Compute& compute) {
  if (pins.empty()) return {};
  FATHOM_ASSIGN(const std::vector<Part> parts, parts_of(model, compute));
  for (const auto& pin : pins)
    FATHOM_TRY(check_pin(pin, parts, compute.kernels()));
  return {};
}

}  // namespace fathom
