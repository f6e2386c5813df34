#include "fathom/weights/weight_store.h"

#include <utility>

#include "fathom/device/upload.h"

namespace fathom {

WeightStore WeightStore::describe(const WeightPlan& plan) {
  WeightStore store;
  store.placement_ = plan.placement();
  store.bytes_ = plan.total_bytes();
  store.summary_ = plan.summary();
  return store;
}

Result<WeightStore> WeightStore::allocate(const WeightPlan& plan) {
  WeightStore store = describe(plan);
  FATHOM_ASSIGN(store.memory_,
                Buffer::allocate(plan.placement().device, plan.total_bytes(), "weights"));
  plan.bind(store.memory_.data());
  return store;
}

WeightStore WeightStore::dry(const WeightPlan& plan) {
  WeightStore store = describe(plan);
  plan.bind(nullptr);
  return store;
}

Result<View> WeightStore::constant(std::string_view what,
                                   std::initializer_list<int64_t> dims,
                                   Format format,
                                   const char* axes,
                                   const std::function<void(std::byte*)>& fill) {
  View view = make_view(nullptr, dims, format, axes);
  if (data() == nullptr) return view;
  const int64_t bytes = view.numel() * element_bytes(format);
  FATHOM_ASSIGN(Buffer table, Buffer::allocate(DeviceKind::kCpu, bytes, what));
  fill(table.data());
  if (!placement_.is_host()) {
    FATHOM_ASSIGN(Buffer there, Buffer::allocate(placement_.device, bytes, what));
    FATHOM_TRY(copy_to_gpu(there.data(), {table.data(), static_cast<size_t>(bytes)}));
    table = std::move(there);
  }
  view.data = table.data();
  view.on_device = table.on_device();
  constants_.push_back(std::move(table));
  return view;
}

}  // namespace fathom
