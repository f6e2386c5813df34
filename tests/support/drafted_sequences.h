// Sequences behind which the draft layer of a model guesses, without an engine.
#pragma once

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "fathom/runtime/draft/tree/draft_tree.h"
#include "fathom/runtime/executor/executor.h"

namespace fathom {

/// Three sequences with prompts and the rows of the draft layer behind them, ready for guesses.
class DraftedSequences {
 public:
  static constexpr int64_t kPage = 16;  ///< the page size of the model
  static constexpr int64_t kPagesEach = 4;

  DraftedSequences(const Model& model,
                   const Compute& compute,
                   CudaGraphs graphs = CudaGraphs::kOn,
                   bool trees = false)
      : compute_(compute) {
    const StepShape shape{.max_num_seqs = 3,
                          .max_num_batched_tokens = 64,
                          .max_model_len = kPage * kPagesEach,
                          .max_queries = 6,
                          .num_ids = model.config().vocab_size,
                          .drafts = true,
                          .trees = trees,
                          .num_threads = compute.pool->size(),
                          .kernels = &compute.kernels(),
                          .gpu = compute.device()};
    executor_ = Executor::create(model, compute,
                                 {.shape = shape,
                                  .num_blocks = 3 * kPagesEach,
                                  .num_slots = 3,
                                  .memory = step_memory(model, shape).value(),
                                  .graphs = graphs})
                    .value();
    pages_.resize(3 * kPagesEach);
    std::iota(pages_.begin(), pages_.end(), 0);
    for (int64_t s = 0; s < 3; ++s) {
      std::vector<int32_t>& prompt = prompts_[static_cast<size_t>(s)];
      for (int64_t i = 0; i < 13 + s; ++i)  // one of them ends in another page than it began
        prompt.push_back(static_cast<int32_t>((17 * i + 5 * s) % 90 + 3));
    }
    const StepResults forward = run({.prefill = all_of(prompts_), .wants = StepWants::kNothing});
    for (auto& prompt : prompts_) {
      prompt.erase(prompt.begin());
      prompt.push_back(7);
    }
    std::vector<int32_t> rows(13 + 14 + 15);
    std::iota(rows.begin(), rows.end(), 0);
    hidden_ = run({.prefill = all_of(prompts_),
                   .wants = StepWants::kNothing,
                   .pass = Step::Pass::kDraft,
                   .draft_input = forward.hidden,
                   .draft_rows = rows})
                  .hidden;
    last_ = {12, 26, 41};
    tokens_ = {9, 10, 11};
  }

  StepResults run(const Step& step) {
    const Result<StepResults> results = executor_->run(step);
    FATHOM_CHECK(results.ok(), results.ok() ? "" : results.status().message());
    return *results;
  }

  /// Guesses [passes, 3], in chains of `chain` passes.
  std::vector<int32_t> guess(const SamplingParams& params, int64_t passes, int64_t chain) {
    std::vector<int32_t> out;
    for (int64_t at = 0; at < passes; at += chain) {
      std::vector<SequenceStep> decode;
      std::vector<SampleRow> samples;
      for (size_t s = 0; s < 3; ++s)
        decode.push_back(step_of(s, std::span(tokens_).subspan(s, 1), length_of(s) + at));
      for (int64_t pass = at; pass < at + chain; ++pass) {
        for (size_t s = 0; s < 3; ++s) {
          samples.push_back(
              {.params = &params, .seed = 5, .stream = s, .position = length_of(s) + 2 + pass});
        }
      }
      const StepResults results = run({.decode = decode,
                                       .wants = StepWants::kTokens,
                                       .samples = samples,
                                       .pass = Step::Pass::kDraft,
                                       .draft_input = hidden_,
                                       .draft_rows = last_,
                                       .chain = chain});
      EXPECT_EQ(results.samples.size(), samples.size());
      for (const SampleResult& r : results.samples)
        out.push_back(r.finite ? r.token : -1);
      hidden_ = results.hidden;
      last_ = {0, 1, 2};
      std::copy(out.end() - 3, out.end(), tokens_.begin());
    }
    return out;
  }

  /// The best tokens behind each node of trees that grow by two nodes a level, with
  /// log-probabilities; in chains of `chain` levels. The tree of the host says which nodes these
  /// are. Rows are laid here once more, on purpose: without the proposer, so that an error of its
  /// own does not hide one of a chain.
  std::vector<std::pair<int32_t, float>> grow(int64_t levels, int64_t chain) {
    SamplingParams best = greedy_sampling();
    best.top_logprobs = 2;
    std::vector<std::pair<int32_t, float>> out;
    std::vector<DraftTree> trees(3, DraftTree({.tokens = levels + 1, .branches = 2}));
    std::vector<int32_t> row_of[3], parents[3], tokens[3];  // rows of the cache, of each node
    const auto lay_rows = [&](size_t s) {
      row_of[s].resize(static_cast<size_t>(trees[s].num_nodes()));
      for (const int32_t node : trees[s].frontier()) {
        const int32_t before = trees[s].parent(node);
        row_of[s][static_cast<size_t>(node)] = static_cast<int32_t>(parents[s].size());
        parents[s].push_back(before < 0 ? -1 : row_of[s][static_cast<size_t>(before)]);
      }
    };
    for (int32_t s = 0; s < 3; ++s)
      trees[static_cast<size_t>(s)].start(std::vector<TokenLogprob>{{7 + s, -0.5f}, {31, -0.6f}});
    for (int64_t level = 0; level < levels; level += chain) {
      std::vector<SequenceStep> decode;
      std::vector<int32_t> read;
      std::vector<float> paths;
      for (size_t s = 0; s < 3; ++s) {
        const auto rows = static_cast<int32_t>(parents[s].size());
        lay_rows(s);
        tokens[s].clear();
        for (const int32_t node : trees[s].frontier()) {
          tokens[s].push_back(trees[s].token(node));
          paths.push_back(trees[s].logprob(node));
          const int32_t before = parents[s][static_cast<size_t>(rows) + tokens[s].size() - 1];
          read.push_back(level == 0 ? last_[s] : before - rows + 2 + 2 * static_cast<int32_t>(s));
        }
        decode.push_back(step_of(s, tokens[s], length_of(s) + rows));
        decode.back().logits = LogitRows::kAll;
        decode.back().parents = parents[s];
      }
      const std::vector<SampleRow> samples(static_cast<size_t>(6 * chain),
                                           SampleRow{.params = &best});
      const StepResults results = run({.decode = decode,
                                       .wants = StepWants::kTokens,
                                       .samples = samples,
                                       .pass = Step::Pass::kDraft,
                                       .draft_input = hidden_,
                                       .draft_rows = read,
                                       .chain = chain,
                                       .node_paths = paths});
      hidden_ = results.hidden;
      for (size_t i = 0; i < results.samples.size(); ++i) {
        const SampleResult& r = results.samples[i];
        DraftTree& tree = trees[i % 6 / 2];
        if (i >= 6 && i % 2 == 0) lay_rows(i % 6 / 2);
        EXPECT_TRUE(r.finite);
        EXPECT_EQ(r.token, r.top_logprobs[0].token);
        for (const TokenLogprob& guess : r.top_logprobs)
          out.emplace_back(guess.token, guess.logprob);
        tree.add_children(tree.frontier()[i % 2], r.top_logprobs);
        if (i % 2 == 1) tree.grow();
      }
    }
    return out;
  }

  /// States of the last pass. Rows behind those of the sequences fill a shape.
  std::vector<std::byte> states() const { return bytes_of(slice_rows(hidden_, 0, 3)); }

  /// All rows of all layers.
  std::vector<std::byte> cache() {
    std::vector<std::byte> out;
    for (const GroupRows& group : executor_->cache().groups()) {
      for (const View& v : group.views) {
        const std::vector<std::byte> bytes = bytes_of(v);
        out.insert(out.end(), bytes.begin(), bytes.end());
      }
    }
    return out;
  }

  Executor& executor() { return *executor_; }

  const View& hidden() const { return hidden_; }

 private:
  std::vector<std::byte> bytes_of(const View& v) const {
    std::vector<std::byte> out(static_cast<size_t>(v.numel() * element_bytes(v.format)));
    if (compute_.gpu == nullptr) {
      std::memcpy(out.data(), v.data, out.size());
    } else {
      Stream& stream = compute_.gpu->stream();
      FATHOM_CHECK(stream.copy(out.data(), v.data, std::ssize(out)).ok() &&
                   stream.synchronize().ok());
    }
    return out;
  }

  int64_t length_of(size_t s) const { return std::ssize(prompts_[s]); }

  SequenceStep step_of(size_t s, std::span<const int32_t> tokens, int64_t cached) const {
    return {.tokens = tokens,
            .cached = cached,
            .pages = std::span(pages_).subspan(s * kPagesEach, kPagesEach),
            .slot = static_cast<int32_t>(s)};
  }

  std::span<const SequenceStep> all_of(const std::vector<int32_t> (&tokens)[3]) {
    steps_.clear();
    for (size_t s = 0; s < 3; ++s) {
      steps_.push_back(step_of(s, tokens[s], 0));
      steps_.back().logits = LogitRows::kNone;
    }
    return steps_;
  }

  const Compute compute_;
  std::unique_ptr<Executor> executor_;
  std::vector<int32_t> pages_;
  std::vector<int32_t> prompts_[3];
  std::vector<SequenceStep> steps_;
  View hidden_;
  std::vector<int32_t> last_;
  std::vector<int32_t> tokens_;
};

}  // namespace fathom
