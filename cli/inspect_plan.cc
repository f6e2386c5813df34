#include "cli/inspect_plan.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "cli/engine/model_setup.h"
#include "cli/io/terminal.h"
#include "fathom/base/checked_math.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/layers/attention/mla.h"
#include "fathom/layers/ffn/moe.h"
#include "fathom/models/dry/dry_records.h"
#include "fathom/os/cpu_info.h"
#include "fathom/os/memory.h"
#include "fathom/runtime/executor/step_memory.h"
#include "fathom/runtime/memory_plan.h"
#include "fathom/trace/scope.h"

namespace fathom::cli {
namespace {

struct DeviceProfile {
  const char* name;
  double memory_gb;    // of one device
  double gb_per_s;     // data sheet
  double bf16_tflops;  // dense
};

// Data sheets of NVIDIA; the CPU's row is filled from the machine and has no roof.
constexpr DeviceProfile kProfiles[] = {{"h200", 141, 4800, 989},
                                       {"h100", 80, 3350, 989},
                                       {"b200", 180, 8000, 2250},
                                       {"gb200", 186, 8000, 2250}};

std::string yes(bool condition) {
  return condition ? "yes" : "";
}

// The axes of a record as text: "x[1,7168] w[24576,1536]".
std::string shape_of(const OpRecord& r) {
  std::string out;
  for (int i = 0; i < r.num_operands; ++i) {
    const OperandRecord& o = r.operands[static_cast<size_t>(i)];
    if (o.format == Format::kNone) continue;
    if (!out.empty()) out += ' ';
    out.append(o.name, o.name_length);
    out += '[';
    for (int d = 0; d < o.rank; ++d) {
      str_append(out, str_cat(d > 0 ? "," : "", o.dims[static_cast<size_t>(d)]));
    }
    out += ']';
  }
  return out;
}

std::string weight_format_of(const OpRecord& r) {
  for (int i = 0; i < r.num_operands; ++i) {
    const OperandRecord& o = r.operands[static_cast<size_t>(i)];
    if (std::string_view(o.name, o.name_length) == "w") return std::string(format_name(o.format));
  }
  return "-";
}

// What calls of an op have in common whatever the batch: all axes of a weight, the last of others.
std::string widths_of(const OpRecord& r) {
  std::string out;
  for (int i = 0; i < r.num_operands; ++i) {
    const OperandRecord& o = r.operands[static_cast<size_t>(i)];
    if (o.format == Format::kNone || o.rank < 2) continue;
    const bool is_weight = std::string_view(o.name, o.name_length) == "w";
    for (int d = is_weight ? 0 : o.rank - 1; d < o.rank; ++d)
      str_append(out, str_cat("/", o.dims[static_cast<size_t>(d)]));
  }
  return out;
}

struct DryOp {
  OpRecord record;
  double seconds_by_batch[2] = {0, 0};  // roof time, all layers together
  int64_t calls_by_batch[2] = {0, 0};
};

Result<std::vector<OpRecord>> records_of(const Model& model,
                                         const BatchShape& shape,
                                         const PlanOptions& options) {
  return dry_records(
      model, shape,
      {.num_threads = options.threads, .kernels = options.kernels, .gpu = options.gpu});
}

double roof_seconds(const OpRecord& r, const PlanDevice& device) {
  if (device.gpu.empty()) return 0;
  const double memory = static_cast<double>(r.cost.bytes()) / (device.gb_per_s * 1e9);
  const double math = r.cost.flops / (device.bf16_tflops * 1e12);
  return std::max(memory, math);
}

BatchShape decode_shape(int64_t batch, int64_t cached) {
  BatchShape shape;
  shape.decode = {.count = batch, .new_tokens = 1, .cached = cached};
  return shape;
}

BatchShape prefill_shape(int64_t tokens) {
  BatchShape shape;
  shape.prefill = {.count = 1, .new_tokens = tokens, .cached = 0};
  return shape;
}

std::string format_us(double seconds) {
  return seconds <= 0 ? "-" : format_fixed(seconds * 1e6, seconds < 1e-5 ? 2 : 1);
}

// The ops of a pass; with `many`, of the same pass at batch 64 too: some have other kernels there.
std::string op_table(const std::vector<OpRecord>& one,
                     const std::vector<OpRecord>& many,
                     const PlanOptions& options) {
  // Ops in the order of their first call, with how often they occur in a step.
  std::vector<DryOp> ops;
  std::map<std::string, size_t> index;
  const auto add = [&](const std::vector<OpRecord>& records, int column) {
    for (const OpRecord& r : records) {
      const std::string key = str_cat(std::string_view(r.op.name), "/", std::string_view(r.kernel),
                                      "/", weight_format_of(r), widths_of(r));
      const auto [at, fresh] = index.try_emplace(key, ops.size());
      if (fresh) ops.push_back({.record = r});
      DryOp& op = ops[at->second];
      op.seconds_by_batch[column] +=
          static_cast<double>(calls_of(r)) * roof_seconds(r, options.device);
      op.calls_by_batch[column] += calls_of(r);
    }
  };
  add(one, 0);
  add(many, 1);
  const bool two = !many.empty();
  const bool roof = two && !options.device.gpu.empty();
  std::vector<std::string> header{"op"};
  if (two) {
    header.insert(header.end(), {"calls, batch 1", "calls, batch 64"});
  } else {
    header.emplace_back("calls");
  }
  header.insert(header.end(),
                {"kernel", "weights", "shape", str_cat("variant on ", options.kernels_of)});
  if (roof) header.insert(header.end(), {"roof us, batch 1", "roof us, batch 64"});
  MarkdownTable table(std::move(header));
  for (const DryOp& op : ops) {
    std::vector<std::string> row{op.record.op.name, str_cat(op.calls_by_batch[0])};
    if (two) row.push_back(str_cat(op.calls_by_batch[1]));
    row.insert(row.end(), {op.record.kernel, weight_format_of(op.record), shape_of(op.record),
                           op.record.variant == nullptr ? "-" : op.record.variant});
    if (roof) {
      row.push_back(format_us(op.seconds_by_batch[0]));
      row.push_back(format_us(op.seconds_by_batch[1]));
    }
    table.add(std::move(row));
  }
  return table.str();
}

}  // namespace

Result<PlanDevice> plan_device(const std::string& name, bool preset) {
  PlanDevice device;
  device.is_default = name.empty();
  device.name = !name.empty() ? name : preset ? "8xh200" : "cpu";
  if (device.name == "cpu") {
    device.memory_bytes = host_memory().total_bytes;
    return device;
  }
  std::string_view rest = device.name;
  if (const size_t x = rest.find('x'); x != std::string_view::npos && x > 0) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + x, device.count);
    if (error == std::errc{} && end == rest.data() + x) rest.remove_prefix(x + 1);
  }
  for (const DeviceProfile& p : kProfiles) {
    if (rest != p.name || device.count < 1 || device.count > 1024) continue;
    device.gpu = p.name;
    device.memory_bytes = static_cast<int64_t>(p.memory_gb * 1e9) * device.count;
    device.gb_per_s = p.gb_per_s;
    device.bf16_tflops = p.bf16_tflops;
    return device;
  }
  return invalid_argument(str_cat("--device is '", name,
                                  "'; known are cpu, h200, h100, b200 and gb200, with a count in "
                                  "front: 8xh200"));
}

std::string device_text(const PlanDevice& device) {
  const std::string_view why = !device.is_default   ? ""
                               : device.gpu.empty() ? " (the default; --device plans for another)"
                                                    : " (the default of --as; --device plans for "
                                                      "another)";
  return str_cat(device.gpu.empty() ? "this machine's CPU" : device.name, why, ", ",
                 format_memory(device.memory_bytes), " of memory");
}

Result<std::string> weights_table(const Model& model) {
  const WeightStore& store = model.weights();
  MarkdownTable table(
      {"role", "format", "draft", "tensors", "parameters", "bytes in memory", "share"});
  int64_t tensors = 0;
  int64_t parameters = 0;
  for (const WeightSummary& s : store.summary()) {
    tensors += s.tensors;
    parameters += s.parameters;
    table.add({std::string(weight_role_name(s.role)), std::string(format_name(s.format)),
               yes(s.draft), str_cat(s.tensors), format_count(s.parameters), format_memory(s.bytes),
               format_fixed(100.0 * static_cast<double>(s.bytes) /
                                static_cast<double>(std::max<int64_t>(store.bytes(), 1)),
                            1) +
                   " %"});
  }
  table.add({"all", "", "", str_cat(tensors), format_count(parameters),
             format_memory(store.bytes()), "100 %"});
  return table.str();
}

namespace {

// 4k, 128k, 1M and what is planned for, as far as the model goes.
std::vector<int64_t> contexts_up_to(int64_t longest) {
  std::vector<int64_t> out;
  for (const int64_t length : {int64_t{1} << 12, int64_t{1} << 17, int64_t{1} << 20})
    if (length < longest) out.push_back(length);
  out.push_back(longest);
  return out;
}

// What the steps of sequences of at most `length` tokens take.
Result<MemoryNeeds> step_needs(const Model& model,
                               const PlanOptions& options,
                               int64_t chunk,
                               int64_t length) {
  return step_memory(
      model, {.max_num_seqs = options.max_num_seqs,
              .max_num_batched_tokens = std::max(std::min(chunk, length), options.max_num_seqs),
              .max_model_len = length,
              .num_ids = model.config().vocab_size,
              .num_threads = options.threads,
              .kernels = options.kernels,
              .gpu = options.gpu});
}

// One sequence by its length: each region, and all of them.
std::string context_table(const Model& model,
                          const std::vector<int64_t>& lengths,
                          const std::vector<MemoryNeeds>& needs) {
  const CacheLayout cache = model.cache_layout();
  std::vector<std::string> header{"one sequence of"};
  for (const int64_t length : lengths)
    header.push_back(str_cat(length, " tokens"));
  MarkdownTable table(std::move(header));
  std::vector<int64_t> sums(lengths.size(), 0);
  const auto add = [&](std::string name, auto&& bytes) {
    std::vector<std::string> row{std::move(name)};
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t value = bytes(i);
      sums[i] += value;
      row.push_back(format_memory(value));
    }
    table.add(std::move(row));
  };
  add("weights", [&](size_t) { return model.weights().bytes(); });
  add("activations", [&](size_t i) { return needs[i].activation_bytes; });
  add("scratch", [&](size_t i) { return needs[i].scratch_bytes; });
  for (const CacheGroup& group : cache.groups) {
    add(str_cat("cache of ", group.name), [&](size_t i) {
      return group.bytes() * (group.grows() ? cache.blocks_for(lengths[i]) : kSlotsOfSequence);
    });
  }
  const std::vector<int64_t> all = sums;
  add("all", [&](size_t i) { return all[i]; });
  return table.str();
}

}  // namespace

Result<MemoryVerdict> memory_plan_text(const Model& model, const PlanOptions& options) {
  const PlanDevice& device = options.device;
  const ModelConfig& config = model.config();
  const int64_t context =
      options.max_model_len > 0 ? options.max_model_len : config.max_position_embeddings;
  FATHOM_TRY(check_max_model_len(context, config));
  const int64_t chunk = std::min<int64_t>(device.gpu.empty() ? 512 : 8192, context);
  const std::vector<int64_t> lengths = contexts_up_to(context);
  std::vector<MemoryNeeds> by_length;
  for (const int64_t length : lengths) {
    FATHOM_ASSIGN(by_length.emplace_back(), step_needs(model, options, chunk, length));
  }
  const MemoryNeeds& needs = by_length.back();
  const int64_t step = needs.activation_bytes + needs.scratch_bytes;
  const CacheLayout cache = model.cache_layout();
  const int64_t per_block = cache.bytes_per_block();
  const int64_t slots = kSlotsOfSequence * cache.bytes_per_slot();
  const int64_t weights = model.weights().bytes();
  const int64_t left = device.memory_bytes - weights - step;

  MarkdownTable table({"region", "bytes", "sized by"});
  table.add({"weights", format_memory(weights), "formats of the tensors"});
  table.add({"step", format_memory(step),
             str_cat("dry runs: ", chunk, " prompt tokens, ", options.max_num_seqs, " sequences")});
  for (const CacheGroup& group : cache.groups) {
    table.add({str_cat("cache of ", group.name, group.grows() ? ", per token" : ", per sequence"),
               format_memory(group.grows() ? group.bytes() / cache.block_tokens
                                           : kSlotsOfSequence * group.bytes()),
               str_cat(cache.describe(group), group.grows() ? "" : "; twice, for snapshots")});
  }
  table.add({str_cat("left for the cache on ", device.name),
             format_memory(std::max<int64_t>(left, 0)),
             str_cat(format_memory(device.memory_bytes), " in all")});
  MemoryVerdict out;
  out.text = str_cat(table.str(), "\n", context_table(model, lengths, by_length), "\n");
  MarkdownTable sequences({"sequences", "of tokens", "cache"});
  for (int64_t length :
       {context, std::max<int64_t>(context / 8, 1), std::max<int64_t>(context / 64, 1)}) {
    const int64_t each = cache.blocks_for(length) * per_block + slots;
    const int64_t count = left > 0 ? left / each : 0;
    sequences.add({str_cat(count), str_cat(length), format_memory(count * each)});
  }
  out.text += sequences.str();
  out.fits = left >= cache.blocks_for(context) * per_block + slots;
  if (out.fits) {
    out.verdict = str_cat("fits on ", device.name);
  } else if (left > 0) {
    out.verdict = str_cat("fits on ", device.name, " with a shorter context: --max-model-len ",
                          left / per_block * cache.block_tokens);
  } else {
    out.verdict = str_cat("does not fit on ", device.name, ": ", format_memory(-left),
                          " are missing; plan for more with --device, such as 8xh200");
  }
  return out;
}

Result<std::string> kernel_plan_text(const Model& model, const PlanOptions& options) {
  const PlanDevice& device = options.device;
  const int64_t context =
      std::min<int64_t>(options.max_model_len > 0 ? options.max_model_len : 4096,
                        model.config().max_position_embeddings);
  FATHOM_ASSIGN(const auto one, records_of(model, decode_shape(1, context - 1), options));
  FATHOM_ASSIGN(const auto many, records_of(model, decode_shape(64, context - 1), options));
  const int64_t chunk = std::min<int64_t>(512, context);
  FATHOM_ASSIGN(const auto prompt, records_of(model, prefill_shape(chunk), options));
  std::string out = str_cat(
      "Decode at a context of ", context,
      " tokens. 0 calls at a batch: another kernel runs the op there. Shapes are of the smaller "
      "batch that has the call.\n\n",
      op_table(one, many, options), "\nPrefill of ", chunk, " tokens.\n\n",
      op_table(prompt, {}, options));
  if (!device.gpu.empty()) {
    str_append(out, str_cat("\nRoof: ", format_fixed(device.gb_per_s, 0), " GB/s and ",
                            format_fixed(device.bf16_tflops, 0), " TFLOP/s in BF16 of one ",
                            device.gpu, " (data sheet), all layers of a step, work not split.\n"));
  }
  return out;
}

}  // namespace fathom::cli
