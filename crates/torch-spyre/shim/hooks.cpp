// PrivateUse1HooksInterface, and the registration of everything that torch looks up at run time.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>

#include "allocator.h"
#include "device.h"
#include "generator.h"
#include "guard.h"
#include "pinned.h"
#include "spyre_abi.h"

namespace spyre {
namespace {

class SpyreHooks final : public at::PrivateUse1HooksInterface {
  public:
    void init() const override { ensure_ready(); }
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return device_count() > 0; }

    bool hasPrimaryContext(c10::DeviceIndex device) const override {
        check_device_index(device);
        return true;
    }

    c10::DeviceIndex deviceCount() const override { return device_count(); }
    c10::DeviceIndex getCurrentDevice() const override { return current_device(); }

    void setCurrentDevice(c10::DeviceIndex device) const override {
        device_guard()->setDevice({kSpyre, device});
    }

    c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
        return device_guard()->exchangeDevice({kSpyre, device}).index();
    }

    // -1 asks for nothing, and is what restoring the answer then passes.
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
        return device < 0 ? device : exchangeDevice(device);
    }

    bool isPinnedPtr(const void* data) const override { return is_pinned_address(data); }
    c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }

    at::Device getDeviceFromPtr(void* data) const override {
        const auto device = static_cast<c10::DeviceIndex>(spyre_rs_device_of(data));
        TORCH_CHECK(device >= 0, "the address ", data, " does not belong to a spyre device");
        return {kSpyre, device};
    }

    const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
        return default_generator(device);
    }
    at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }

    void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
        const auto device = storage.device();
        const CurrentDeviceScope scope(device.index());
        // Device memory is host-addressable; the new bytes come from the storage's own allocator.
        auto* const impl = storage.unsafeGetStorageImpl();
        at::native::resize_bytes_cpu(impl, nbytes);
        if (nbytes == 0) {  // Having no memory, it would be a CPU storage.
            impl->set_data_ptr_noswap(c10::DataPtr(nullptr, device));
        }
    }
};

void register_with_torch() {
    c10::SetAllocator(kSpyre, device_allocator());
    c10::impl::DeviceGuardImplRegistrar(kSpyre, device_guard());
    if (!at::isPrivateUse1HooksRegistered()) {
        at::RegisterPrivateUse1HooksInterface(new SpyreHooks);
    }
}

}  // namespace
}  // namespace spyre

extern "C" void spyre_shim_register() noexcept {
    static const bool registered = (spyre::register_with_torch(), true);
    static_cast<void>(registered);
}
