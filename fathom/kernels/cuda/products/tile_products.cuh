// Products of many rows on the tensor cores of Hopper.
//
// A block takes 128 to 256 rows of w times kTokens rows of x. Weights are the first operand of
// wgmma, so that 4-bit and 8-bit weights can be decoded into its registers, and few rows of x waste
// no work. (Where many rows of x have scales that change with every stage, x is the first operand:
// kXFirst.) One warpgroup brings stages of k to shared memory. Two to four compute, each a share of
// the rows of w; while one of them decodes or scales, another multiplies. With sixteen rows of x or
// fewer each warp multiplies for itself.
//
// Tiles come to blocks in one of three ways:
//   blocks stay and take tile after tile;
//   where a matrix has too few tiles, the blocks of a cluster share the k of one tile and add up
//   their sums in the order of the slices;
//   all blocks share all tiles equally, and lend each other sums of parts (Codec::kBlocksShare).
//
// Shared memory: stages of [x: kTokens rows in panels of 128 bytes][w], then what comes beside them
// (TileSide), outputs on their way, barriers, and the first tile of every expert. Where rows of w
// are short, one stage of w, in a ring of its own, serves several of x.
#pragma once

#include "fathom/kernels/cuda/products/bring_tiles.cuh"
#include "fathom/kernels/cuda/products/tile_output.cuh"

namespace fathom::cuda {

/// The products of a stage; `first` is the address of this warpgroup's 64 rows of the first
/// operand.
template <class Codec, int kTokens>
__device__ __forceinline__ void multiply_stage(float (&d)[kTokens / 2],
                                               uint32_t first,
                                               uint32_t second,
                                               bool accumulate) {
  const RowsOperand a(first);
  const RowsOperand b(second);
#pragma unroll
  for (uint32_t at = 0; at < kPanelRowBytes; at += 32) {
    if constexpr (Codec::kCodes) {
      multiply_codes(d, a.at(at), b.at(at), accumulate || at > 0);
    } else {
      multiply_rows(d, a.at(at), b.at(at), accumulate || at > 0);
    }
  }
}

template <class Codec, int kTokens, int kSteps>
__device__ __forceinline__ void multiply_fragments(float (&d)[kTokens / 2],
                                                   const uint32_t (&a)[kSteps][4],
                                                   uint32_t x,
                                                   int first,
                                                   bool accumulate) {
  using Memory = TileMemory<Codec, kTokens>;
  const RowsOperand b(x);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int step = first + i;
    const uint64_t x_step =
        b.at(static_cast<uint32_t>(step / 4 * Memory::kXPanelBytes + step % 4 * 32));
    if constexpr (Codec::kCodes) {
      multiply_codes(d, a[i], x_step, accumulate || i > 0);
    } else {
      multiply_rows(d, a[i], x_step, accumulate || i > 0);
    }
  }
}

/// One warpgroup's sums of a tile over the stages of this block.
template <class Codec, int kTokens>
class TileSums {
 public:
  using Memory = TileMemory<Codec, kTokens>;
  using Walk = TileWalk<Codec, kTokens>;
  using Places = TilePlaces<Codec, kTokens>;
  static constexpr int kSums = kTokens / 2;
  static constexpr int kRowBlocks = Codec::kRowBlocks;
  static constexpr bool kFirstIsX = kXFirst<Codec, kTokens>;
  /// Products of few rows of x are too short to wait for, and four warpgroups need no order.
  static constexpr bool kTurns =
      kFirstIsX || (Codec::kDecoded && Codec::kGroups == 2 && kTokens > 64);
  /// Whether warps multiply each for itself.
  static constexpr bool kWarpsMultiply = Codec::kDecoded && Memory::kXEvery > 1 && kTokens <= 16;
  /// Steps of 16 k that are decoded at once: as many as registers hold twice beside the sums.
  static constexpr int kBite = Codec::kGroups == 4 && kTokens > 64 ? 2 : Codec::kSteps;

  __device__ TileSums(Places at, int wg)
      : at_(at), wg_(wg), rows_(static_cast<uint32_t>(wg * 64 * kRowBlocks * Codec::kWRow)) {
    const auto row = static_cast<uint32_t>((warp_id() & 3) * 16 + (lane_id() >> 2) + wg * 64);
    if constexpr (Codec::kDecoded) w_place_ = kept(Codec::w_place(row));
    if constexpr (requires { Codec::side_place(row); }) side_place_ = kept(Codec::side_place(row));
    if constexpr (kFirstIsX) side_place_ = kept(scales_place(row % 64));
    if constexpr (kTurns && Codec::kSide == TileSide::kTables)
      same_wg_ = static_cast<int>(kept(threadIdx.x / kWarpgroup));
    if (kTurns && wg == 1) pass_turn();
  }

  /// After the last tile: takes the turn that is left.
  __device__ void finish() {
    if (kTurns && wg_ == 0) take_turn();
  }

  float d[kRowBlocks][kSums];  ///< of 64 rows of w each

  __device__ __forceinline__ void run(Walk& walk, const ProductTile& tile) {
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kSums; ++i)
        d[block][i] = 0.0f;
    }
    if (walk.begin >= walk.end) return;
    if constexpr (kFirstIsX) {
      add_rows(walk);
    } else if constexpr (Codec::kAddEvery > 0) {
      add_parts(walk, tile);
    } else if constexpr (kWarpsMultiply) {
      add_by_warps(walk);
    } else if constexpr (Codec::kDecoded) {
      add_decoded(walk);
    } else {
      add_plain(walk);
    }
  }

 private:
  __device__ __forceinline__ void wait_full(const Walk& walk) {
    barrier_wait(at_.full(walk.stage), walk.parity);
  }

  /// A product with fragments in registers holds its warp until it begins, so the warp cannot
  /// decode meanwhile. So the warpgroups take turns: one decodes (or, with x first, scales) while
  /// the other multiplies.
  __device__ __forceinline__ void take_turn() {
    if constexpr (!kTurns) return;
    named_sync(4 + wg_, 2 * kWarpgroup);
  }

  /// The same, once all fragments are there. The barrier's number is made to look as if it depended
  /// on them: otherwise the compiler decodes half of them after the turn has begun.
  template <int kSteps>
  __device__ __forceinline__ void take_turn_after(const uint32_t (&a)[kSteps][4]) {
    if constexpr (!kTurns) return;
    uint32_t all = ~0u;
#pragma unroll
    for (int i = 0; i < 4 * kSteps; ++i)
      all &= a[i / 4][i % 4];
    named_sync(4 + (all == ~0u ? same_wg_ : wg_), 2 * kWarpgroup);
  }

  __device__ __forceinline__ void pass_turn() {
    if constexpr (!kTurns) return;
    named_arrive(4 + (wg_ ^ 1), 2 * kWarpgroup);
  }

  /// Operands in shared memory: a stage is given back when the products of the next are given out.
  __device__ __forceinline__ void add_plain(Walk& walk) {
    int previous = 0;
    for (int k = walk.begin; k < walk.end; ++k, walk.next_stage()) {
      wait_full(walk);
      begin_products();
      multiply_stage<Codec, kTokens>(d[0], at_.w(walk.stage) + rows_, at_.x(walk.stage),
                                     k > walk.begin);
      commit_products();
      wait_products<1>();
      if (k > walk.begin) warp_arrive(at_.free(previous));
      previous = walk.stage;
    }
    wait_products<0>();
    warp_arrive(at_.free(previous));
  }

  /// For warp_arrive_after.
  __device__ __forceinline__ static uint32_t hidden_zero(const Walk& walk) {
    return static_cast<uint32_t>(walk.plan.split >> 31);
  }

  static constexpr int kOfStage = kBite > 0 ? Codec::kSteps / kBite : 0;  ///< bites
  static constexpr int kOfX = Memory::kXEvery * kOfStage;                 ///< of a slot of x
  static constexpr int kBites = Codec::kWEvery * kOfStage;                ///< of one of weights

  /// Bites that are left of the stage of weights that begins with stage k of x.
  __device__ __forceinline__ static int bites_from(const Walk& walk, int k) {
    return min((walk.end - k) * kOfStage, kBites);
  }

  /// Bite `i` of the stage of weights that begins with stage k of x. Weights are free again once
  /// they are in registers.
  __device__ __forceinline__ void decode(Walk& walk, int k, int i, uint32_t (&a)[kBite][4]) {
    if (i == 0) barrier_wait(at_.w_full(walk.w_stage), walk.w_parity);
    Codec::decode(at_.w(walk.w_stage) + w_place_, at_.side(walk.w_stage) + side_place_,
                  i / kOfStage, i % kOfStage * kBite, a);
    if (i + 1 < bites_from(walk, k)) return;
    uint32_t loaded = 0;
#pragma unroll
    for (int step = 0; step < kBite; step += 2)
      loaded |= a[step][0] | a[step][1];  // of both rows' codes and scales
    warp_arrive_after(at_.w_free(walk.w_stage), loaded, hidden_zero(walk));
    walk.next_w_stage();
  }

  /// Fragments in registers: the next ones are decoded while these multiply.
  __device__ __forceinline__ void add_decoded(Walk& walk) {
    static_assert(Memory::kOwnRing, "weights are decoded before x has come");
    static_assert(kBites % 2 == 0, "each stage of weights begins with the same fragments");
    uint32_t a[2][kBite][4];
    decode(walk, walk.begin, 0, a[0]);
    int previous = -1;
    for (int k = walk.begin; k < walk.end; k += Codec::kWEvery) {
      const int bites = bites_from(walk, k);
#pragma unroll
      for (int i = 0; i < kBites; ++i) {
        if (i >= bites) break;
        if (i % kOfX == 0) wait_full(walk);
        take_turn();
        begin_products();
        multiply_fragments<Codec, kTokens>(d[0], a[i % 2], at_.x(walk.stage), i % kOfX * kBite,
                                           k > walk.begin || i > 0);
        commit_products();
        pass_turn();
        wait_products<1>();
        if (i % kOfX == 0) {
          if (previous >= 0) warp_arrive(at_.free(previous));
          previous = walk.stage;
        }
        if (i % kOfX == kOfX - 1 || i + 1 == bites) walk.next_stage();
        if (i + 1 < bites) {
          decode(walk, k, i + 1, a[(i + 1) % 2]);
        } else if (k + Codec::kWEvery < walk.end) {
          decode(walk, k + Codec::kWEvery, 0, a[(i + 1) % 2]);
        }
      }
    }
    wait_products<0>();
    warp_arrive(at_.free(previous));
  }

  /// The same by products of single warps. With so few rows of x a warpgroup's product waits longer
  /// for its operands in registers than it multiplies, and its warps cannot decode meanwhile.
  __device__ __forceinline__ void add_by_warps(Walk& walk) {
    static_assert(Memory::kOwnRing && Memory::kXEvery == Codec::kWEvery && kTokens == 16);
    const auto lane = static_cast<uint32_t>(lane_id());
    // Lane 8 i + r names row r of matrix i: of tokens r and 8 behind it, of two chunks of eight k.
    const uint32_t token = (lane & 7) + (lane >> 4) * 8;
    const uint32_t chunk = (lane >> 3 & 1) ^ (lane & 7);
    const uint32_t place = token * kPanelRowBytes + (chunk << 4);
    for (int k = walk.begin; k < walk.end; k += Codec::kWEvery) {
      const int bites = bites_from(walk, k);
      const uint32_t x = at_.x(walk.stage) + place;
#pragma unroll
      for (int i = 0; i < kBites; ++i) {
        if (i >= bites) break;
        uint32_t a[kBite][4];
        decode(walk, k, i, a);
        if (i == 0) wait_full(walk);
#pragma unroll
        for (int s = 0; s < kBite; ++s) {
          const int step = i * kBite + s;
          const uint32_t from = (x ^ static_cast<uint32_t>(step % 4 * 32)) +
                                static_cast<uint32_t>(step / 4 * Memory::kXPanelBytes);
          uint32_t b[4];
          load_matrices(b, from);
          float(&low)[4] = reinterpret_cast<float(&)[4]>(d[0][0]);
          float(&high)[4] = reinterpret_cast<float(&)[4]>(d[0][4]);
          mma_16x8x16(low, a[s][0], a[s][1], a[s][2], a[s][3], b[0], b[1]);
          mma_16x8x16(high, a[s][0], a[s][1], a[s][2], a[s][3], b[2], b[3]);
        }
      }
      warp_arrive_after(at_.free(walk.stage), __float_as_uint(d[0][kSums - 1]), hidden_zero(walk));
      walk.next_stage();
    }
  }

  /// Sums of 128 k of their own, added up in float32 with their scales.
  __device__ __forceinline__ void add_parts(Walk& walk, const ProductTile& tile) {
    float part[kSums];
    // A warpgroup has half of 128 rows of w, or 128 of 256.
    // With a gate, a warp has eight gate rows and the eight up rows of the same outputs.
    constexpr bool kTwoScales = kHasBlockScales<Codec> && kGated<Codec>;
    const int output = (tile.row_tile * kTileRows<Codec> + (wg_ * 4 + (warp_id() & 3)) * 16) / 2;
    const int64_t block_row =
        kTwoScales ? output / kBlockK
                   : int64_t{tile.row_tile} * kRowBlocks + (kRowBlocks > 1 ? wg_ : 0);
    const int64_t up_row = (walk.c.N / 2 + output) / kBlockK;
    float scale =
        kHasBlockScales<Codec> ? block_scale(walk.c, tile.e, block_row, walk.begin) : 1.0f;
    float up_scale = kTwoScales ? block_scale(walk.c, tile.e, up_row, walk.begin) : 1.0f;
    for (int k = walk.begin; k < walk.end; ++k, walk.next_stage()) {
      const bool begins = (k - walk.begin) % Codec::kAddEvery == 0;
      const bool ends =
          (k - walk.begin) % Codec::kAddEvery == Codec::kAddEvery - 1 || k + 1 == walk.end;
      wait_full(walk);
      const float now = scale;
      const float up_now = up_scale;
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        multiply_part(walk, k, block, part, !begins);
        if constexpr (kHasBlockScales<Codec>) {
          if (block == 0 && k + 1 < walk.end) {
            scale = block_scale(walk.c, tile.e, block_row, k + 1);
            if constexpr (kTwoScales) up_scale = block_scale(walk.c, tile.e, up_row, k + 1);
          }
        }
        wait_products<0>();
        if constexpr (Codec::kSide == TileSide::kTokenScales) {
          add_scaled(d[block], part, at_.side(walk.stage));
        } else if constexpr (Codec::kSide == TileSide::kTables) {
          add_scaled(d[block], part, at_.side(walk.stage) + kTileRows<Codec> * kSideRowBytes);
        } else if (ends) {
#pragma unroll
          for (int i = 0; i < kSums; ++i)
            d[block][i] = fmaf(kTwoScales && (i & 2) != 0 ? up_now : now, part[i], d[block][i]);
        }
      }
      warp_arrive_after(at_.free(walk.stage), __float_as_uint(d[kRowBlocks - 1][kSums - 1]),
                        hidden_zero(walk));
    }
  }

  /// Where the scales of a lane's first row of x are among those of a stage.
  __device__ __forceinline__ uint32_t scales_place(uint32_t row) const {
    const SumsPlace place = sums_place<Codec, kTokens>(wg_, 0);
    return 4 * (static_cast<uint32_t>(place.row + place.token) + row);
  }

  /// The same with x as the first operand: a lane has two scales, there before the products are.
  /// Warpgroups that began together would multiply together and then scale together, with idle
  /// tensor cores: each begins when the first quarter of the other's products is done.
  __device__ __forceinline__ void add_rows(Walk& walk) {
    static_assert(Codec::kCodes && Codec::kGroups == 2 && kRowBlocks <= 2 && Memory::kXPanels == 1,
                  "what sums_place shares out, and one panel of 128 k");
    float part[kSums];
    for (int k = walk.begin; k < walk.end; ++k, walk.next_stage()) {
      wait_full(walk);
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        const SumsPlace place = sums_place<Codec, kTokens>(wg_, block);
        const uint32_t side = at_.side(walk.stage) + side_place_ + 256 * block;
        const float scale = load_shared_float(side);
        const float scale_8 = load_shared_float(side + 32);
        const RowsOperand x(at_.x(walk.stage) +
                            static_cast<uint32_t>(place.token * kPanelRowBytes));
        const RowsOperand w(at_.w(walk.stage) + static_cast<uint32_t>(place.row * Codec::kWRow));
        take_turn();
        begin_products();
        multiply_codes(part, x.at(0), w.at(0), false);
        commit_products();
#pragma unroll
        for (uint32_t i = 32; i < kPanelRowBytes; i += 32)
          multiply_codes(part, x.at(i), w.at(i), true);
        commit_products();
        wait_products<1>();
        pass_turn();
        wait_products<0>();
        if (block + 1 == kRowBlocks) warp_arrive(at_.free(walk.stage));
#pragma unroll
        for (int i = 0; i < kSums; ++i)
          d[block][i] = fmaf(i & 2 ? scale_8 : scale, part[i], d[block][i]);
      }
    }
  }

  __device__ __forceinline__ void multiply_part(
      Walk& walk, int k, int block, float (&part)[kSums], bool accumulate) {
    if constexpr (Codec::kDecoded) {
      uint32_t a[Codec::kSteps][4];
      if constexpr (Codec::kSide == TileSide::kTables) {
        Codec::decode(at_.w(walk.stage) + w_place_, at_.side(walk.stage) + side_place_, a);
        take_turn_after(a);
      } else {
        Codec::decode(at_.w(walk.stage) + w_place_, a);
        take_turn();
      }
      begin_products();
      multiply_fragments<Codec, kTokens>(part, a, at_.x(walk.stage), 0, accumulate);
      commit_products();
      pass_turn();
      return;
    } else {
      begin_products();
      multiply_stage<Codec, kTokens>(
          part, at_.w(walk.stage) + rows_ + static_cast<uint32_t>(block * 64 * Codec::kWRow),
          at_.x(walk.stage), accumulate);
    }
    commit_products();
  }

  __device__ __forceinline__ static void add_scaled(float (&d)[kSums],
                                                    const float (&part)[kSums],
                                                    uint32_t side) {
    const uint32_t mine = side + 8 * (static_cast<uint32_t>(lane_id()) & 3);
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      float2 tokens;
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(tokens.x), "=f"(tokens.y)
                   : "r"(mine + 32 * static_cast<uint32_t>(j)));
      d[4 * j] = fmaf(tokens.x, part[4 * j], d[4 * j]);
      d[4 * j + 1] = fmaf(tokens.y, part[4 * j + 1], d[4 * j + 1]);
      d[4 * j + 2] = fmaf(tokens.x, part[4 * j + 2], d[4 * j + 2]);
      d[4 * j + 3] = fmaf(tokens.y, part[4 * j + 3], d[4 * j + 3]);
    }
  }

  Places at_;
  int wg_;
  int same_wg_ = 0;  ///< as wg_, which the compiler does not know; of fragments made of tables
  uint32_t rows_;
  uint32_t w_place_ = 0;  ///< of this lane's rows in a stage, if they are decoded
  uint32_t side_place_ = 0;
};

// ---- the kernel ----

/// Registers of a thread that brings and of one that computes: together what the block starts with.
template <class Codec, int kTokens>
inline constexpr int kFewRegisters = Codec::kSide == TileSide::kTables ? 56
                                     : Codec::kGroups == 2             ? 40
                                     : Codec::kGroups == 3             ? 56
                                     : kTokens <= 64                   ? 64
                                                                       : 32;
template <class Codec, int kTokens>
inline constexpr int kManyRegisters = Codec::kSide == TileSide::kTables ? 224
                                      : Codec::kGroups == 2             ? 232
                                      : Codec::kGroups == 3             ? 152
                                      : kTokens <= 64                   ? 104
                                                                        : 112;

/// The tiles of a block: their sums become rows of y, or lie in shared memory for combine_slices.
template <class Codec, int kTokens>
__device__ __forceinline__ void compute_tiles(TileWalk<Codec, kTokens> walk,
                                              const TilePlaces<Codec, kTokens>& at,
                                              float* sums,
                                              int wg) {
  constexpr int kPitch = TileMemory<Codec, kTokens>::kSumPitch;
  constexpr bool kFirstIsX = kXFirst<Codec, kTokens>;
  const ProductCall& c = walk.c;
  const bool split = !Codec::kBlocksShare && !kGated<Codec> && walk.plan.split > 1;
  bool y_may_be_in_use = true;
  TileSums<Codec, kTokens> mine(at, wg);
  for (; walk.more(); walk.next_item()) {
    const ProductTile tile = walk.tile();
    mine.run(walk, tile);
    if (y_may_be_in_use) wait_for_previous();
    y_may_be_in_use = false;
    if constexpr (Codec::kBlocksShare) {
      constexpr int kThreads = Codec::kGroups * kWarpgroup;
      if (walk.end < walk.plan.stages) {
        lend_sums<kThreads>(mine.d[0], walk.plan);
        continue;
      }
      if (walk.begin > 0)
        take_sums<kThreads>(mine.d[0], walk.plan, walk.plan.block_of(walk.item * walk.plan.units));
    }
    // Nobody writes over a stage that another warpgroup still multiplies.
    if (split) named_sync(1, Codec::kGroups * kWarpgroup);
#pragma unroll
    for (int block = 0; block < Codec::kRowBlocks; ++block) {
      const SumsPlace place = sums_place<Codec, kTokens>(wg, block);
      if constexpr (kGated<Codec>) {
        store_gated_tile(TileOutput(c, tile, Codec::kFactor), mine.d[block],
                         (tile.row_tile * kTileRows<Codec> + place.row) / 2, at.out(wg), 2 + wg);
      } else if (split) {
        keep_sums<kFirstIsX, kPitch>(mine.d[block], sums, place.token, place.row);
      } else {
        store_tile<kFirstIsX>(TileOutput(c, tile, Codec::kFactor), mine.d[block], place.token,
                              tile.row_tile * kTileRows<Codec> + place.row, at.out(wg), 2 + wg);
      }
    }
  }
  mine.finish();
}

template <class Codec, int kTokens>
__global__ void __launch_bounds__(kTileThreadsOfProduct<Codec>, 1)
    tile_products(const __grid_constant__ TileMaps maps, ProductCall c, TilePlan plan) {
  using Memory = TileMemory<Codec, kTokens>;
  extern __shared__ unsigned char raw_shared[];
  const uint32_t raw = shared_address(raw_shared);
  const uint32_t shared = (raw + 1023) & ~1023u;
  unsigned char* const base = raw_shared + (shared - raw);
  const TilePlaces<Codec, kTokens> at{kept(shared)};
  auto* const starts = reinterpret_cast<int*>(base + Memory::kStartsAt);
  auto* const sums = reinterpret_cast<float*>(base);
  if (threadIdx.x == 0) {
    prefetch_map(maps.x);
    prefetch_map(maps.w);
    at.init();
  }
  if (!begins_early(c)) wait_for_previous();
  if (c.offsets != nullptr) find_expert_tiles<kTokens>(c, plan, starts);
  __syncthreads();
  TileWalk<Codec, kTokens> walk(c, plan, starts);
  const int wg = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (wg == Codec::kGroups) {
    give_registers<kFewRegisters<Codec, kTokens>>();
    bring_tiles<Codec, kTokens>(maps, walk, at);
    if (Codec::kBlocksShare || kGated<Codec> || plan.split == 1) return;
    __syncwarp();
    cluster_sync();
  } else {
    take_registers<kManyRegisters<Codec, kTokens>>();
    compute_tiles<Codec, kTokens>(walk, at, sums, wg);
    if (Codec::kBlocksShare || kGated<Codec> || plan.split == 1) return;
    __syncwarp();
    cluster_sync();
    TileWalk<Codec, kTokens> whole(c, plan, starts);
    combine_slices<kTileRows<Codec>, Memory::kSumPitch, Codec::kGroups * kWarpgroup>(
        TileOutput(c, whole.tile(), Codec::kFactor), sums, plan.split);
  }
  cluster_sync();  // nobody leaves what another still reads
}

}  // namespace fathom::cuda
