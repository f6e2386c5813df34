// The fake model with a draft layer that is always right as long as its rows are: it finds the
// digest of all tokens in rows of its own, and what it finds must fit together.
#pragma once

#include "tests/support/fake_model.h"

namespace fathom {

/// A state is the token that it was made for. Row i of the draft layer holds state i and token i +
/// 1 as one number; state i must be token i of the row before. A row that is stale, missing or of
/// another sequence gives drafts that are never right.
class FakeDraftModel : public FakeModel {
 public:
  using FakeModel::FakeModel;

  static constexpr int32_t kStateUnit = 1000;  ///< larger than any token

  bool has_draft() const override { return true; }

  CacheLayout cache_layout() const override {
    CacheLayout layout = FakeModel::cache_layout();
    layout.groups[0].layers.push_back(2);
    return layout;
  }

  Status forward(Exec& ex, const Batch& batch, ForwardOut& out) const override {
    FATHOM_TRY(FakeModel::forward(ex, batch, out));
    out.hidden = batch.hidden;
    if (ex.dry() || !batch.hidden.present()) return {};
    for (int64_t t = 0; t < batch.num_tokens(); ++t)
      *batch.hidden.row<float>(t) = static_cast<float>(batch.token_ids.as<int32_t>()[t]);
    return {};
  }

  Status draft(Exec& ex, const Batch& batch, const View& hidden, ForwardOut& out) const override {
    const int64_t rows = batch.num_logits();
    FATHOM_ASSIGN(out.logits,
                  ex.activations->tensor({rows, config_.vocab_size}, Format::kF32, "R,V"));
    FATHOM_ASSIGN(const View read,
                  ex.activations->tensor({batch.num_tokens(), 1}, Format::kF32, "T,H"));
    out.hidden = batch.hidden;
    if (!out.hidden.present()) {
      FATHOM_ASSIGN(out.hidden,
                    ex.activations->tensor({batch.num_tokens(), 1}, Format::kF32, "T,H"));
    }
    if (ex.dry()) return {};
    for (int64_t t = 0; t < batch.num_tokens(); ++t) {  // states may go where they were
      const int64_t row = batch.state_rows.present() ? batch.state_rows.as<int32_t>()[t] : t;
      *read.row<float>(t) = *hidden.row<float>(row);
    }
    ++num_drafts;
    if (on_draft) on_draft(batch.num_tokens());
    if (fail_draft_at > 0 && num_drafts >= fail_draft_at) return internal_error("injected");
    int64_t row = 0;
    for (const TokenRange* range : {&batch.attention.prefill, &batch.attention.decode})
      draft_range(batch, *range, read, out, row);
    return {};
  }

  mutable int64_t num_drafts = 0;                    ///< passes
  std::function<void(int64_t num_tokens)> on_draft;  ///< may move a clock
  int64_t fail_draft_at = 0;  ///< this pass of the draft layer and later ones fail; 0: none
  uint64_t one_bad_in = 0;    ///< behind one path in about so many logits are NaN; 0: none

 private:
  void draft_range(const Batch& b,
                   const TokenRange& r,
                   const View& hidden,
                   const ForwardOut& out,
                   int64_t& row) const {
    const View& rows = b.cache[0].at(2);
    for (int64_t i = 0; i < r.num_requests(); ++i) {
      const int64_t first = r.token_begin + r.query_offsets[static_cast<size_t>(i)];
      const int64_t end = r.token_begin + r.query_offsets[static_cast<size_t>(i) + 1];
      for (int64_t t = first; t < end; ++t) {
        const int32_t token = b.token_ids.as<int32_t>()[t];
        *out.hidden.row<float>(t) = static_cast<float>(token);
        rows.as<float>()[b.slots[0].as<int64_t>()[t]] =
            *hidden.row<float>(t) * kStateUnit + static_cast<float>(token);
        const bool wanted = row < b.num_logits() &&
                            (!b.logit_rows.present() || b.logit_rows.as<int32_t>()[row] == t);
        if (!wanted) continue;
        uint64_t digest = digest_of(b, r, i, t, rows);
        if (one_bad_in > 0 && digest % one_bad_in == 0) digest = 0;
        fill_logits(digest, out.logits.row<float>(row++), config_.vocab_size);
      }
    }
  }

  // Of token 0, which is state 0, and of the tokens of the rows that token t sees.
  static uint64_t digest_of(
      const Batch& b, const TokenRange& r, int64_t i, int64_t t, const View& rows) {
    uint64_t digest = 1;
    int32_t before = -1;
    bool fits = true;
    each_key(b, r, i, t, [&](int64_t slot) {
      const auto number = static_cast<int32_t>(rows.as<float>()[slot]);
      const int32_t state = number / kStateUnit;
      if (before < 0) digest = mix(digest, state);
      fits &= before < 0 || state == before;
      before = number % kStateUnit;
      digest = mix(digest, before);
    });
    return fits ? digest : 7;
  }
};

}  // namespace fathom
