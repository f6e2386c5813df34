#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/mhc/mhc_chain/mhc_chain.h"
#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"

namespace fathom {
namespace {

/// The three kernels, picked by their own tables for this machine and these formats.
Status run_parts(Exec& ex, const MhcChain::Args& a) {
  FATHOM_TRY(launch<MhcPost>(ex, "hc_post", MhcChain::post_of(a)));
  FATHOM_TRY(launch<MhcPre>(ex, "hc_pre", MhcChain::pre_of(a)));
  return launch<RmsNorm>(ex, "norm", {.x = a.h, .w = a.norm, .y = a.h, .eps = a.norm_eps});
}

Status run_composed(Exec& ex, const MhcChain::Args& a) {
  // What launch() has taken for this call is what mhc_pre takes again; the others need none.
  const int64_t bytes = MhcChain::workspace(a, ex.num_threads);
  ex.scratch->release(ex.scratch->mark() - align_up(bytes, Arena::kAlignment));
  Recorder* const recorder = std::exchange(ex.recorder, nullptr);  // one record, not three
  Status status = run_parts(ex, a);
  ex.recorder = recorder;
  return status;
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status MhcChain::check(const Args& a) {
  FATHOM_TRY(MhcPost::check(post_of(a)));
  FATHOM_TRY(check_same_format("out", a.out, "h", a.h));
  return MhcPre::check(pre_of(a));
}

int64_t MhcChain::workspace(const Args& a, int num_threads) {
  return MhcPre::workspace(pre_of(a), num_threads);
}

constinit const VariantTable<MhcChain> mhc_chain_cpu{
    {"composed", Isa::kPortable, "", kTraits, run_composed},
};

}  // namespace fathom
