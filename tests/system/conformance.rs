//! Every driver function answers under mrcuda what it answers natively; what cannot be equal has a reason in
//! tests/programs/conformance/differences.txt. The seed of the run chooses how the server is reached.

use crate::LIMIT;
use tests::conformance::{self, MODES, Plan};
use tests::{Scene, Server, Transport, random};

/// Two sections at a time: a case waits at most for itself, and other tests run beside this one.
fn plan() -> Plan<'static> {
    Plan { only: None, jobs: 2, limit: LIMIT, transport: Transport::of_run(random::seed()) }
}

#[test]
fn conformance_of_the_cpu_driver_with_an_h200() {
    let scene = Scene::new("softgpu");
    let here = conformance::native(&scene, plan()).unwrap();
    let unexplained = conformance::compare_with_hardware(&here).unexplained;
    assert!(unexplained.is_empty(), "{} differences without a reason:\n{}", unexplained.len(), unexplained.join("\n"));
}

#[test]
fn two_native_runs_answer_alike() {
    let scene = Scene::new("conformance");
    let native = conformance::native(&scene, plan()).unwrap();
    assert!(native.lines().count() > 5000, "{native}");
    assert_eq!(conformance::native(&scene, plan()).unwrap(), native, "two native runs differ");
}

/// Every function answers at this kind of place as natively.
fn as_natively(mode: &str) {
    let scene = Scene::new(&format!("conformance-{mode}"));
    let plan = plan();
    let native = conformance::native(&scene, plan).unwrap();
    let server = Server::start_for(plan.transport, &scene, "one", &[], &[]);
    let here = conformance::under_mrcuda(&scene, &server, mode, plan).unwrap();
    let unexplained = conformance::compare(&native, &here).unexplained;
    let (count, lines) = (unexplained.len(), unexplained.join("\n"));
    assert!(unexplained.is_empty(), "by {}, {count} differences without a reason:\n{lines}", plan.transport);
}

macro_rules! places {
    ($($mode:ident)*) => {
        $(#[test] fn $mode() { as_natively(stringify!($mode)); })*

        #[test]
        fn every_kind_of_place_has_a_test() {
            assert_eq!(MODES, [$(stringify!($mode)),*]);
        }
    };
}

places! { remote unix moved inside helper }
