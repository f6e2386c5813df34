#include "fathom/runtime/executor/gpu_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/runtime/executor/decode_shapes.h"
#include "fathom/runtime/executor/median.h"

namespace fathom {
namespace {

constexpr int64_t kPartAlignment = 16;
constexpr size_t kMostGraphs = 256;

// Room for the arrays of the largest batch, or of a chain, whose passes share a block table.
int64_t metadata_bytes(const StepShape& s, const CacheLayout& layout) {
  const int64_t requests = s.padded_seqs();
  const int64_t passes = s.drafts ? s.most_chained() : 1;
  const int64_t tokens = std::max(s.max_tokens(), passes * requests);
  const auto groups = static_cast<int64_t>(layout.groups.size());
  // Id, position, row of logits, row of states, slots.
  const int64_t per_token = 4 + 4 + 4 + 4 + 8 * groups;
  const int64_t per_request = 4 + 4 + 4;
  const int64_t tables = 2 * (requests + 1) * 4 * layout.blocks_for(s.max_model_len);
  int64_t pooled = 0;
  int64_t masks = 1;  // a tree's, of each kind of rows
  for (const CacheGroup& group : layout.groups) {
    if (group.pool_ring < 0) continue;
    const int64_t rows =
        std::max(tokens / group.tokens_per_row + 2 * requests, passes * requests) + s.tree_tokens();
    pooled += rows * (8 * group.pool_entries + 4 + 8);
    ++masks;
  }
  // Levels of a chain have no more tokens together than the largest step of trees.
  const int64_t trees =
      s.trees ? (4 + 8 * masks) * tokens + (4 * requests + (2 + masks) * kPartAlignment) * passes
              : 0;
  return tokens * per_token + (1 + passes) * (requests + 1) * per_request + tables + pooled +
         trees + passes * (12 + 4 * groups) * kPartAlignment;
}

// Gives a probe what lies on the GPU as host memory.
struct HostTap {
  Stream& stream;
  const Probe& inner;
  std::vector<std::byte> memory;
  Status status;

  Probe probe() {
    return {.tap = [](void* self, std::string_view name, int layer,
                      const View& v) { static_cast<HostTap*>(self)->take(name, layer, v); },
            .self = this};
  }

  void take(std::string_view name, int layer, View v) {
    if (!status.ok()) return;
    if (!v.contiguous()) {
      status = unsupported(str_cat("tap ", name, " has gaps between its rows"));
      return;
    }
    memory.resize(static_cast<size_t>(v.numel() * element_bytes(v.format)));
    status = stream.copy(memory.data(), v.data, static_cast<int64_t>(memory.size()));
    if (status.ok()) status = stream.synchronize();
    v.data = memory.data();
    v.on_device = false;
    if (status.ok()) tap(&inner, name, layer, v);
  }
};

}  // namespace

GpuExecutor::GpuExecutor(const Model& model, const Compute& compute, ExecutorSettings settings)
    : Executor(model, compute, std::move(settings)), logprobs_(settings_.shape.max_logit_rows()) {}

Result<std::unique_ptr<Executor>> GpuExecutor::create(const Model& model,
                                                      const Compute& compute,
                                                      ExecutorSettings settings) {
  std::unique_ptr<GpuExecutor> executor(new GpuExecutor(model, compute, std::move(settings)));
  FATHOM_TRY(executor->allocate());
  FATHOM_TRY(executor->allocate_transfers());
  return std::unique_ptr<Executor>(std::move(executor));
}

Status GpuExecutor::allocate_transfers() {
  exec_.backend = Backend::kCuda;
  exec_.stream = &compute_.gpu->stream();
  exec_.sides = &compute_.gpu->sides();
  exec_.device = &compute_.gpu->info();
  const StepShape& shape = settings_.shape;
  const CacheLayout layout = model_.cache_layout();
  const int64_t bytes = metadata_bytes(shape, layout);
  FATHOM_ASSIGN(pinned_, Buffer::allocate_pinned(bytes, "metadata of a step"));
  FATHOM_ASSIGN(metadata_, Buffer::allocate(DeviceKind::kCuda, bytes, "metadata of a step"));
  const int64_t rows =
      std::max(shape.max_logit_rows(), shape.all_logits ? shape.max_prompt() : int64_t{0});
  logits_at_ = align_up<int64_t>(rows * (8 + 4 * BestTokens::numbers(num_best())), kPartAlignment);
  FATHOM_ASSIGN(results_, Buffer::allocate_pinned(
                              logits_at_ + rows * model_.config().vocab_size * 4, "logits"));
  const int64_t passes = shape.drafts ? shape.most_chained() : 1;
  passes_.resize(static_cast<size_t>(passes));
  padded_samples_.reserve(
      static_cast<size_t>(std::max(passes * shape.padded_seqs(), shape.tree_tokens())));
  samples_.reserve(static_cast<size_t>(shape.max_samples()));
  raw_.reserve(static_cast<size_t>(shape.max_samples()));
  not_best_.reserve(static_cast<size_t>(shape.max_samples()));
  FATHOM_TRY(grow_sample_room({.rows = shape.max_logit_rows(),
                               .listed = 4096,
                               .biased = 1024,
                               .words = shape.max_samples() * mask_words(shape.num_ids)}));
  shape.reserve(batch_, model_.cache_layout());
  graphs_.reserve(kMostGraphs);
  return {};
}

// Puts an array behind those that were placed before. One that has no room is not placed, and
// place_step() says so.
void GpuExecutor::place(View& v) {
  if (!v.present()) return;
  const int64_t bytes = v.numel() * element_bytes(v.format);
  const int64_t at = placed_;
  placed_ += align_up<int64_t>(bytes, kPartAlignment);
  if (at + bytes > pinned_.size()) return;
  if (bytes > 0) std::memcpy(pinned_.data() + at, v.data, static_cast<size_t>(bytes));
  v.data = metadata_.data() + at;
  v.on_device = true;
}

// `shared`: the decode range of a later pass of a chain, whose block table serves this one.
void GpuExecutor::place_pass(const Batch& host, Pass& pass, const TokenRange* shared) {
  Batch& batch = pass.batch;
  batch = host;
  place(batch.token_ids);
  place(batch.state_rows);
  place(batch.attention.positions);
  place(batch.logit_rows);
  pass.slots.assign(host.slots.begin(), host.slots.end());
  for (View& slots : pass.slots)
    place(slots);
  batch.slots = pass.slots;
  pass.pooled.assign(host.pooled.begin(), host.pooled.end());
  for (PooledRows& rows : pass.pooled) {
    place(rows.gather);
    place(rows.positions);
    place(rows.slots);
    place(rows.tree_masks);
  }
  batch.pooled = pass.pooled;
  for (TokenRange* range : {&batch.attention.prefill, &batch.attention.decode}) {
    place(range->query_offsets_view);
    place(range->kv_lens_view);
    if (shared == nullptr) place(range->block_table);
    place(range->request_slots);
    place(range->tree_masks);
    place(range->tree_begins);
  }
  if (shared != nullptr) batch.attention.decode.block_table = shared->block_table;
}

// The arrays of all passes of a step, one behind the other in one copy. Equal shapes give equal
// addresses. The last pass comes first: its table has the blocks of all of them, and the arrays of
// the first, which the host looks at, are those that stay.
Status GpuExecutor::place_step(const Step& step, const DecodePadding& padding) {
  placed_ = 0;
  const TokenRange* shared = nullptr;
  Batch host;
  for (int64_t pass = step.chain - 1; pass >= 0; --pass) {
    FATHOM_ASSIGN(host, batch_.build(step.prefill, requests_of(step, pass), padding));
    if (pass == 0) {
      host.state_rows = state_rows(step, host.num_tokens());
      node_paths_view_ = step.chains_levels() ? node_paths(step, host.num_tokens()) : View{};
      place(node_paths_view_);
    }
    Pass& to = passes_[static_cast<size_t>(pass)];
    place_pass(host, to, shared);
    shared = &to.batch.attention.decode;
  }
  if (host.num_tokens() == 0)
    return invalid_argument("a step has no tokens, expected at least one");
  for (int64_t pass = 1; pass < step.chain; ++pass) {
    TokenRange& range = passes_[static_cast<size_t>(pass)].batch.attention.decode;
    range.query_offsets = host.attention.decode.query_offsets;
    range.kv_lens = host.attention.decode.kv_lens;
  }
  if (placed_ > pinned_.size()) {
    return internal_error(str_cat("a step of ", host.num_tokens(), " tokens needs more than the ",
                                  pinned_.size(), " bytes of metadata that were planned"));
  }
  return exec_.stream->copy(metadata_.data(), pinned_.data(), placed_);
}

// The list goes where the metadata of the step before lay, which nothing reads any more.
Status GpuExecutor::move_rows(RowMoves& moves) {
  View v = moves.all();
  const int64_t bytes = v.numel() * element_bytes(v.format);
  FATHOM_CHECK(bytes <= metadata_.size(), "more moves than a step has tokens");
  FATHOM_TRY(exec_.stream->copy(metadata_.data(), v.data, bytes));
  v.data = metadata_.data();
  v.on_device = true;
  return cache_.move_rows(moves, v, exec_.stream);
}

// Another block takes another place, which captured steps do not know.
Status GpuExecutor::grow_sample_room(const SampleRoom& needed) {
  if (sample_room_.holds(needed)) return {};
  FATHOM_TRY(exec_.stream->synchronize());
  graphs_.clear();
  const auto grown = [](int64_t now, int64_t wanted) { return wanted <= now ? now : 2 * wanted; };
  sample_room_.rows = std::max(sample_room_.rows, needed.rows);
  sample_room_.listed = grown(sample_room_.listed, needed.listed);
  sample_room_.biased = grown(sample_room_.biased, needed.biased);
  sample_room_.words = std::max(sample_room_.words, needed.words);
  FATHOM_ASSIGN(sample_block_, Buffer::allocate_pinned(sample_room_.bytes(), "samples of a step"));
  FATHOM_ASSIGN(sample_metadata_,
                Buffer::allocate(DeviceKind::kCuda, sample_room_.bytes(), "samples of a step"));
  return {};
}

// One row for each of so many rows of each pass of a chain: padding of a pass lies between those
// that were asked for.
std::span<const SampleRow> GpuExecutor::padded_samples(int64_t num_rows) {
  if (step_.chain == 1) return step_.samples;
  static const SamplingParams nothing = greedy_sampling();
  const auto rows = static_cast<size_t>(num_rows);
  const size_t count = step_.samples.size() / static_cast<size_t>(step_.chain);
  padded_samples_.assign(static_cast<size_t>(step_.chain) * rows, {.params = &nothing});
  for (size_t pass = 0; pass < static_cast<size_t>(step_.chain); ++pass) {
    std::ranges::copy(step_.samples.subspan(pass * count, count),
                      padded_samples_.begin() + static_cast<int64_t>(pass * rows));
  }
  return padded_samples_;
}

// What the rows of a step ask for, `num_rows` of each pass, in as few copies as it has lists.
Status GpuExecutor::place_samples(int64_t num_rows) {
  sampling_ = Sampling::kNone;
  wants_best_ = false;
  if (step_.wants != StepWants::kTokens || num_rows == 0) return {};
  const std::span<const SampleRow> rows = padded_samples(num_rows);
  SampleRoom needed = room_of(rows);
  needed.rows = std::max(needed.rows, step_.chain * num_rows);
  FATHOM_TRY(grow_sample_room(needed));
  const SampleBatch packed = pack_samples(sample_block_.data(), sample_room_, rows,
                                          step_.chain * num_rows, settings_.shape.num_ids);
  sampling_ = packed.altered || packed.drawn ? Sampling::kAny : Sampling::kLargest;
  if (packed.masked) sampling_ = Sampling::kMasked;
  wants_best_ = std::ranges::any_of(rows, needs_best_tokens);
  sample_batch_ = packed.in_copy(sample_block_.data(), sample_metadata_.data(), true);
  // A captured step serves rows of either kind.
  sample_batch_.altered = sample_batch_.drawn = sampling_ != Sampling::kLargest;
  if (sampling_ == Sampling::kLargest) return {};
  for (const SampleBatch::Range& range : packed.used(sample_block_.data())) {
    if (range.bytes == 0) continue;
    FATHOM_TRY(exec_.stream->copy(sample_metadata_.data() + range.offset,
                                  sample_block_.data() + range.offset, range.bytes));
  }
  return {};
}

// All passes and, if tokens are wanted, the choice of one for each row, all of it in the stream.
Status GpuExecutor::run_passes(const Step& step, ForwardOut& out) {
  activations_.reset();
  choices_ = best_ = {};
  const int64_t rows = passes_[0].batch.num_logits();
  if (rows > 0 && sampling_ != Sampling::kNone) {
    // One tensor, so that one copy brings all of it back.
    const int64_t choices = 2 * step.chain;
    const int64_t best = wants_best_ ? step.chain * BestTokens::numbers(num_best()) : 0;
    FATHOM_ASSIGN(const View all,
                  exec_.activations->tensor({choices + best, rows}, Format::kI32, "2*n,R"));
    choices_ = slice_rows(all, 0, choices);
    if (wants_best_) best_ = slice_rows(all, choices, best);
    if (step.chains_levels()) FATHOM_TRY(place_levels(step, rows));
  }
  for (int64_t pass = 0; pass + 1 < step.chain; ++pass) {
    ArenaScope until_the_next(activations_);
    FATHOM_TRY(run_pass(step, pass, out));
  }
  return run_pass(step, step.chain - 1, out);
}

// The ids that a pass chose, or which of its rows are bad.
View GpuExecutor::choices_of(int64_t pass, int64_t what) const {
  return reshape(slice_rows(choices_, 2 * pass + what, 1), {choices_.dim(1)}, "T");
}

// In a chain each token of a pass has the one row of logits of its sequence, copies among them, so
// rows of choices are tokens of the next pass.
Status GpuExecutor::run_pass(const Step& step, int64_t pass, ForwardOut& out) {
  Batch& batch = passes_[static_cast<size_t>(pass)].batch;
  if (pass > 0 && step.chains_levels()) {
    level_of(pass).enter(batch);
  } else if (pass > 0) {
    batch.token_ids = choices_of(pass - 1, 0);
  }
  FATHOM_TRY(forward(step, pass, batch, out));
  if (!choices_.present()) return {};
  FATHOM_TRY(find_best(pass, out));
  FATHOM_TRY(fetch_raw_rows(out));
  const int64_t rows = choices_.dim(1);
  FATHOM_TRY(sample(exec_, out.logits, sample_batch_.rows(pass * rows, rows), choices_of(pass, 0),
                    choices_of(pass, 1)));
  return step.chains_levels() && pass + 1 < step.chain ? choose_behind(pass) : Status{};
}

// Raw logits of rows that need them, before penalties change them.
Status GpuExecutor::fetch_raw_rows(const ForwardOut& out) {
  if (std::ranges::none_of(step_.samples, needs_raw_logits)) return {};
  const int64_t width = out.logits.dim(1);
  auto* host = reinterpret_cast<float*>(results_.data() + logits_at_);
  for (size_t i = 0; i < step_.samples.size(); ++i) {
    raw_.push_back(nullptr);
    if (!needs_raw_logits(step_.samples[i])) continue;
    float* row = host + static_cast<int64_t>(i) * width;
    FATHOM_TRY(exec_.stream->copy(row, out.logits.row<float>(static_cast<int64_t>(i)), width * 4));
    raw_.back() = row;
  }
  return {};
}

GpuExecutor::DecodeGraph* GpuExecutor::graph_of(const GraphKey& key) {
  for (const auto& entry : graphs_) {
    if (entry->key == key) return entry.get();
  }
  if (graphs_.size() == kMostGraphs) return nullptr;
  graphs_.push_back(std::make_unique<DecodeGraph>());
  graphs_.back()->key = key;
  return graphs_.back().get();
}

// What a captured step reads that is not metadata lies in the same place each time: so a draft pass
// reads kept states.
bool GpuExecutor::may_be_captured(const Step& step, const DecodePadding& padding) const {
  const bool fetches =
      step.wants == StepWants::kTokens && std::ranges::any_of(step.samples, needs_raw_logits);
  return captures_steps() && step.prefill.empty() && padding.requests > 0 &&
         (step.pass == Step::Pass::kForward || !step.draft_rows.empty()) && step.probe == nullptr &&
         !fetches && exec_.recorder == nullptr;
}

Status GpuExecutor::submit(const Step& step) {
  step_ = step;
  to_capture_ = nullptr;
  raw_.clear();
  const DecodePadding padding = decode_padding(requests_of(step, step.chain - 1), batch_.layout(),
                                               settings_.shape.max_model_len);
  FATHOM_TRY(cache_.copy_slots(step.slot_copies, exec_.stream));
  FATHOM_TRY(place_step(step, padding));
  const Batch& first = passes_[0].batch;
  FATHOM_TRY(place_samples(first.num_logits()));
  DecodeGraph* entry = may_be_captured(step, padding)
                           ? graph_of({.pass = step.pass,
                                       .chain = step.chain,
                                       .requests = padding.requests,
                                       .queries = step.tokens_each(),
                                       .pages = first.attention.decode.block_table.dim(1),
                                       .logits = first.num_logits(),
                                       .sampling = sampling_,
                                       .best = wants_best_,
                                       .trees = first.attention.decode.tree_masks.present()})
                           : nullptr;
  if (entry != nullptr && entry->graph != nullptr) {
    FATHOM_TRY(entry->graph->replay(*exec_.stream));
    out_ = entry->out;
    choices_ = entry->choices;
    best_ = entry->best;
    return {};
  }
  to_capture_ = entry;
  return launch_pass(step);
}

Status GpuExecutor::launch_pass(const Step& step) {
  if (step.probe == nullptr) return run_passes(step, out_);
  HostTap taps{.stream = *exec_.stream, .inner = *step.probe, .memory = {}, .status = {}};
  const Probe on_host = taps.probe();
  Step tapped = step;
  tapped.probe = &on_host;
  Status passed = run_passes(tapped, out_);
  for (Pass& pass : passes_)
    pass.batch.probe = nullptr;
  FATHOM_TRY(std::move(taps.status));
  return passed;
}

// Everything that belongs to a step has run, so capturing costs no step anything but time.
Status GpuExecutor::wait() {
  FATHOM_TRY(exec_.stream->synchronize());
  if (to_capture_ == nullptr) return {};
  DecodeGraph& entry = *std::exchange(to_capture_, nullptr);
  return capture(entry);
}

Status GpuExecutor::capture(DecodeGraph& entry) {
  ForwardOut out;
  FATHOM_ASSIGN(Graph graph, Graph::capture(*exec_.stream, [&] { return run_passes(step_, out); }));
  entry.graph = std::make_unique<Graph>(std::move(graph));
  entry.out = out;
  entry.choices = choices_;
  entry.best = best_;
  return {};
}

Status GpuExecutor::fetch_tokens() {
  const int64_t rows = choices_.dim(1);
  const int64_t bytes = (choices_.numel() + (best_.present() ? best_.numel() : 0)) * 4;
  FATHOM_CHECK(bytes <= logits_at_, "more rows than there is room for");
  FATHOM_TRY(exec_.stream->copy(results_.data(), choices_.data, bytes));
  FATHOM_TRY(wait());
  const auto* numbers = reinterpret_cast<const int32_t*>(results_.data());
  samples_.assign(step_.samples.size(), {});
  const size_t count = samples_.size() / static_cast<size_t>(step_.chain);
  for (int64_t pass = 0; pass < step_.chain; ++pass) {
    const std::span ids(numbers + 2 * pass * rows, static_cast<size_t>(rows));
    const std::span bad(ids.data() + rows, static_cast<size_t>(rows));
    take_results(ids, bad, std::span(samples_).subspan(static_cast<size_t>(pass) * count, count));
  }
  if (!raw_.empty()) {
    logprobs_.add(*compute_.pool, raw_, settings_.shape.num_ids, step_.samples, samples_);
  }
  return best_.present() ? add_best(numbers + choices_.numel(), rows) : Status{};
}

Result<View> GpuExecutor::fetch_logits() {
  View host = out_.logits;
  const int64_t bytes = host.numel() * 4;
  FATHOM_CHECK(host.contiguous() && logits_at_ + bytes <= results_.size(),
               "more logits than there is room for");
  host.data = results_.data() + logits_at_;
  host.on_device = false;
  FATHOM_TRY(exec_.stream->copy(host.data, out_.logits.data, bytes));
  FATHOM_TRY(wait());
  // Rows that nobody asked for come last.
  int64_t rows = 0;
  for (const auto* range : {&step_.prefill, &step_.decode}) {
    for (const SequenceStep& sequence : *range)
      rows += sequence.num_logits();
  }
  return slice_rows(host, 0, rows);
}

Result<StepResults> GpuExecutor::collect() {
  StepResults results;
  results.hidden = out_.hidden;
  if (step_.wants == StepWants::kTokens && !step_.samples.empty()) {
    FATHOM_TRY(fetch_tokens());
    results.samples = samples_;
  } else if (step_.wants == StepWants::kLogits && out_.logits.dim(0) > 0) {
    FATHOM_ASSIGN(results.logits, fetch_logits());
  } else {
    FATHOM_TRY(wait());
  }
  return results;
}

Result<double> GpuExecutor::time_graph(Graph& graph) {
  FATHOM_ASSIGN(Event begin, Event::create());
  FATHOM_ASSIGN(Event end, Event::create());
  FATHOM_TRY(begin.record(*exec_.stream));
  FATHOM_TRY(graph.replay(*exec_.stream));
  FATHOM_TRY(end.record(*exec_.stream));
  FATHOM_TRY(end.synchronize());
  return end.us_since(begin);
}

// Work that was done before, with marks if they are given.
Result<Graph> GpuExecutor::capture_work(const Work& work,
                                        SideStreams* sides,
                                        Recorder* recorder,
                                        StreamMarks* marks) {
  SideStreams* const usual = std::exchange(exec_.sides, sides);
  exec_.recorder = recorder;
  exec_.marks = marks;
  Result<Graph> graph = Graph::capture(*exec_.stream, work);
  exec_.recorder = nullptr;
  exec_.marks = nullptr;
  exec_.sides = usual;
  return graph;
}

Result<TimedStep> GpuExecutor::time_work(const Work& work, Recorder& recorder, int repetitions) {
  FATHOM_ASSIGN(StreamMarks marks, StreamMarks::create(recorder.capacity() + 1));
  FATHOM_ASSIGN(Graph plain, capture_work(work, exec_.sides, nullptr, nullptr));
  FATHOM_ASSIGN(Graph one_stream, capture_work(work, nullptr, nullptr, nullptr));
  FATHOM_ASSIGN(Graph marked, capture_work(work, nullptr, &recorder, &marks));
  if (!marks.status().ok()) return std::move(marks).status();

  const std::vector<OpRecord> records = recorder.records();
  std::vector<std::vector<double>> samples(records.size());
  std::vector<double> steps;
  std::vector<double> one_stream_steps;
  for (int r = 0; r < repetitions + 2; ++r) {
    FATHOM_ASSIGN(const double step, time_graph(plain));
    FATHOM_ASSIGN(const double in_one_stream, time_graph(one_stream));
    FATHOM_TRY(time_graph(marked).status());
    if (r < 2) continue;  // warms up
    steps.push_back(step);
    one_stream_steps.push_back(in_one_stream);
    for (size_t i = 0; i < records.size(); ++i) {
      FATHOM_ASSIGN(const double us, marks.us_between(records[i].start_ns, records[i].end_ns));
      samples[i].push_back(us);
    }
  }
  TimedStep timed;
  timed.step_us = median_of(std::move(steps));
  timed.one_stream_us = median_of(std::move(one_stream_steps));
  for (auto& of_op : samples)
    timed.op_us.push_back(median_of(std::move(of_op)));
  return timed;
}

Result<TimedStep> GpuExecutor::time(const Step& step, Recorder& recorder, int repetitions) {
  Recorder* const usual = std::exchange(exec_.recorder, nullptr);
  const CudaGraphs graphs = std::exchange(settings_.graphs, CudaGraphs::kOff);
  Status warm = submit(step);
  settings_.graphs = graphs;
  if (warm.ok()) warm = wait();
  Result<TimedStep> timed =
      warm.ok() ? time_work([&] { return run_passes(step, out_); }, recorder, repetitions)
                : Result<TimedStep>(std::move(warm));
  exec_.recorder = usual;
  return timed;
}

}  // namespace fathom
