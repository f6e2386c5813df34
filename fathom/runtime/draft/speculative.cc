#include "fathom/runtime/draft/speculative.h"

#include <algorithm>

#include "fathom/runtime/draft/nextn_proposer.h"
#include "fathom/runtime/draft/ngram_proposer.h"
#include "fathom/runtime/draft/tree/nextn_tree_proposer.h"

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

Status check_width(const DraftShape& shape, int64_t slack) {
  if (shape.width == 0) return {};
  if (!shape.is_tree()) {
    return invalid_argument(str_cat("--speculative-width is ", shape.width,
                                    " with --speculative-topk 1, which makes chains of "
                                    "--speculative-tokens; expected --speculative-topk of at least "
                                    "2, or no --speculative-width"));
  }
  const int64_t least = std::max(shape.tokens, shape.branches);
  const int64_t most = std::min({shape.candidates(), kMostTreeDrafts, slack});
  if (shape.width >= least && shape.width <= most) return {};
  return invalid_argument(
      str_cat("--speculative-width is ", shape.width, " with --speculative-tokens ", shape.tokens,
              " and --speculative-topk ", shape.branches, ", expected ", least, " to ", most));
}

// Of the draft layer, all levels of a tree but the last have rows, and no root: the first of them
// lies where a chain's would.
Status check_depth(const DraftShape& shape, int64_t slack) {
  const int64_t rows = std::min(kMostTreeRows - 1, slack) + 1;
  const int64_t most = 1 + rows / shape.branches;
  if (shape.tokens <= most) return {};
  return invalid_argument(str_cat(
      "--speculative-tokens is ", shape.tokens, " with --speculative-topk ", shape.branches,
      ", expected at most ", most, ": a tree has up to ", rows, " rows of the draft layer"));
}

Status check_trees(Speculative method, const DraftShape& shape, const Model& model) {
  int64_t slack = model.cache_layout().slack();
  if (slack <= 0) slack = kMostTreeDrafts;  // no drafts at all, as check_speculative says
  FATHOM_TRY(check_width(shape, slack));
  if (!shape.is_tree()) return {};
  if (method == Speculative::kNgram) {
    return invalid_argument(str_cat("--speculative-topk is ", shape.branches,
                                    " with --speculative ngram, which guesses chains; expected 1, "
                                    "or --speculative mtp"));
  }
  if (model.takes_trees()) return check_depth(shape, slack);
  return unsupported(str_cat("--speculative-topk is ", shape.branches,
                             ", but the attention of this model takes no trees; expected 1, which "
                             "makes chains"));
}

}  // namespace

Status check_speculative(Speculative method, const DraftShape& shape, const Model& model) {
  if (method == Speculative::kOff) return {};
  if (method == Speculative::kMtp && !model.has_draft()) return no_draft_layer(model);
  FATHOM_TRY(check_trees(method, shape, model));
  const int64_t tokens = shape.tokens;
  const int64_t slack = model.cache_layout().slack();
  if (slack >= shape.drafts()) return {};
  const std::string_view name = speculative_name(method);
  if (slack <= 0) {
    return unsupported(str_cat("--speculative ", name, ": the caches of this model cannot be cut ",
                               "back, so no draft can be taken back\nhint: use --speculative off"));
  }
  if (shape.is_tree()) {
    return unsupported(str_cat("--speculative-tokens ", tokens, " and --speculative-topk ",
                               shape.branches, " make trees of ", shape.drafts(),
                               " drafts, but the caches of this model can be cut back by ", slack,
                               " tokens, expected --speculative-width of at most so many"));
  }
  return unsupported(str_cat("--speculative-tokens is ", tokens,
                             ", but the caches of this model can be cut back by ", slack,
                             " tokens, expected at most so many"));
}

std::unique_ptr<Proposer> make_proposer(Speculative method, const DraftShape& shape) {
  switch (method) {
    case Speculative::kOff:
      return nullptr;
    case Speculative::kNgram:
      return std::make_unique<NgramProposer>();
    case Speculative::kMtp:
      if (shape.is_tree()) return std::make_unique<NextnTreeProposer>(shape);
      return std::make_unique<NextnProposer>();
  }
  return nullptr;
}

}  // namespace fathom
