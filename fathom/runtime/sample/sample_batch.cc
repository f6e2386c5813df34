#include "fathom/runtime/sample/sample_batch.h"

#include <algorithm>
#include <limits>

#include "fathom/base/check.h"
#include "fathom/base/checked_math.h"
#include "fathom/base/rng.h"

namespace fathom {
namespace {

bool is_altered(const SampleRow& row) {
  return row.params->has_penalties() || !row.params->logit_bias.empty() || !row.banned.empty();
}

/// Every view of a batch.
constexpr View SampleBatch::*kViews[] = {
    &SampleBatch::temperature,  &SampleBatch::top_k,       &SampleBatch::top_p,
    &SampleBatch::min_p,        &SampleBatch::uniform,     &SampleBatch::presence,
    &SampleBatch::frequency,    &SampleBatch::repetition,  &SampleBatch::token_offsets,
    &SampleBatch::bias_offsets, &SampleBatch::bias_tokens, &SampleBatch::bias_values,
    &SampleBatch::tokens,       &SampleBatch::counts,      &SampleBatch::mask_of_row,
    &SampleBatch::mask,
};

int64_t array_bytes(int64_t count) {
  return align_up<int64_t>(count * 4, SampleBatch::kAlignment);
}

/// Cuts arrays off a block, in the order of the diagram.
class Cutter {
 public:
  explicit Cutter(std::byte* block) : at_(block) {}

  /// An array with room for `most`, of which `count` are used.
  View array(int64_t count, int64_t most, Format format) {
    std::byte* begin = at_;
    at_ += array_bytes(most);
    return make_view(begin, {count}, format);
  }

 private:
  std::byte* at_;
};

void pack_row(const SampleBatch& batch, size_t i, const SampleRow& row) {
  const SamplingParams& p = *row.params;
  const bool greedy = row.greedy();
  const bool limited = !greedy && p.top_k > 0 && p.top_k < batch.num_ids;
  batch.temperature.as<float>()[i] = greedy ? 0.0f : p.temperature;
  batch.top_k.as<int32_t>()[i] = static_cast<int32_t>(limited ? p.top_k : batch.num_ids);
  batch.top_p.as<float>()[i] = greedy ? 1.0f : p.top_p;
  batch.min_p.as<float>()[i] = greedy ? 0.0f : p.min_p;
  batch.uniform.as<float>()[i] =
      Rng(row.seed, row.stream, static_cast<uint64_t>(row.position)).next_uniform();
  batch.presence.as<float>()[i] = p.presence_penalty;
  batch.frequency.as<float>()[i] = p.frequency_penalty;
  batch.repetition.as<float>()[i] = p.repetition_penalty;
}

/// Appends the lists of row i behind those of the rows before it.
void pack_lists(const SampleBatch& batch, size_t i, const SampleRow& row) {
  auto* token_offsets = batch.token_offsets.as<int32_t>();
  auto* bias_offsets = batch.bias_offsets.as<int32_t>();
  int32_t listed = token_offsets[i];
  int32_t biased = bias_offsets[i];
  if (row.params->has_penalties()) {
    const auto tokens = row.counts->tokens();
    std::ranges::copy(tokens, batch.tokens.as<int32_t>() + listed);
    std::ranges::copy(row.counts->counts(), batch.counts.as<int32_t>() + listed);
    listed += static_cast<int32_t>(tokens.size());
  }
  const auto add_bias = [&](int32_t token, float value) {
    batch.bias_tokens.as<int32_t>()[biased] = token;
    batch.bias_values.as<float>()[biased] = value;
    ++biased;
  };
  for (const auto& [token, value] : row.params->logit_bias)
    add_bias(token, value);
  for (int32_t token : row.banned)
    add_bias(token, -std::numeric_limits<float>::infinity());
  token_offsets[i + 1] = listed;
  bias_offsets[i + 1] = biased;
}

/// The mask of row i behind the `masked` of the rows before it. How many there are then.
int32_t pack_mask(const SampleBatch& batch, size_t i, const SampleRow& row, int32_t masked) {
  const bool has_mask = !row.mask.empty();
  batch.mask_of_row.as<int32_t>()[i] = has_mask ? masked : -1;
  if (!has_mask) return masked;
  FATHOM_CHECK(static_cast<int64_t>(row.mask.size()) == batch.mask.dim(1),
               "a mask has a bit for each id");
  std::ranges::copy(row.mask, batch.mask.row<uint32_t>(masked));
  return masked + 1;
}

}  // namespace

int64_t SampleRoom::bytes() const {
  return 9 * array_bytes(rows) + 2 * array_bytes(rows + 1) + 2 * array_bytes(biased) +
         2 * array_bytes(listed) + array_bytes(words);
}

SampleRoom room_of(std::span<const SampleRow> rows) {
  SampleRoom room{.rows = static_cast<int64_t>(rows.size())};
  for (const SampleRow& row : rows) {
    if (row.params->has_penalties()) {
      room.listed += static_cast<int64_t>(row.counts->tokens().size());
    }
    room.biased += static_cast<int64_t>(row.params->logit_bias.size() + row.banned.size());
    room.words += static_cast<int64_t>(row.mask.size());
  }
  return room;
}

SampleBatch pack_samples(std::byte* block,
                         const SampleRoom& room,
                         std::span<const SampleRow> rows,
                         int64_t num_rows,
                         int64_t num_ids) {
  const SampleRoom needed = room_of(rows);
  FATHOM_CHECK(room.holds(needed) && needed.rows <= num_rows && num_rows <= room.rows,
               "more rows or longer lists than a block has room for");
  SampleBatch batch{.num_ids = num_ids};
  Cutter cut(block);
  for (View* v : {&batch.temperature, &batch.top_k, &batch.top_p, &batch.min_p, &batch.uniform,
                  &batch.presence, &batch.frequency, &batch.repetition, &batch.mask_of_row}) {
    const bool is_float = v != &batch.top_k && v != &batch.mask_of_row;
    *v = cut.array(num_rows, room.rows, is_float ? Format::kF32 : Format::kI32);
  }
  batch.token_offsets = cut.array(num_rows + 1, room.rows + 1, Format::kI32);
  batch.bias_offsets = cut.array(num_rows + 1, room.rows + 1, Format::kI32);
  batch.bias_tokens = cut.array(needed.biased, room.biased, Format::kI32);
  batch.bias_values = cut.array(needed.biased, room.biased, Format::kF32);
  batch.tokens = cut.array(needed.listed, room.listed, Format::kI32);
  batch.counts = cut.array(needed.listed, room.listed, Format::kI32);
  const int64_t words = mask_words(num_ids);
  batch.mask =
      reshape(cut.array(needed.words, room.words, Format::kI32), {needed.words / words, words});

  static const SamplingParams greedy = [] {
    SamplingParams p;
    p.temperature = 0.0f;
    return p;
  }();
  const SampleRow padding{.params = &greedy};
  batch.token_offsets.as<int32_t>()[0] = 0;
  batch.bias_offsets.as<int32_t>()[0] = 0;
  int32_t masked = 0;
  for (size_t i = 0; i < static_cast<size_t>(num_rows); ++i) {
    const SampleRow& row = i < rows.size() ? rows[i] : padding;
    pack_row(batch, i, row);
    pack_lists(batch, i, row);
    masked = pack_mask(batch, i, row, masked);
    batch.altered |= is_altered(row);
    batch.drawn |= !row.greedy();
  }
  batch.masked = masked > 0;
  return batch;
}

// Offsets into lists are counted from the first row of the block.
SampleBatch SampleBatch::rows(int64_t begin, int64_t count) const {
  SampleBatch part = *this;
  for (View* v : {&part.temperature, &part.top_k, &part.top_p, &part.min_p, &part.uniform,
                  &part.presence, &part.frequency, &part.repetition, &part.mask_of_row})
    *v = slice_rows(*v, begin, count);
  for (View* v : {&part.token_offsets, &part.bias_offsets})
    *v = slice_rows(*v, begin, count + 1);
  return part;
}

SampleBatch SampleBatch::in_copy(const std::byte* block, std::byte* base, bool on_device) const {
  SampleBatch copy = *this;
  for (View SampleBatch::*view : kViews) {
    View& v = copy.*view;
    v.data = base == nullptr ? nullptr : base + (v.as<const std::byte>() - block);
    v.on_device = on_device;
  }
  return copy;
}

std::array<SampleBatch::Range, 6> SampleBatch::used(const std::byte* block) const {
  const auto range = [&](const View& list) -> Range {
    return {list.as<const std::byte>() - block, list.numel() * 4};
  };
  const Range of_rows{0, range(bias_tokens).offset};
  return {of_rows,       range(bias_tokens), range(bias_values),
          range(tokens), range(counts),      range(mask)};
}

}  // namespace fathom
