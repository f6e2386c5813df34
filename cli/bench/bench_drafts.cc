#include "cli/bench/bench_drafts.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "cli/bench/bench_engine.h"
#include "cli/io/terminal.h"
#include "fathom/os/clock.h"

namespace fathom::cli {
namespace {

using Answers = std::vector<std::vector<int32_t>>;

// Seconds from the first token of all answers to the last one.
Result<double> time_answers(EngineCore& core,
                            const BenchModelFlags& flags,
                            int64_t batch,
                            int64_t vocabulary,
                            uint64_t seed,
                            Answers& answers) {
  answers.assign(static_cast<size_t>(batch), {});
  int64_t begin = 0;
  int64_t started = 0;
  for (int64_t s = 0; s < batch; ++s) {
    Request request;
    request.prompt = random_tokens(std::max<int64_t>(flags.depth, 1), vocabulary,
                                   seed * 100'003 + static_cast<uint64_t>(s));
    request.sampling = sampling_of(flags);
    request.sampling.max_tokens = flags.generate + 1;
    request.sampling.seed = seed;
    request.on_token = [&, s](const TokenEvent& e) {
      if (e.token >= 0) answers[static_cast<size_t>(s)].push_back(e.token);
      if (e.index == 0 && ++started == batch) begin = monotonic_ns();
    };
    FATHOM_TRY(core.submit(std::move(request)).status());
  }
  while (!core.idle()) {
    FATHOM_TRY(flags.go_on());
    FATHOM_TRY(core.step());
  }
  return static_cast<double>(monotonic_ns() - begin) * 1e-9;
}

std::string shape_text(const DraftShape& shape) {
  if (!shape.is_tree()) return str_cat("at most ", shape.tokens);
  return str_cat("trees of ", shape.drafts(), ", ", shape.branches, " at a place, at most ",
                 shape.tokens, " deep");
}

std::string acceptance_text(const CoreStats& stats, const BenchModelFlags& flags) {
  const auto drafts = static_cast<double>(stats.num_drafts);
  std::string places;
  for (int64_t i = 0; i < stats.most_drafts; ++i) {
    const auto right = static_cast<double>(stats.accepted_at[static_cast<size_t>(i)]);
    str_append(places, str_cat(i == 0 ? "" : ", ", i + 1, ": ",
                               format_fixed(100 * right / std::max(drafts, 1.0), 1), " %"));
  }
  return str_cat(
      "drafts (", speculative_name(flags.engine.speculative), ", ",
      shape_text(flags.engine.draft_shape()), "): of ", stats.num_drafts,
      " times, accepted at place ", places, "\naccepted length: ",
      format_fixed(1 + static_cast<double>(stats.accepted_tokens) / std::max(drafts, 1.0), 2),
      " tokens of such a step; ", stats.accepted_tokens, " of ", stats.drafted_tokens, " drafts\n",
      flags.simulated_acceptance
          ? str_cat("acceptance is simulated: each guess is taken with probability ",
                    format_fixed(*flags.simulated_acceptance, 2), ", whatever the model draws\n")
          : std::string());
}

}  // namespace

Result<std::string> drafts_text(const Model& model,
                                const Compute& compute,
                                const BenchModelFlags& flags,
                                int64_t batch) {
  const EngineOptions& o = flags.engine;
  FATHOM_TRY(check_speculative(o.speculative, o.draft_shape(), model));
  const MonotonicClock clock;
  const int64_t length = std::max<int64_t>(flags.depth, 1) + flags.generate + 1;
  const std::unique_ptr<Proposer> proposer = make_proposer(o.speculative, o.draft_shape());
  FATHOM_ASSIGN(const auto plain,
                open_bench_core(model, compute, flags, batch, length, clock, nullptr));
  FATHOM_ASSIGN(const auto drafting,
                open_bench_core(model, compute, flags, batch, length, clock, proposer.get()));
  std::vector<double> plain_s;
  std::vector<double> drafting_s;
  for (int r = -1; r < flags.repetitions; ++r) {  // the first captures and warms up
    const auto seed = static_cast<uint64_t>(r + 2);
    Answers expected;
    Answers answers;
    FATHOM_ASSIGN(const double without,
                  time_answers(*plain, flags, batch, model.config().vocab_size, seed, expected));
    FATHOM_ASSIGN(const double with,
                  time_answers(*drafting, flags, batch, model.config().vocab_size, seed, answers));
    if (compute.gpu == nullptr && !flags.simulated_acceptance && answers != expected) {
      return internal_error("drafts changed an answer");
    }
    if (r < 0) continue;
    plain_s.push_back(without);
    drafting_s.push_back(with);
  }
  const auto tokens = static_cast<double>(flags.generate * batch);
  const double rate = tokens / median_of(drafting_s);
  const double plain_rate = tokens / median_of(plain_s);
  return str_cat("\n", acceptance_text(drafting->stats(), flags), "speed: ", format_fixed(rate, 1),
                 " tokens/s with drafts, ", format_fixed(plain_rate, 1),
                 " without in the same run: ", format_fixed(rate / plain_rate, 2), " x\n");
}

}  // namespace fathom::cli
