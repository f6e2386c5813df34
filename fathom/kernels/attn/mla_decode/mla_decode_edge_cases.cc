#include "fathom/base/str_cat.h"
#include "fathom/kernels/attn/mla_decode/mla_decode_case.h"

namespace fathom {

/// The widths of the model, which kernels of fixed tiles take: lengths at every edge of tiles,
/// pairs of tiles and pieces of a request, on both sides of 512 keys.
void add_decode_model_widths(CaseList& list) {
  const auto add = [&](std::string_view name, DecodeShape s) {
    s.spec.name = str_cat("r1_width_", name);
    s.l = 512;
    s.r = 64;
    add_decode_case(list, s);
  };
  const std::vector<int64_t> edges = {0, 1, 63, 64, 65, 127, 128, 129, 300, 511, 512, 513, 700};
  for (const Format cache : {Format::kBf16, Format::kE4m3}) {
    const float kv_scale = cache == Format::kE4m3 ? 0.37f : 1.0f;
    for (int64_t page_size : {1, 16, 64, 128}) {
      add(str_cat("page", page_size, "_", format_name(cache)), {.spec = {},
                                                                .kv_lens = edges,
                                                                .n = 3,
                                                                .page_size = page_size,
                                                                .cache = cache,
                                                                .kv_scale = kv_scale});
    }
    add(str_cat("queries3_", format_name(cache)), {.spec = {},
                                                   .kv_lens = {0, 1, 2, 3, 65, 129, 514, 1025},
                                                   .queries = 3,
                                                   .n = 5,
                                                   .cache = cache,
                                                   .kv_scale = kv_scale});
    add(str_cat("b1_kv2500_", format_name(cache)), {.spec = {},
                                                    .kv_lens = {2500},
                                                    .n = 2,
                                                    .page_size = 64,
                                                    .cache = cache,
                                                    .kv_scale = kv_scale});
  }
  for (int64_t n : {1, 16, 64, 65, 128, 131})
    add(str_cat("n", n), {.spec = {}, .kv_lens = {70, 530}, .n = n});
  add("queries5_n16", {.spec = {}, .kv_lens = {4, 66, 600}, .queries = 5, .n = 16});
  // Few rows of few requests, which a cluster of blocks takes: lengths at the edges of chunks of 16
  // keys and of pieces of them, one request and eight, rows of more than one cluster.
  const std::vector<int64_t> chunks = {0, 15, 16, 17, 257, 1023};
  for (int64_t page_size : {1, 6, 64, 128}) {
    add(str_cat("few_page", page_size),
        {.spec = {}, .kv_lens = chunks, .n = 3, .page_size = page_size});
  }
  for (int64_t keys : {1, 16, 128, 129, 256, 540, 1024, 1025, 2049})
    add(str_cat("few_b1_kv", keys), {.spec = {}, .kv_lens = {keys}, .n = 16, .page_size = 64});
  add("few_b8", {.spec = {},
                 .kv_lens = {0, 1300, 513, 1024, 1025, 1, 1407, 1408},
                 .n = 16,
                 .page_size = 64,
                 .sinks = true});
  add("few_queries2_n16", {.spec = {}, .kv_lens = {1, 70, 600}, .queries = 2, .n = 16});
  add("few_queries5_n5",
      {.spec = {}, .kv_lens = {0, 3, 66, 600}, .queries = 5, .n = 5, .sinks = true});
  add("sinks", {.spec = {},
                .kv_lens = {0, 1, 70, 600},
                .queries = 2,
                .n = 4,
                .sinks = true,
                .o_scale = 1.5f});
  add("sinks_b1_kv1100", {.spec = {}, .kv_lens = {1100}, .page_size = 64, .sinks = true});
  add("apart_by_slot",
      {.spec = {}, .kv_lens = {0, 1, 70, 600}, .n = 4, .q_apart = true, .by_slot = true});
  add("codes", {.spec = {},
                .kv_lens = {0, 1, 70, 600},
                .n = 4,
                .page_size = 32,
                .q = Format::kE4m3,
                .cache = Format::kE4m3,
                .o = Format::kBf16,
                .o_scale = 0.37f});
  // So many requests, and room for so many keys, that a GPU of 132 multiprocessors adds the pieces
  // of a request in a second kernel.
  std::vector<int64_t> many = {3970, 4000};
  for (int64_t b = 2; b < 43; ++b)
    many.push_back(edges[static_cast<size_t>(b) % edges.size()]);
  add("long_b43", {.spec = {}, .kv_lens = many, .n = 2, .page_size = 64, .sinks = true});
  add("long_one_key_takes_all", {.spec = {}, .kv_lens = {1500, 640}, .n = 4, .q_scale = 100});
}

/// More keys than those of which a block takes all weights in two terms, few of which share a row's
/// weight: what rounding leaves of them counts. So many requests, most of them short, that a GPU of
/// 132 multiprocessors does not cut them; then one that it cuts into long pieces of a cluster, and
/// requests whose pieces a second kernel adds.
void add_decode_large_weights(CaseList& list) {
  const auto add = [&](std::string_view name, DecodeShape s) {
    s.spec.name = str_cat("r1_width_large_", name);
    s.l = 512;
    s.r = 64;
    s.page_size = 64;
    add_decode_case(list, s);
  };
  const auto lengths = [](std::vector<int64_t> first, int64_t requests) {
    while (static_cast<int64_t>(first.size()) < requests)
      first.push_back(static_cast<int64_t>(first.size()) % 3);
    return first;
  };
  const auto one_of = [](int64_t step) {
    return [=](int64_t key) { return key % step == 5 ? 9.0 : 0.0; };
  };
  const std::vector<int64_t> long_ones = lengths({1500, 577, 641}, 100);
  const auto add_even = [&](std::string_view name, std::function<double(int64_t)> lift) {
    add(name, {.spec = {}, .kv_lens = long_ones, .n = 9, .q_scale = 0.3, .lift = lift});
  };
  // One key, two, four, eight, twelve and twenty of 1,500; keys that one lane weighs all of.
  for (int64_t step : {1499, 701, 353, 181, 121, 73, 128, 64, 512})
    add_even(str_cat("every", step), one_of(step));
  for (int64_t span : {8, 17, 20, 32}) {
    add_even(str_cat("span", span),
             [=](int64_t key) { return key >= 510 && key < 510 + span ? 9.0 : 0.0; });
  }
  add_even("first_key", [](int64_t key) { return key == 0 ? 8.0 : 0.0; });
  add_even("rising", [](int64_t key) { return 0.04 * static_cast<double>(key); });
  add_even("falling", [](int64_t key) { return -0.04 * static_cast<double>(key); });
  add("noise", {.spec = {}, .kv_lens = long_ones, .n = 9, .q_scale = 2});
  add("rows64",
      {.spec = {}, .kv_lens = lengths({600}, 100), .n = 64, .q_scale = 0.3, .lift = one_of(121)});
  add("queries3_rising", {.spec = {},
                          .kv_lens = long_ones,
                          .queries = 3,
                          .n = 5,
                          .q_scale = 0.3,
                          .lift = [](int64_t key) { return 0.04 * static_cast<double>(key); }});
  for (int64_t step : {181, 73}) {
    add(str_cat("every", step, "_fp8"), {.spec = {},
                                         .kv_lens = long_ones,
                                         .n = 9,
                                         .cache = Format::kE4m3,
                                         .kv_scale = 0.37f,
                                         .q_scale = 0.3,
                                         .lift = one_of(step)});
  }
  add("by_slot", {.spec = {},
                  .kv_lens = long_ones,
                  .n = 5,
                  .q_scale = 0.3,
                  .sinks = true,
                  .by_slot = true,
                  .lift = one_of(121)});
  for (const Format cache : {Format::kBf16, Format::kE4m3}) {
    add(str_cat("b1_kv9300_", format_name(cache)), {.spec = {},
                                                    .kv_lens = {9300},
                                                    .n = 2,
                                                    .cache = cache,
                                                    .q_scale = 0.3,
                                                    .lift = one_of(353)});
  }
  add("b1_kv4000", {.spec = {}, .kv_lens = {4000}, .n = 2, .q_scale = 0.3, .lift = one_of(353)});
  add("b43", {.spec = {},
              .kv_lens = lengths({3970, 4000}, 43),
              .n = 2,
              .q_scale = 0.3,
              .sinks = true,
              .lift = one_of(353)});
}

/// Trees of any shape, and chains among them: rows that end at every edge of a tile, alone and with
/// many keys before them, of which some queries are the last level of a larger tree.
void add_decode_trees(CaseList& list) {
  const auto add = [&](std::string_view name, DecodeShape s) {
    s.spec.name = str_cat("trees_", name);
    add_decode_case(list, s);
  };
  const std::vector<int64_t> lens = {9, 64, 65, 70, 128, 131, 300, 520};
  const std::vector<int64_t> rows = {8, 7, 12, -1, 20, 33, -1, 64};
  for (const Format f : {Format::kBf16, Format::kF32}) {
    add(format_name(f), {.spec = {},
                         .kv_lens = lens,
                         .queries = 8,
                         .n = 3,
                         .q = f,
                         .cache = f,
                         .sinks = true,
                         .trees = rows});
  }
  add("by_slot", {.spec = {}, .kv_lens = {70, 21}, .queries = 5, .by_slot = true, .trees = {9, 6}});
  add("of_one_row", {.spec = {}, .kv_lens = {1, 2, 66}, .queries = 1, .trees = {0, 1, 40}});
  add("nothing_seen", {.spec = {}, .kv_lens = {0, 2, 64}, .queries = 4, .trees = {3, 2, 64}});
  // The widths of the model. Few rows of few requests, which a cluster takes, and more.
  const auto model = [&](std::string_view name, DecodeShape s) {
    s.l = 512;
    s.r = 64;
    s.page_size = 64;
    add(str_cat("r1_width_", name), s);
  };
  for (int64_t keys : {40, 64, 127, 129, 700, 2049}) {
    model(str_cat("b1_kv", keys),
          {.spec = {}, .kv_lens = {keys}, .queries = 8, .n = 16, .trees = {keys > 100 ? 30 : 7}});
  }
  model("few_b3",
        {.spec = {}, .kv_lens = {70, 130, 513}, .queries = 9, .n = 4, .trees = {64, 8, -1}});
  model("n128_q65", {.spec = {}, .kv_lens = {200}, .queries = 65, .n = 128, .trees = {64}});
  for (const Format cache : {Format::kBf16, Format::kE4m3}) {
    model(str_cat("b8_", format_name(cache)), {.spec = {},
                                               .kv_lens = lens,
                                               .queries = 8,
                                               .n = 16,
                                               .cache = cache,
                                               .kv_scale = cache == Format::kE4m3 ? 0.37f : 1.0f,
                                               .sinks = true,
                                               .trees = rows});
  }
  model("b1_kv9300", {.spec = {}, .kv_lens = {9300}, .queries = 17, .n = 8, .trees = {16}});
  std::vector<int64_t> many;
  std::vector<int64_t> of_many;
  for (int64_t b = 0; b < 43; ++b) {
    many.push_back(b < 2 ? 3970 + 30 * b : 9 + 13 * b);
    of_many.push_back(b % 5 == 4 ? -1 : b % 7 + 5);
  }
  model("b43", {.spec = {}, .kv_lens = many, .queries = 6, .n = 4, .trees = of_many});
}

}  // namespace fathom
