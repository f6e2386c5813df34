#include "fathom/kernels/sparse/index_logits/index_logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "fathom/device/device.h"
#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/sparse/topk_rows/topk_rows.h"

namespace fathom {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

std::vector<float> normal_values(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  Rng rng(seed);
  for (float& v : values)
    v = rng.next_normal();
  return values;
}

/// Tokens over one tensor of keys.
struct RaggedCall {
  TestTensor q, w, keys, starts, ends, logits;

  RaggedCall(int64_t T, int64_t H, int64_t D, int64_t L, Format format)
      : q({T, H, D}, format, normal_values(T * H * D, 1)),
        w({T, H}, Format::kF32, normal_values(T * H, 2)),
        keys({L, D}, format, normal_values(L * D, 3)),
        starts({T}, Format::kI32, 0.0f),
        ends({T}, Format::kI32, static_cast<float>(L)),
        logits({T, L}, Format::kF32) {}

  IndexLogitsRagged::Args args() const {
    return {.q = q.view(),
            .w = w.view(),
            .keys = keys.view(),
            .starts = starts.view(),
            .ends = ends.view(),
            .logits = logits.view()};
  }

  void run(TestExec& exec, std::string_view variant) const {
    FATHOM_EXPECT_OK(launch<IndexLogitsRagged>(exec.with("index_logits_ragged", variant),
                                               "index_logits", args()));
  }
};

/// The variants that take a call.
template <Contract K>
std::vector<std::string> variants_for(const typename K::Args& args) {
  std::vector<std::string> names;
  for (const Variant<K>& v : cpu_kernels().table<K>()) {
    if (v.accepts == nullptr || v.accepts(args)) names.emplace_back(v.name);
  }
  return names;
}

TEST(IndexLogits, WeighPositiveProductsOfHeads) {
  // Dots of two heads with four keys: (2,1) (-3,1) (-.25,.5) (2.5,-2).
  TestExec exec;
  constexpr float kQ[2][4] = {{1, -2, .5, 0}, {0, 1, 1, -1}};
  constexpr float kK[4][4] = {{1, 0, 2, 1}, {-1, 1, 0, 0}, {.5, .5, .5, .5}, {0, -1, 1, 2}};
  for (Format format : {Format::kF32, Format::kBf16}) {
    RaggedCall call(1, 2, 64, 4, format);
    for (int64_t d = 0; d < 64; ++d) {
      for (int64_t h = 0; h < 2; ++h)
        call.q.set(h * 64 + d, d < 4 ? kQ[h][d] : 0.0f);
      for (int64_t j = 0; j < 4; ++j)
        call.keys.set(j * 64 + d, d < 4 ? kK[j][d] : 0.0f);
    }
    call.w.set(0, .6f);
    call.w.set(1, -.25f);
    for (const std::string& variant : variants_for<IndexLogitsRagged>(call.args())) {
      call.run(exec, variant);
      expect_near(call.logits.values(), {.95, -.25, -.125, 1.5}, 1e-6);
    }
  }
}

TEST(IndexLogits, InFloat32ChooseTheKeysOfAnExactReference) {
  TestExec exec;
  constexpr int64_t kT = 6, kH = 64, kD = 128, kL = 700, kK = 64;
  const RaggedCall call(kT, kH, kD, kL, Format::kF32);
  const TestTensor lengths({kT}, Format::kI32, static_cast<float>(kL));
  const TestTensor ids({kT, kK}, Format::kI32);
  for (const std::string& variant : variants_for<IndexLogitsRagged>(call.args())) {
    call.run(exec, variant);
    FATHOM_EXPECT_OK(launch<TopkRows>(
        *exec, "index_topk",
        {.scores = call.logits.view(), .lengths = lengths.view(), .ids = ids.view()}));
    for (int64_t t = 0; t < kT; ++t) {
      std::vector<double> exact(kL, 0.0);
      for (int64_t j = 0; j < kL; ++j) {
        for (int64_t h = 0; h < kH; ++h) {
          double dot = 0;
          for (int64_t d = 0; d < kD; ++d)
            dot += double{call.q[(t * kH + h) * kD + d]} * double{call.keys[j * kD + d]};
          exact[static_cast<size_t>(j)] += call.w[t * kH + h] * std::max(dot, 0.0);
        }
      }
      std::vector<int64_t> order(kL);
      std::iota(order.begin(), order.end(), int64_t{0});
      std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return exact[static_cast<size_t>(a)] > exact[static_cast<size_t>(b)];
      });
      std::sort(order.begin(), order.begin() + kK);
      for (int64_t i = 0; i < kK; ++i)
        EXPECT_EQ(static_cast<int64_t>(ids[t * kK + i]), order[static_cast<size_t>(i)])
            << variant << " token " << t;
    }
  }
}

/// The call's keys in pages of S, backwards, and its tokens as one request.
std::vector<float> paged(TestExec& exec,
                         std::string_view variant,
                         const RaggedCall& call,
                         int64_t S) {
  const int64_t L = call.keys.view().dim(0);
  const int64_t D = call.keys.view().dim(1);
  const int64_t T = call.q.view().dim(0);
  const int64_t P = (L + S - 1) / S;
  TestTensor keys({P, S, D}, call.keys.view().format, NAN);
  TestTensor table({1, P}, Format::kI32);
  for (int64_t j = 0; j < L; ++j) {
    const int64_t page = P - 1 - j / S;
    table.set(j / S, static_cast<float>(page));
    for (int64_t d = 0; d < D; ++d)
      keys.set((page * S + j % S) * D + d, call.keys[j * D + d]);
  }
  const TestTensor offsets({2}, Format::kI32, std::vector<float>{0, static_cast<float>(T)});
  const TestTensor logits({T, L}, Format::kF32);
  FATHOM_EXPECT_OK(launch<IndexLogitsPaged>(exec.with("index_logits_paged", variant),
                                            "index_logits",
                                            {.q = call.q.view(),
                                             .w = call.w.view(),
                                             .keys = keys.view(),
                                             .block_table = table.view(),
                                             .q_offsets = offsets.view(),
                                             .lengths = call.ends.view(),
                                             .logits = logits.view()}));
  return logits.values();
}

TEST(IndexLogits, HaveTheSameBitsInPagesInOneTensorInTilesOfRowsAndOnAnyThreads) {
  TestExec exec;
  TestExec one_thread(1);
  TestExec five_threads(5);
  for (Format format : {Format::kF32, Format::kBf16}) {
    constexpr int64_t kT = 37, kL = 1100;
    RaggedCall call(kT, 5, 64, kL, format);
    for (int64_t t = 0; t < kT; ++t)
      call.ends.set(t, static_cast<float>(kL - kT + 1 + t));
    for (const std::string& variant : variants_for<IndexLogitsRagged>(call.args())) {
      call.run(exec, variant);
      const std::vector<float> whole = call.logits.values();

      for (int64_t S : {1, 16, 64, 1100})
        EXPECT_EQ(paged(exec, variant, call, S), whole) << variant << " pages of " << S;
      for (TestExec* other : {&one_thread, &five_threads}) {
        call.run(*other, variant);
        EXPECT_EQ(call.logits.values(), whole) << variant;
      }
      // Eight tokens at a time, with no more columns than they see.
      for (int64_t t = 0; t < kT; t += 8) {
        const int64_t rows = std::min<int64_t>(8, kT - t);
        const auto columns = static_cast<int64_t>(call.ends[t + rows - 1]);
        const TestTensor tile({rows, columns}, Format::kF32);
        IndexLogitsRagged::Args args = call.args();
        args.q = slice_rows(args.q, t, rows);
        args.w = slice_rows(args.w, t, rows);
        args.starts = slice_rows(args.starts, t, rows);
        args.ends = slice_rows(args.ends, t, rows);
        args.keys = slice_rows(args.keys, 0, columns);
        args.logits = tile.view();
        FATHOM_EXPECT_OK(launch<IndexLogitsRagged>(exec.with("index_logits_ragged", variant),
                                                   "index_logits", args));
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j)
            ASSERT_EQ(tile[i * columns + j], whole[static_cast<size_t>((t + i) * kL + j)]);
        }
      }
    }
  }
}

TEST(IndexLogits, NanOfAKeyStaysInItsColumnAndOfAQueryInItsRow) {
  TestExec exec;
  for (Format format : {Format::kF32, Format::kBf16}) {
    RaggedCall call(2, 4, 64, 40, format);
    call.keys.set(7 * 64 + 3, NAN);
    call.q.set((4 + 1) * 64, NAN);
    call.ends.set(1, 30);
    for (const std::string& variant : variants_for<IndexLogitsRagged>(call.args())) {
      call.run(exec, variant);
      for (int64_t j = 0; j < 40; ++j) {
        EXPECT_EQ(std::isnan(call.logits[j]), j == 7) << variant << " key " << j;
        EXPECT_EQ(std::isnan(call.logits[40 + j]), j < 30) << variant << " key " << j;
      }
      EXPECT_EQ(call.logits[40 + 30], kHidden);
    }
  }
}

TEST(IndexLogits, OfEmptyRangesAreHidden) {
  TestExec exec;
  RaggedCall call(3, 2, 64, 5, Format::kF32);
  constexpr float kStarts[] = {3, -8, 400};
  constexpr float kEnds[] = {3, -9, 0};
  for (int64_t t = 0; t < 3; ++t) {
    call.starts.set(t, kStarts[t]);
    call.ends.set(t, kEnds[t]);
  }
  for (const std::string& variant : variants_for<IndexLogitsRagged>(call.args())) {
    call.run(exec, variant);
    EXPECT_EQ(call.logits.values(), std::vector<float>(15, kHidden)) << variant;
  }
}

TEST(IndexLogits, OnAGpuCodesOf128ChannelsGoToTheTensorCores) {
  const auto variant_for = [](const IndexLogitsRagged::Args& args) {
    return gpu_variant_for<IndexLogitsRagged>(args);
  };
  const auto codes = [](int64_t H, int64_t D) { return RaggedCall(2, H, D, 70, Format::kE4m3); };
  const TestTensor scales({70, 1}, Format::kF32, 1.0f);
  const auto with_scales = [&](const RaggedCall& call) {
    IndexLogitsRagged::Args args = call.args();
    args.key_scales = scales.view();
    return args;
  };
  const RaggedCall plain = codes(64, 128);
  if (variant_for(with_scales(plain)).empty())
    GTEST_SKIP() << "this build knows no kernels of a GPU";

  EXPECT_EQ(variant_for(with_scales(plain)), "wgmma");
  EXPECT_EQ(variant_for(with_scales(codes(65, 128))), "any_layout") << "more heads than a tile";
  EXPECT_EQ(variant_for(with_scales(codes(64, 64))), "any_layout");
  EXPECT_EQ(variant_for(RaggedCall(2, 64, 128, 70, Format::kBf16).args()), "any_layout");

  const TestTensor wide({70, 136}, Format::kE4m3);
  IndexLogitsRagged::Args args = with_scales(plain);
  args.keys = slice_cols(wide.view(), 0, 128);
  EXPECT_EQ(variant_for(args), "any_layout") << "the second key is not aligned";

  const TestTensor packed({70, 64}, Format::kU8);
  const TestTensor groups({70, 4}, Format::kU8);
  args.keys = packed.view();
  args.key_scales = groups.view();
  args.key_scales.format = Format::kUe8m0;
  EXPECT_EQ(variant_for(args), "any_layout") << "e2m1 keys and e4m3 queries";
}

/// What a GPU runs for tokens of two requests, on e4m3 keys.
struct PagedOnAGpu {
  int64_t tokens = 2;
  int64_t page_size = 64;
  int64_t columns = 1;
  View tree_masks{};
  const DeviceInfo* gpu = nullptr;

  std::string variant() const {
    const auto each = static_cast<float>(tokens / 2);
    const TestTensor q({tokens, 64, 128}, Format::kE4m3);
    const TestTensor w({tokens, 64}, Format::kF32);
    const TestTensor keys({2, page_size, 128}, Format::kE4m3);
    const TestTensor scales({2, page_size, 1}, Format::kF32);
    const TestTensor table({2, 1}, Format::kI32);
    const TestTensor offsets({3}, Format::kI32, std::vector<float>{0, each, 2 * each});
    const TestTensor lengths({tokens}, Format::kI32, 1.0f);
    const TestTensor logits({tokens, columns}, Format::kF32);
    return gpu_variant_for<IndexLogitsPaged>({.q = q.view(),
                                              .w = w.view(),
                                              .keys = keys.view(),
                                              .key_scales = scales.view(),
                                              .block_table = table.view(),
                                              .q_offsets = offsets.view(),
                                              .lengths = lengths.view(),
                                              .tree_masks = tree_masks,
                                              .logits = logits.view()},
                                             gpu);
  }
};

TEST(IndexLogits, OnAGpuTilesOfOnePageAreBroughtByTheCopyEngine) {
  if (PagedOnAGpu{}.variant().empty()) GTEST_SKIP() << "this build knows no kernels of a GPU";
  const TestTensor masks({2}, Format::kI64);
  PagedOnAGpu across;
  across.page_size = 96;
  PagedOnAGpu trees;
  trees.tree_masks = masks.view();

  EXPECT_EQ(PagedOnAGpu{}.variant(), "wgmma_ring");
  EXPECT_EQ(across.variant(), "wgmma") << "a tile has rows of two pages";
  EXPECT_EQ(trees.variant(), "wgmma") << "tokens of trees have keys of their own";
}

TEST(IndexLogits, OnAGpuTheRingServesTokensOfFewOrOfVeryManyTiles) {
  DeviceInfo h200;
  h200.num_sms = 132;
  const auto variant_for = [&](int64_t tokens, int64_t columns) {
    PagedOnAGpu call;
    call.tokens = tokens;
    call.columns = columns;
    call.gpu = &h200;
    return call.variant();
  };
  if (variant_for(2, 64).empty()) GTEST_SKIP() << "this build knows no kernels of a GPU";

  constexpr int64_t kRound = 64 * 4 * 132 / 2;  // columns of two tokens that are a tile a block
  EXPECT_EQ(variant_for(2, kRound), "wgmma_ring");
  EXPECT_EQ(variant_for(2, kRound + 1), "wgmma");
  EXPECT_EQ(variant_for(2, 23 * kRound), "wgmma");
  EXPECT_EQ(variant_for(2, 24 * kRound), "wgmma_ring");
  EXPECT_EQ(variant_for(4, 64), "wgmma") << "two tokens a request";
}

/// Two requests of two tokens each and one token of padding, pages of 4 keys.
struct PagedCall {
  TestTensor q{{5, 2, 64}, Format::kBf16, 1.0f};
  TestTensor w{{5, 2}, Format::kF32, 1.0f};
  TestTensor keys{{6, 4, 64}, Format::kBf16, 1.0f};
  TestTensor table{{2, 3}, Format::kI32, std::vector<float>{0, 1, 2, 3, 4, 5}};
  TestTensor offsets{{3}, Format::kI32, std::vector<float>{0, 2, 4}};
  TestTensor lengths{{5}, Format::kI32, std::vector<float>{6, 7, 9, 10, 0}};
  TestTensor logits{{5, 11}, Format::kF32};

  IndexLogitsPaged::Args args() const {
    return {.q = q.view(),
            .w = w.view(),
            .keys = keys.view(),
            .block_table = table.view(),
            .q_offsets = offsets.view(),
            .lengths = lengths.view(),
            .logits = logits.view()};
  }
};

std::string error_of(TestExec& exec, const IndexLogitsPaged::Args& args) {
  return std::string(launch<IndexLogitsPaged>(*exec, "index_logits", args).message());
}

TEST(IndexLogitsPaged, HidesPaddingAndWhatComesLater) {
  TestExec exec;
  const PagedCall call;
  for (const std::string& variant : variants_for<IndexLogitsPaged>(call.args())) {
    FATHOM_EXPECT_OK(launch<IndexLogitsPaged>(exec.with("index_logits_paged", variant),
                                              "index_logits", call.args()));
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t j = 0; j < 11; ++j) {
        const bool seen = static_cast<float>(j) < call.lengths[t];
        EXPECT_EQ(call.logits[t * 11 + j], seen ? 128.0f : kHidden) << variant << " " << t;
      }
    }
  }
}

TEST(IndexLogitsPaged, RefusesWhatDoesNotFit) {
  TestExec exec;
  const auto expect_error = [&](const IndexLogitsPaged::Args& args, std::string_view text) {
    EXPECT_NE(error_of(exec, args).find(text), std::string::npos) << error_of(exec, args);
  };
  {
    PagedCall call;
    call.lengths.set(1, 12);
    expect_error(call.args(), "lengths[1] is 12, expected 0 to 11");
  }
  {
    PagedCall call;
    call.lengths.set(4, 1);
    expect_error(call.args(), "lengths[4] is 1, expected 0 to 0, since the token belongs to no");
  }
  {
    PagedCall call;
    call.table.set(4, 6);
    expect_error(call.args(), "page 1 is number 6");
  }
  {
    PagedCall call;
    call.table.set(2, 77);  // of no token: request 0 sees two pages
    FATHOM_EXPECT_OK(launch<IndexLogitsPaged>(*exec, "index_logits", call.args()));
  }
  {
    PagedCall call;
    call.offsets.set(2, 1);
    expect_error(call.args(), "q_offsets[2] is 1, expected 2 to 5");
  }
  {
    PagedCall call;
    IndexLogitsPaged::Args args = call.args();
    const TestTensor scales({6, 4, 1}, Format::kF32);
    args.key_scales = scales.view();
    expect_error(args, "key_scales is f32 but keys in bf16 needs none");
  }
  {
    PagedCall call;
    IndexLogitsPaged::Args args = call.args();
    args.keys = slice_cols(args.keys, 0, 32);
    expect_error(args, "q has rows of 64 channels but keys have 32");
  }
}

TEST(IndexLogitsRagged, RefusesARangeBeyondTheKeys) {
  TestExec exec;
  RaggedCall call(2, 2, 64, 5, Format::kF32);
  call.ends.set(1, 6);

  const Status status = launch<IndexLogitsRagged>(*exec, "index_logits", call.args());

  EXPECT_NE(status.message().find("token 1 sees keys 0 to 6 of which 0 to 5 exist"),
            std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace fathom
