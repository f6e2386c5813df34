#include "fathom/weights/loader.h"

#include <memory>

#include "fathom/os/file.h"
#include "fathom/weights/load/checkpoint_jobs.h"
#include "fathom/weights/load/random_jobs.h"

namespace fathom {
namespace {

Result<WeightStore> filled_store(const WeightPlan& plan,
                                 const JobSource& source,
                                 ThreadPool& pool,
                                 const LoadOptions& options) {
  FATHOM_ASSIGN(WeightStore store, WeightStore::allocate(plan));
  FATHOM_ASSIGN(const std::unique_ptr<StoreSink> sink,
                make_sink(plan.placement(), store.data(), options.staging_bytes));
  FATHOM_TRY(fill_store(plan, source, *sink, pool, options));
  return store;
}

}  // namespace

Result<WeightStore> load_weights(const WeightPlan& plan,
                                 const Checkpoint& checkpoint,
                                 ThreadPool& pool,
                                 const LoadOptions& options) {
  FATHOM_TRY(check_index_tables(plan, checkpoint));
  return filled_store(plan, checkpoint_source(checkpoint), pool, options);
}

Result<WeightStore> random_weights(const WeightPlan& plan,
                                   ThreadPool& pool,
                                   uint64_t seed,
                                   const LoadOptions& options) {
  return filled_store(plan, random_source(plan, seed), pool, options);
}

Result<std::string> read_model_text(const std::string& directory,
                                    std::string_view name,
                                    int64_t max_bytes) {
  return read_file(join_path(directory, name), max_bytes);
}

}  // namespace fathom
