//! Every driver function answers under mrcuda what it answers natively; what cannot be equal has a reason in
//! tests/programs/conformance/differences.txt.

use crate::LIMIT;
use tests::conformance::{self, MODES, Plan};
use tests::{Scene, Server, Transport};

/// Two sections at a time: a case waits at most for itself, and other tests run beside this one.
const PLAN: Plan<'static> = Plan { only: None, jobs: 2, limit: LIMIT, transport: Transport::Tls };

#[test]
fn conformance_of_the_cpu_driver_with_an_h200() {
    let scene = Scene::new("softgpu");
    let here = conformance::native(&scene, PLAN).unwrap();
    let unexplained = conformance::compare_with_hardware(&here).unexplained;
    assert!(unexplained.is_empty(), "{} differences without a reason:\n{}", unexplained.len(), unexplained.join("\n"));
}

#[test]
fn two_native_runs_answer_alike() {
    let scene = Scene::new("conformance");
    let native = conformance::native(&scene, PLAN).unwrap();
    assert!(native.lines().count() > 5000, "{native}");
    assert_eq!(conformance::native(&scene, PLAN).unwrap(), native, "two native runs differ");
}

/// Every function answers at this kind of place as natively.
fn as_natively(mode: &str) {
    let scene = Scene::new(&format!("conformance-{mode}"));
    let native = conformance::native(&scene, PLAN).unwrap();
    let server = Server::start(&scene, "one");
    let here = conformance::under_mrcuda(&scene, &server, mode, PLAN).unwrap();
    let unexplained = conformance::compare(&native, &here).unexplained;
    assert!(unexplained.is_empty(), "{} differences without a reason:\n{}", unexplained.len(), unexplained.join("\n"));
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
