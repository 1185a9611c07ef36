//! The simulated device: [`flex::Device`] in host memory.
//!
//! Each acquired region reserves address space and commits pages when they are first touched, so a device may be
//! larger than the host's memory. The capacity is hard. Any number of devices live in one process. Tests inject
//! failures and delays through [`Injection`].
//!
//! One mechanism per file: [`device`] the device, [`injection`] failures and delays, `mapping` the memory and all
//! the unsafe code there is. [`clock`] is the device's clock and the mapping of its ticks to host time.
//!
//! ```
//! use flex::{Device, DomainId, MemoryType, Topology, VirtualAddress};
//! use flex_sim::SimulatedDevice;
//!
//! let device = SimulatedDevice::for_topology(&Topology::uniform(1 << 20)?)?;
//! let region_id = device.acquire_region(1 << 20, DomainId(0), MemoryType::Tensor)?;
//! let address = VirtualAddress { region_id, offset_bytes: 4096 };
//! device.copy_in(address, b"bytes")?;
//! let mut bytes = [0; 5];
//! device.copy_out(address, &mut bytes)?;
//! assert_eq!(&bytes, b"bytes");
//! # Ok::<(), flex::FlexError>(())
//! ```

pub mod clock;
pub mod device;
pub mod injection;
mod mapping;

pub use device::{RegionIdScheme, SimulatedDevice, SimulatedOptions};
pub use injection::{Calls, Injection};
