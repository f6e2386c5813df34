#include "fathom/runtime/draft/speculative.h"

#include "fathom/runtime/draft/nextn_proposer.h"
#include "fathom/runtime/draft/ngram_proposer.h"

namespace fathom {

std::string_view speculative_name(Speculative method) {
  constexpr std::string_view kNames[] = {"off", "ngram", "mtp"};
  return kNames[static_cast<size_t>(method)];
}

namespace {

Status no_draft_layer(const Model& model) {
  const int64_t layers = model.config().num_nextn_predict_layers;
  return unsupported(str_cat(
      "--speculative mtp: ",
      layers == 0 ? "this model has no draft layer"
                  : str_cat("the draft layer of this model is not in the checkpoint (config.json "
                            "says num_nextn_predict_layers ",
                            layers, ")"),
      "\nhint: --speculative ngram needs no draft layer"));
}

}  // namespace

Status check_speculative(Speculative method, int64_t tokens, const Model& model) {
  if (method == Speculative::kOff) return {};
  if (method == Speculative::kMtp && !model.has_draft()) return no_draft_layer(model);
  const int64_t slack = model.cache_layout().slack();
  if (slack >= tokens) return {};
  const std::string_view name = speculative_name(method);
  if (slack <= 0) {
    return unsupported(str_cat("--speculative ", name, ": the caches of this model cannot be cut ",
                               "back, so no draft can be taken back\nhint: use --speculative off"));
  }
  return unsupported(str_cat("--speculative-tokens is ", tokens,
                             ", but the caches of this model can be cut back by ", slack,
                             " tokens, expected at most so many"));
}

std::unique_ptr<Proposer> make_proposer(Speculative method) {
  switch (method) {
    case Speculative::kOff:
      return nullptr;
    case Speculative::kNgram:
      return std::make_unique<NgramProposer>();
    case Speculative::kMtp:
      return std::make_unique<NextnProposer>();
  }
  return nullptr;
}

}  // namespace fathom
