#include "fathom/weights/plan/weight_spec.h"

#include <charconv>

#include "fathom/base/checked_math.h"

namespace fathom {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// sum := product { "+" product };  product := factor { "*" factor };
// factor := integer | symbol | "(" sum ")"
class AxisParser {
 public:
  AxisParser(std::string_view text, const SymbolTable& symbols) : text_(text), symbols_(symbols) {}

  Result<int64_t> parse() {
    FATHOM_ASSIGN(const int64_t value, sum(0));
    if (at_ != text_.size()) return fail("unexpected text");
    return value;
  }

 private:
  static constexpr int kMaxDepth = 16;

  Status fail(std::string_view what) const {
    return invalid_argument(
        str_cat("axis \"", text_, "\": ", what, " at character ", static_cast<int64_t>(at_)));
  }

  bool eat(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Result<int64_t> sum(int depth) {
    FATHOM_ASSIGN(int64_t value, product(depth));
    while (eat('+')) {
      FATHOM_ASSIGN(const int64_t next, product(depth));
      const auto total = checked_add(value, next);
      if (!total) return fail("the value exceeds 64 bits");
      value = *total;
    }
    return value;
  }

  Result<int64_t> product(int depth) {
    FATHOM_ASSIGN(int64_t value, factor(depth));
    while (eat('*')) {
      FATHOM_ASSIGN(const int64_t next, factor(depth));
      const auto total = checked_mul(value, next);
      if (!total) return fail("the value exceeds 64 bits");
      value = *total;
    }
    return value;
  }

  Result<int64_t> factor(int depth) {
    if (depth > kMaxDepth) return fail("parentheses nest too deeply");
    if (eat('(')) {
      FATHOM_ASSIGN(const int64_t value, sum(depth + 1));
      if (!eat(')')) return fail("expected )");
      return value;
    }
    const size_t begin = at_;
    if (at_ < text_.size() && is_digit(text_[at_])) {
      int64_t value = 0;
      const auto [end, error] =
          std::from_chars(text_.data() + begin, text_.data() + text_.size(), value);
      if (error != std::errc{}) return fail("the number exceeds 64 bits");
      at_ = static_cast<size_t>(end - text_.data());
      return value;
    }
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > begin && is_digit(text_[at_])))) {
      ++at_;
    }
    if (at_ == begin) return fail("expected a symbol or a number");
    const std::string_view name = text_.substr(begin, at_ - begin);
    const auto value = symbols_.find(name);
    if (!value) return fail(str_cat("unknown symbol ", name));
    return *value;
  }

  std::string_view text_;
  const SymbolTable& symbols_;
  size_t at_ = 0;
};

}  // namespace

void SymbolTable::set(std::string_view name, int64_t value) {
  for (auto& [known, old] : entries_) {
    if (known == name) {
      old = value;
      return;
    }
  }
  entries_.emplace_back(name, value);
}

std::optional<int64_t> SymbolTable::find(std::string_view name) const {
  for (const auto& [known, value] : entries_) {
    if (known == name) return value;
  }
  return std::nullopt;
}

Result<int64_t> eval_axis(std::string_view text, const SymbolTable& symbols) {
  return AxisParser(text, symbols).parse();
}

Result<std::vector<int64_t>> eval_axes(std::string_view text, const SymbolTable& symbols) {
  std::vector<int64_t> dims;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++depth;
    if (i < text.size() && text[i] == ')') --depth;
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    FATHOM_ASSIGN(const int64_t dim, eval_axis(text.substr(begin, i - begin), symbols));
    dims.push_back(dim);
    begin = i + 1;
  }
  return dims;
}

std::string_view weight_role_name(WeightRole role) {
  switch (role) {
    case WeightRole::kEmbedding:
      return "embedding";
    case WeightRole::kHead:
      return "head";
    case WeightRole::kNorm:
      return "norm";
    case WeightRole::kAttention:
      return "attention";
    case WeightRole::kOutput:
      return "o_proj";
    case WeightRole::kMlp:
      return "mlp";
    case WeightRole::kExpert:
      return "expert";
    case WeightRole::kSharedExpert:
      return "shared_expert";
    case WeightRole::kRouter:
      return "router";
    case WeightRole::kRouterBias:
      return "router_bias";
    case WeightRole::kDraft:
      return "draft";
    case WeightRole::kStream:
      return "stream";
    case WeightRole::kAttentionBias:
      return "attention_bias";
    case WeightRole::kCompressor:
      return "compressor";
    case WeightRole::kOutputGroups:
      return "o_a_proj";
    case WeightRole::kHashTable:
      return "hash_table";
  }
  return "unknown";
}

bool must_be_finite(WeightRole role) {
  return role == WeightRole::kRouter || role == WeightRole::kRouterBias;
}

bool is_kept_in_f32(WeightRole role) {
  return role == WeightRole::kRouterBias || role == WeightRole::kStream ||
         role == WeightRole::kAttentionBias;
}

int64_t WeightSpec::numel() const {
  int64_t n = 1;
  for (int64_t d : dims)
    n *= d;
  return n;
}

int64_t WeightSpec::held_numel() const {
  int64_t n = 1;
  for (int axis = 0; axis < static_cast<int>(dims.size()); ++axis)
    n *= held(axis);
  return n;
}

std::string describe_dims(const std::vector<int64_t>& dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) out += ", ";
    str_append(out, dims[i]);
  }
  return out + "]";
}

}  // namespace fathom
