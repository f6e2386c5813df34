#include "cli/eval/eval_output.h"

#include <cstdio>
#include <numbers>

#include "fathom/text/figures.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

JsonWriter begin(std::string_view kind, const std::string& model) {
  JsonWriter out(JsonStyle::kIndented);
  out.begin_object().key("schema").string("fathom.eval/1").key("kind").string(kind);
  out.key("model").string(model);
  return out;
}

std::string end(JsonWriter& out) {
  out.end_object();
  return out.take() + "\n";
}

void write_missed(JsonWriter& out, const std::vector<std::string>& missed) {
  out.key("missed").begin_array();
  for (const std::string& line : missed)
    out.string(line);
  out.end_array();
}

std::string missed_text(const std::vector<std::string>& missed) {
  std::string out;
  for (const std::string& line : missed)
    str_append(out, str_cat("missed: ", line, "\n"));
  return out;
}

std::string vectors_text(const VectorsFound& found) {
  const VectorComparison& result = found.result;
  MarkdownTable table({"prompt", "tokens", "max abs logit difference", "worst row's cosine",
                       "same first choice", "greedy tokens equal", "before the first small gap"});
  for (const PromptComparison& p : result.prompts) {
    table.add({p.name, str_cat(p.tokens), scientific(p.max_abs_logit),
               format_fixed(p.min_cosine, 7), str_cat(p.same_top1, " of ", p.positions),
               p.greedy_equal < 0 ? "-" : str_cat(p.greedy_equal),
               p.greedy_required < 0 ? "-" : str_cat(p.greedy_required)});
  }
  return str_cat(table.str(), "\n", found.numbers, ": max abs logit difference ",
                 scientific(result.max_abs_logit()), ", cosine ", format_fixed(result.cosine(), 7),
                 " (worst row ", format_fixed(result.min_cosine(), 7), "), mean KL ",
                 scientific(result.mean_kl()), " nats, same first choice ",
                 format_fixed(100 * result.top1_share(), 2), " %\n",
                 "hidden states: max abs difference ", scientific(result.max_abs_hidden),
                 "; router: ", result.router_equal, " of ", result.router_choices,
                 " choices equal, weights within ", scientific(result.max_abs_router_weight), "\n",
                 missed_text(found.missed), found.missed.empty() ? "ok\n" : "FAILED\n");
}

std::string vectors_json(const VectorsFound& found) {
  const VectorComparison& result = found.result;
  JsonWriter out = begin("vectors", found.model);
  out.key("numbers").string(found.numbers).key("prompts").begin_array();
  for (const PromptComparison& p : result.prompts) {
    out.begin_object().key("name").string(p.name).key("tokens").integer(p.tokens);
    out.key("max_abs_logit").number(p.max_abs_logit).key("min_cosine").number(p.min_cosine);
    out.key("same_top1").integer(p.same_top1).key("positions").integer(p.positions);
    out.key("greedy_equal").integer(p.greedy_equal);
    out.key("greedy_required").integer(p.greedy_required).end_object();
  }
  out.end_array().key("max_abs_logit").number(result.max_abs_logit());
  out.key("cosine").number(result.cosine()).key("min_cosine").number(result.min_cosine());
  out.key("mean_kl").number(result.mean_kl()).key("top1_share").number(result.top1_share());
  out.key("max_abs_hidden").number(result.max_abs_hidden);
  out.key("router_choices").integer(result.router_choices);
  out.key("router_equal").integer(result.router_equal);
  out.key("max_abs_router_weight").number(result.max_abs_router_weight);
  write_missed(out, found.missed);
  return end(out);
}

std::string layers_text(const TapComparison& taps) {
  MarkdownTable table({"layer", "attention", "feed-forward", "residual stream before it"});
  const auto cell = [&](int layer, const char* name) {
    const auto found = taps.results().find({layer, name});
    return found == taps.results().end() ? std::string("-")
                                         : format_fixed(found->second.cosine(), 6);
  };
  int before = -1;
  for (const auto& [key, sum] : taps.results()) {
    if (key.first == before) continue;
    before = key.first;
    table.add({str_cat(before), cell(before, "attn.output"), cell(before, "ffn.output"),
               cell(before, "layer.input")});
  }
  return str_cat("cosine by layer, errors of earlier layers included\n\n", table.str(), "\n");
}

std::string comparison_text(const ModelsCompared& found) {
  const LogitComparison& c = found.result;
  return str_cat(found.layers == nullptr ? "" : layers_text(*found.layers), "against ",
                 found.reference, ", ", c.positions, " positions: mean KL ",
                 scientific(c.mean_kl()), " nats (largest ", scientific(c.max_kl), "), cosine ",
                 format_fixed(c.cosine(), 7), ", same first choice ",
                 format_fixed(100 * c.top1_share(), 2), " %, max abs logit difference ",
                 scientific(c.max_abs), "\n", missed_text(found.missed));
}

std::string comparison_json(const ModelsCompared& found) {
  const LogitComparison& c = found.result;
  JsonWriter out = begin("comparison", found.model);
  out.key("reference").string(found.reference).key("positions").integer(c.positions);
  out.key("mean_kl").number(c.mean_kl()).key("max_kl").number(c.max_kl);
  out.key("cosine").number(c.cosine()).key("top1_share").number(c.top1_share());
  out.key("max_abs_logit").number(c.max_abs);
  if (found.layers != nullptr) {
    out.key("layers").begin_array();
    for (const auto& [key, sum] : found.layers->results()) {
      out.begin_object().key("layer").integer(key.first).key("tensor").string(key.second);
      out.key("cosine").number(sum.cosine()).end_object();
    }
    out.end_array();
  }
  write_missed(out, found.missed);
  return end(out);
}

}  // namespace

std::string scientific(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2e", value);
  return buffer;
}

std::string shown(const PerplexityFound& found, EvalForm form) {
  const Perplexity& result = found.result;
  const double nats = result.nll / static_cast<double>(result.tokens);
  const double bits_a_byte = result.nll / std::numbers::ln2 / static_cast<double>(found.text_bytes);
  if (form == EvalForm::kText) {
    return str_cat("perplexity ", format_fixed(result.value(), 4), "  (", result.tokens,
                   " tokens, ", format_fixed(nats, 5), " nats a token, ",
                   format_fixed(bits_a_byte, 4), " bits a byte)\n");
  }
  JsonWriter out = begin("perplexity", found.model);
  out.key("perplexity").number(result.value()).key("tokens").integer(result.tokens);
  out.key("nll").number(result.nll).key("nats_per_token").number(nats);
  out.key("bits_per_byte").number(bits_a_byte).key("text_bytes").integer(found.text_bytes);
  return end(out);
}

std::string shown(const VectorsFound& found, EvalForm form) {
  return form == EvalForm::kText ? vectors_text(found) : vectors_json(found);
}

std::string shown(const LogitsWritten& written, EvalForm form) {
  if (form == EvalForm::kText) {
    return str_cat("wrote logits of ", written.prompts, " prompts to ", written.file, "\n");
  }
  JsonWriter out = begin("logits", written.model);
  out.key("prompts").integer(written.prompts).key("file").string(written.file);
  return end(out);
}

std::string shown(const ModelsCompared& found, EvalForm form) {
  return form == EvalForm::kText ? comparison_text(found) : comparison_json(found);
}

}  // namespace fathom::cli
