#include "fathom/kernels/sample/penalty/penalty.h"

namespace fathom {
namespace {

// Lists hold as many tokens as a request has seen, so this is short beside one pass over the
// logits.
Status penalty(Exec&, const Penalty::Args& a) {
  for (int64_t t = 0; t < a.logits.dim(0); ++t) {
    float* z = a.logits.row<float>(t);
    const float repetition = a.repetition.as<const float>()[t];
    const float frequency = a.frequency.as<const float>()[t];
    const float presence = a.presence.as<const float>()[t];
    const auto* offsets = a.token_offsets.as<const int32_t>() + t;
    for (int32_t i = offsets[0]; i < offsets[1]; ++i) {
      float& logit = z[a.tokens.as<const int32_t>()[i]];
      const int32_t count = a.counts.as<const int32_t>()[i];
      logit = logit > 0 ? logit / repetition : logit * repetition;
      logit -= frequency * static_cast<float>(count) + (count > 0 ? presence : 0.0f);
    }
    const auto* bias_offsets = a.bias_offsets.as<const int32_t>() + t;
    for (int32_t i = bias_offsets[0]; i < bias_offsets[1]; ++i) {
      z[a.bias_tokens.as<const int32_t>()[i]] += a.bias_values.as<const float>()[i];
    }
  }
  return {};
}

/// offsets[0..T] ascend within a list of `length`, and the tokens between them exist.
Status check_lists(std::string_view name,
                   const View& tokens,
                   std::string_view offsets_name,
                   const View& offsets,
                   int64_t vocabulary) {
  int32_t previous = 0;
  for (int64_t t = 0; t < offsets.dim(0); ++t) {
    const int32_t offset = offsets.as<const int32_t>()[t];
    if (offset < previous || offset > tokens.dim(0)) {
      return invalid_argument(str_cat(offsets_name, "[", t, "] is ", offset, ", expected ",
                                      previous, " to ", tokens.dim(0)));
    }
    for (int32_t i = previous; t > 0 && i < offset; ++i) {
      const int32_t token = tokens.as<const int32_t>()[i];
      if (token >= 0 && token < vocabulary) continue;
      return invalid_argument(
          str_cat(name, "[", i, "] is ", token, ", expected 0 to ", vocabulary - 1));
    }
    previous = offset;
  }
  return {};
}

}  // namespace

void Penalty::bytes(const Args& a, Cost& cost) {
  const int64_t touched = (a.tokens.dim(0) + a.bias_tokens.dim(0)) * 4;
  for (const View* v : operands(a)) {
    if (v != &a.logits) cost.bytes_read += operand_bytes(*v);
  }
  cost.bytes_read += touched;
  cost.bytes_written = touched;
}

Status Penalty::check(const Args& a) {
  if (!a.logits.readable()) return {};
  const int64_t V = a.logits.dim(1);
  FATHOM_TRY(check_lists("tokens", a.tokens, "token_offsets", a.token_offsets, V));
  FATHOM_TRY(check_lists("bias_tokens", a.bias_tokens, "bias_offsets", a.bias_offsets, V));
  for (int64_t t = 0; t < a.logits.dim(0); ++t) {
    const float repetition = a.repetition.as<const float>()[t];
    if (!(repetition > 0)) {
      return invalid_argument(
          str_cat("repetition[", t, "] is ", repetition, ", expected a positive number"));
    }
  }
  return {};
}

constinit const VariantTable<Penalty> penalty_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, penalty},
};

}  // namespace fathom
