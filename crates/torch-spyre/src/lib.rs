//! `torch_spyre._C`: the PyTorch device `spyre` on FlexAllocator.
//!
//! | module | what it is |
//! |---|---|
//! | `configuration` | the environment, parsed strictly |
//! | `runtime` | the devices and the gate they share, for the life of the process |
//! | `stream` | the history as a stream, to a file and to whoever watches |
//! | `interpreter` | CPython as the gate's reclaimer: thread states, `gc.collect`, `gc.callbacks` |
//! | `torch_abi` | the Rust side of the C ABI to the shim: storages, statistics, statuses |
//! | `message` | the out-of-memory text; `causes` the part of it that says why, `holders` who holds the memory |
//! | `bindings` | the functions and classes Python sees |
//!
//! Only this crate and `python_stacks` know Python, and only `shim/` knows torch's classes.
//!
//! The module also exports the C ABI of `include/flex.h`, on the same devices and the same gate: the functions are
//! those of the crate `flex_c`, and `bindings::device` tells it where the devices are.

mod bindings;
mod causes;
mod configuration;
mod holders;
mod interpreter;
mod libraries;
mod message;
mod runtime;
mod stream;
mod torch_abi;

/// The torch minor this binary is bound to, findable in the file before it is loaded.
#[used]
static BUILT_FOR_TORCH_MARKER: &[u8] =
    concat!("TORCH_SPYRE_BUILT_FOR_TORCH=", env!("TORCH_SPYRE_BUILT_FOR_TORCH"), ";").as_bytes();

/// The extension module.
#[pyo3::pymodule(gil_used = false)]
#[allow(non_snake_case)] // The name Python imports.
mod _C {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::bindings::cycles::{
        cycle_ledger, find_dead_cycles, record_cycles, recording_cycles, reset_cycle_ledger,
        set_cycle_explainer,
    };
    #[pymodule_export]
    use crate::bindings::device::{
        configuration, current_device, device_count, device_properties, ensure_ready, initialize,
        is_in_bad_fork, set_device, shutdown,
    };
    #[pymodule_export]
    use crate::bindings::held::{
        frozen_garbage_bytes, live_blocks, live_holders, own_frame, set_libraries, set_traceback_finder,
    };
    #[pymodule_export]
    use crate::bindings::history::{is_recording_history, memory_snapshot, record_history, stop_history};
    #[pymodule_export]
    use crate::bindings::memory::{
        device_of, empty_cache, mem_get_info, memory_stats, reset_accumulated_memory_stats,
        reset_peak_memory_stats, set_memory_fraction,
    };
    #[pymodule_export]
    use crate::bindings::pressure::{
        get_pressure_policy, pressure_stats, register_pressure_hook, remove_pressure_hook,
        reset_pressure_stats, set_pressure_policy,
    };
    #[pymodule_export]
    use crate::bindings::stream::{history_stream, stop_history_stream};
    #[pymodule_export]
    use crate::interpreter::cycles::Garbage;
    #[pymodule_export]
    use crate::interpreter::hook::PressureEvent;
    #[pymodule_export]
    use crate::interpreter::stacks::stacks_status;

    /// The torch minor this binary is bound to.
    #[pymodule_export]
    const BUILT_FOR_TORCH: &str = env!("TORCH_SPYRE_BUILT_FOR_TORCH");

    /// For tests only.
    #[pymodule]
    mod testing {
        #[pymodule_export]
        use crate::bindings::testing::{
            allocate_attached, allocate_native, allocate_with_pending_exception, capture_stack, census,
            enable_stacks, join_native_attached, largest_free_bytes, request_maxima, stack_frames,
            time_captures, validate, wait_for_gate, want_lock_of_allocating_thread, while_locks_are_held,
            while_mutex_is_held,
        };
    }

    /// The allocator core.
    #[pymodule]
    mod flex {
        use pyo3::prelude::*;
        use pyo3::types::PyModule;

        #[pymodule_export]
        use crate::bindings::flex_core::{
            Allocation, AllocationDirective, FlexAllocator, MemoryType, PlacementPolicy, PressureRequest,
            Topology,
        };

        #[pymodule_init]
        fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
            crate::bindings::flex_core::add_exceptions(module)
        }
    }
}
