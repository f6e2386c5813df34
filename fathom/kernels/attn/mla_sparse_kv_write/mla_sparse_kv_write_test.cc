#include "fathom/kernels/attn/mla_sparse_kv_write/mla_sparse_kv_write.h"

#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

/// One page of rows of 656 bytes.
struct Page {
  std::vector<uint8_t> bytes;
  View values, rope, scales;

  explicit Page(int64_t rows) : bytes(static_cast<size_t>(rows * 656), 0xAA) {
    values = field(rows, 0, 512, Format::kE4m3);
    scales = field(rows, 512, 4, Format::kF32);
    rope = field(rows, 528, 64, Format::kBf16);
  }

  View field(int64_t rows, int64_t offset, int64_t width, Format format) {
    View v = make_view(bytes.data() + offset, {1, rows, width}, format);
    v.strides[0] = rows * 656 / element_bytes(format);
    v.strides[1] = 656 / element_bytes(format);
    return v;
  }
};

TEST(MlaSparseKvWrite, WritesTheRowOfTheFormatAndNoOther) {
  TestExec exec;
  Rng rng(2);
  TestTensor c({3, 512}, Format::kBf16);
  TestTensor k_pe({3, 64}, Format::kBf16);
  c.randomise(rng, 3.0f);
  k_pe.randomise(rng);
  const TestTensor slots({3}, Format::kI64, {3, -1, 1});
  std::vector<uint8_t> expected(4 * 656, 0xAA);
  const auto pack = [&](int64_t t, int64_t slot) {
    std::vector<float> latent(512);
    for (int64_t i = 0; i < 512; ++i)
      latent[static_cast<size_t>(i)] = c[t * 512 + i];
    ds_mla_pack_row(latent.data(), k_pe.view().row<Bf16>(t), DsMlaScale::kAmax,
                    expected.data() + slot * 656);
  };
  pack(0, 3);
  pack(2, 1);
  for (const std::string& variant : variants_of<MlaSparseKvWrite>()) {
    const Page page(4);

    FATHOM_EXPECT_OK(launch<MlaSparseKvWrite>(exec.with("mla_sparse_kv_write", variant), "test",
                                              {.c = c.view(),
                                               .k_pe = k_pe.view(),
                                               .slots = slots.view(),
                                               .values = page.values,
                                               .rope = page.rope,
                                               .scales = page.scales}));

    EXPECT_EQ(page.bytes, expected) << variant;
  }
}

TEST(MlaSparseKvWrite, RefusesASlotThatDoesNotExist) {
  TestExec exec;
  const TestTensor c({1, 512}, Format::kBf16);
  const TestTensor k_pe({1, 64}, Format::kBf16);
  const TestTensor slots({1}, Format::kI64, {2.0f});
  const Page page(2);

  const Status status = launch<MlaSparseKvWrite>(*exec, "test",
                                                 {.c = c.view(),
                                                  .k_pe = k_pe.view(),
                                                  .slots = slots.view(),
                                                  .values = page.values,
                                                  .rope = page.rope,
                                                  .scales = page.scales});

  EXPECT_NE(status.message().find("slots[0] is 2 but there are slots 0..1"), std::string::npos)
      << status.message();
  EXPECT_EQ(page.bytes, std::vector<uint8_t>(2 * 656, 0xAA));
}

}  // namespace
}  // namespace fathom
