// The sixty kernels of the reference stack: each has a home here, and the two that are no kernels
// do what the reference's do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "fathom/bench/suites/reference_names.h"
#include "fathom/kernels/attn/mla_decode/mla_decode.h"
#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/os/file.h"
#include "fathom/text/json.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

TEST(ReferenceCoverage, SixtyNamesEachOnce) {
  std::set<std::string_view> names;
  for (const ReferenceName& n : reference_names())
    names.insert(n.name);

  EXPECT_EQ(reference_names().size(), 60u);
  EXPECT_EQ(names.size(), 60u);
}

TEST(ReferenceCoverage, TheNamesAreThoseOfTheRecordedCalls) {
  const std::string text =
      read_file(FATHOM_SOURCE_DIR "/docs/reference-calls.json", 1 << 20).value();
  const Json calls = parse_json(text, {}, "reference-calls.json").value();
  std::set<std::string> recorded;
  for (const Json& call : calls.find("calls")->items())
    recorded.insert(std::string(call.find("name")->as_string()));
  std::set<std::string> listed;
  for (const ReferenceName& n : reference_names())
    listed.emplace(n.name);

  EXPECT_EQ(listed, recorded);
}

TEST(ReferenceCoverage, EveryNameHasAHome) {
  const std::vector<ReferenceHome> homes = reference_homes();

  for (const ReferenceHome& home : homes)
    EXPECT_TRUE(home.covered) << home.name << " is in no line of kernels.def";
  EXPECT_EQ(reference_coverage_line(homes), "60 of 60 reference names covered");
}

TEST(ReferenceCoverage, KernelsAreFoundByTheirReferenceNamesAndHaveCases) {
  int kernels = 0;
  for (const ReferenceHome& home : reference_homes()) {
    if (home.status != "covered") continue;
    ++kernels;
    EXPECT_EQ(find_kernel(home.name), home.kernel) << home.name;
    EXPECT_FALSE(all_cases().of(home.home).empty()) << home.name;
  }
  EXPECT_EQ(kernels, 58);
}

TEST(ReferenceCoverage, NoTwoKernelsHaveOneReferenceName) {
  std::set<std::string_view> names;
  for (const KernelEntry& kernel : all_kernels())
    for (std::string_view name : kernel.info.reference_names)
      EXPECT_TRUE(names.insert(name).second) << name;
}

// ---- cutlass_mla_get_workspace_size ----

// One decode call of `batch` requests of `tokens` keys each, in pages of 16.
class DecodeCall {
 public:
  DecodeCall(int64_t batch, int64_t tokens) {
    constexpr int64_t kHeads = 2, kDim = 48, kLatent = 32, kPage = 16;
    const int64_t pages = (tokens + kPage - 1) / kPage;
    q_.resize(static_cast<size_t>(batch * kHeads * kDim));
    cache_.resize(static_cast<size_t>(pages * kPage * kDim));
    table_.resize(static_cast<size_t>(batch * pages));
    lens_.assign(static_cast<size_t>(batch), static_cast<int32_t>(tokens));
    o_.resize(static_cast<size_t>(batch * kHeads * kLatent));
    for (size_t i = 0; i < q_.size(); ++i)
      q_[i] = static_cast<float>(i % 7) * 0.25f - 0.75f;
    for (size_t i = 0; i < cache_.size(); ++i)
      cache_[i] = static_cast<float>(i % 11) * 0.125f - 0.5f;
    for (int64_t b = 0; b < batch; ++b)
      std::iota(table_.begin() + b * pages, table_.begin() + (b + 1) * pages, 0);
    args_.q = make_view(q_.data(), {batch, kHeads, kDim}, Format::kF32);
    args_.cache = make_view(cache_.data(), {pages, kPage, kDim}, Format::kF32);
    args_.block_table = make_view(table_.data(), {batch, pages}, Format::kI32);
    args_.kv_lens = make_view(lens_.data(), {batch}, Format::kI32);
    args_.o = make_view(o_.data(), {batch, kHeads, kLatent}, Format::kF32);
  }

  const MlaDecode::Args& args() const { return args_; }

  const std::vector<float>& result() const { return o_; }

  // Runs with exactly `bytes` of scratch memory.
  Status run(int64_t bytes, int num_threads) {
    ThreadPool pool(num_threads, PinThreads::kNo);
    Result<Buffer> buffer = Buffer::allocate(DeviceKind::kCpu, bytes, "workspace of a test");
    if (!buffer.ok()) return std::move(buffer).status();
    Arena scratch(std::move(buffer).value());
    Exec ex;
    ex.kernels = &cpu_kernels();
    ex.pool = &pool;
    ex.scratch = &scratch;
    ex.num_threads = num_threads;
    return launch<MlaDecode>(ex, "decode", args_);
  }

 private:
  std::vector<float> q_, cache_, o_;
  std::vector<int32_t> table_, lens_;
  MlaDecode::Args args_{};
};

TEST(WorkspaceSize, IsWhatADecodeCallTakesAndNotAByteMore) {
  for (const int threads : {1, 2, 3}) {
    DecodeCall call(3, 700);
    const int64_t bytes = MlaDecode::workspace(call.args(), threads);
    ASSERT_GT(bytes, 0);

    EXPECT_EQ(call.run(bytes, threads).message(), "") << threads;
    EXPECT_EQ(call.run(bytes - 1, threads).code(), StatusCode::kOutOfMemory) << threads;
  }
}

TEST(WorkspaceSize, GrowsWithThreadsAndReadsNoData) {
  DecodeCall call(2, 5000);
  MlaDecode::Args shapes = call.args();
  for (View* v : {&shapes.q, &shapes.cache, &shapes.block_table, &shapes.kv_lens, &shapes.o})
    v->data = nullptr;

  EXPECT_EQ(MlaDecode::workspace(shapes, 2), MlaDecode::workspace(call.args(), 2));
  EXPECT_GT(MlaDecode::workspace(shapes, 4), MlaDecode::workspace(shapes, 1));
}

TEST(WorkspaceSize, MoreThanNeededChangesNoBit) {
  DecodeCall exact(2, 1300);
  DecodeCall ample(2, 1300);
  const int64_t bytes = MlaDecode::workspace(exact.args(), 2);

  ASSERT_TRUE(exact.run(bytes, 2).ok());
  ASSERT_TRUE(ample.run(4 * bytes + 12345, 2).ok());

  EXPECT_EQ(exact.result(), ample.result());
}

// ---- weak_ref_tensor ----

TEST(WeakReference, AViewSharesAddressShapeAndStrides) {
  std::vector<float> memory(24);
  const View tensor = slice_cols(make_view(memory.data(), {4, 6}, Format::kF32), 1, 3);

  const View weak = tensor;

  EXPECT_EQ(weak.data, tensor.data);
  EXPECT_EQ(weak.dims, tensor.dims);
  EXPECT_EQ(weak.strides, tensor.strides);
  EXPECT_EQ(weak.format, tensor.format);
  EXPECT_EQ(weak.stride(0), 6) << "a strided tensor stays strided";
}

TEST(WeakReference, WritesThroughOneAreSeenThroughTheOther) {
  std::vector<float> memory(6, 1.0f);
  const View tensor = make_view(memory.data(), {2, 3}, Format::kF32);
  const View weak = tensor;

  weak.row<float>(1)[2] = 42.0f;

  EXPECT_EQ(tensor.row<float>(1)[2], 42.0f);
  EXPECT_EQ(memory[5], 42.0f);
}

TEST(WeakReference, DoesNotKeepMemoryAlive) {
  std::weak_ptr<std::vector<float>> watch;
  View weak;
  {
    auto owner = std::make_shared<std::vector<float>>(8, 0.0f);
    watch = owner;
    weak = make_view(owner->data(), {8}, Format::kF32);
    EXPECT_FALSE(watch.expired());
  }

  EXPECT_TRUE(watch.expired()) << "the view held its memory";
  EXPECT_EQ(weak.dim(0), 8) << "what it says of the memory stays";
}

}  // namespace
}  // namespace fathom
