//! Random runs of the allocator against the naive model.

use flex::{RegionOrder, Topology};
use proptest::prelude::*;

use crate::common::op::Op;
use crate::common::strategies::{ops, topologies};
use crate::driver::{Run, Setup};

fn setups(topology: Topology) -> impl Strategy<Value = Setup> {
    let order = prop_oneof![Just(RegionOrder::MostFree), Just(RegionOrder::LeastFree)];
    (order, prop::bool::weighted(0.7), prop::bool::weighted(0.2), any::<bool>()).prop_map(
        move |(region_order, can_release, poison, magazines)| Setup {
            topology: topology.clone(),
            region_order,
            can_release,
            poison,
            magazines,
        },
    )
}

fn plans() -> impl Strategy<Value = (Setup, Vec<Op>)> {
    topologies().prop_flat_map(|topology| {
        let ops = ops(topology.domain_count(), 200);
        (setups(topology), ops)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(192) })]

    #[test]
    fn random_runs_agree_with_the_model((setup, ops) in plans()) {
        let mut run = Run::new(setup);
        for op in &ops {
            run.step(op);
        }
        run.finish();
    }
}
