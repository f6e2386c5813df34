#include "fathom/models/dry_records.h"

#include "fathom/trace/recorder.h"

namespace fathom {

Result<std::vector<OpRecord>> dry_records(const Model& model,
                                          const BatchShape& shape,
                                          int num_threads,
                                          DryPass pass,
                                          const DeviceInfo* gpu) {
  // The calls are counted first: how many a request in chunks of keys makes is the model's
  // business.
  Recorder counter(RecordLevel::kShapes, 1);
  FATHOM_TRY(dry_run(model, shape, num_threads, &counter, pass, gpu).status());
  Recorder recorder(RecordLevel::kShapes, counter.total());
  FATHOM_TRY(dry_run(model, shape, num_threads, &recorder, pass, gpu).status());
  return recorder.records();
}

}  // namespace fathom
