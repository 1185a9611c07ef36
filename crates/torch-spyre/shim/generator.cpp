// Device generators that wrap CPU generators.
//
// Locks: torch's callers hold the wrapper's mutex around its methods, and a CPU kernel holds the inner
// generator's mutex while it draws. The methods therefore also take the inner mutex; the order is always
// wrapper, then inner.
#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>
#include <vector>

#include "device.h"

namespace spyre {
namespace {

class SpyreGenerator final : public c10::GeneratorImpl {
  public:
    SpyreGenerator(c10::DeviceIndex device, at::Generator cpu)
        : c10::GeneratorImpl(c10::Device(kSpyre, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
          cpu_(std::move(cpu)) {}

    void set_current_seed(uint64_t seed) override {
        const std::scoped_lock lock(cpu_.mutex());
        cpu_.set_current_seed(seed);
    }

    uint64_t current_seed() const override {
        const std::scoped_lock lock(cpu_.mutex());
        return cpu_.current_seed();
    }

    uint64_t seed() override {
        const std::scoped_lock lock(cpu_.mutex());
        return cpu_.seed();
    }

    void set_state(const c10::TensorImpl& state) override {
        const std::scoped_lock lock(cpu_.mutex());
        cpu_.unsafeGetGeneratorImpl()->set_state(state);
    }

    c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
        const std::scoped_lock lock(cpu_.mutex());
        return cpu_.unsafeGetGeneratorImpl()->get_state();
    }

    // The state says everything. Pickling asks for an offset of every generator that is not a CPU one.
    uint64_t get_offset() const override { return 0; }

    void set_offset(uint64_t offset) override {
        TORCH_CHECK(offset == 0, "spyre generators have no offset; use set_state() to move one");
    }

    const at::Generator& cpu() const { return cpu_; }

  private:
    SpyreGenerator* clone_impl() const override {
        const std::scoped_lock lock(cpu_.mutex());
        return new SpyreGenerator(device_.index(), cpu_.clone());
    }

    mutable at::Generator cpu_;
};

at::Generator make_generator(c10::DeviceIndex device) {
    return at::make_generator<SpyreGenerator>(device,
                                              at::detail::createCPUGenerator(c10::default_rng_seed_val));
}

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
    const auto index = resolve_device(c10::Device(kSpyre, device)).index();
    // The number of devices never changes once it is not 0, which it is not here. Leaked: used until the very
    // end.
    static const auto* const generators = [] {
        auto* made = new std::vector<at::Generator>;
        for (c10::DeviceIndex each = 0; each < device_count(); ++each) {
            made->push_back(make_generator(each));
        }
        return made;
    }();
    return (*generators)[index];
}

at::Generator new_generator(c10::DeviceIndex device) {
    return make_generator(resolve_device(c10::Device(kSpyre, device)).index());
}

at::Generator cpu_generator(const at::Generator& generator) {
    TORCH_CHECK(generator.device().type() == kSpyre,
                "Expected a 'spyre' device type for generator but found '", generator.device().type(), "'");
    return static_cast<SpyreGenerator*>(generator.unsafeGetGeneratorImpl())->cpu();
}

}  // namespace spyre
