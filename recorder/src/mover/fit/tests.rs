use super::*;
use crate::base::encoding::encode;
use journal::{OwnedRecord, Role};

fn put(body: Vec<u8>) -> OwnedRecord {
    OwnedRecord {
        seq: 0,
        id: ops::id::IMAGE_PUT,
        role: Role::Plain,
        setting: None,
        device: 0,
        creates: vec![],
        ends: None,
        uses: vec![],
        body,
        reply: vec![],
    }
}

fn info() -> DeviceInfo {
    let attributes = RELIED_ON.iter().map(|(id, ..)| (*id as i32, 7)).collect();
    DeviceInfo { attributes, ..crate::ledger::tests::info() }
}

fn texts(have: &DeviceInfo, want: &DeviceInfo) -> Vec<String> {
    differences(have, want).iter().map(MoveError::to_string).collect()
}

#[test]
fn the_same_gpu_has_no_differences() {
    assert!(differences(&info(), &info()).is_empty());
    let other_memory = DeviceInfo { free_bytes: 1, uuid: [1; 16], pci: [1, 2, 3], driver_path: "/elsewhere".into(), ..info() };
    assert!(differences(&other_memory, &info()).is_empty(), "another board of the same model");
}

#[test]
fn another_build_of_the_driver_is_a_difference_if_both_are_known() {
    let build = |build: &str| DeviceInfo { driver_build: build.into(), ..info() };
    assert!(
        matches!(&differences(&build("2"), &build("1"))[..], [MoveError::DriverBuild { target, job }] if target == "2" && job == "1")
    );
    assert!(differences(&build(""), &build("1")).is_empty() && differences(&build("1"), &build("")).is_empty());
}

#[test]
fn every_attribute_that_counts_is_compared() {
    for (at, (id, what, _)) in RELIED_ON.iter().enumerate() {
        let mut other = info();
        other.attributes[at] = (*id as i32, 8);
        assert_eq!(texts(&other, &info()), [format!("cannot move: {what}: 8 at the target, 7 where this job started")]);
    }
}

#[test]
fn an_attribute_that_only_one_side_knows_is_a_difference() {
    let mut other = info();
    other.attributes.remove(0);
    assert_eq!(texts(&other, &info()), ["cannot move: multiprocessors: nothing known at the target, 7 where this job started"]);
    assert_eq!(differences(&info(), &other).len(), 1);
}

#[test]
fn all_differences_are_reported() {
    let mut other = info();
    other.attributes.iter_mut().for_each(|(_, value)| *value = 8);
    other.driver_build = "2".into();
    assert_eq!(differences(&other, &info()).len(), RELIED_ON.len() + 1);
}

#[test]
fn another_model_counts_if_nothing_else_differs() {
    let named = |name: &str| DeviceInfo { name: name.into(), ..info() };
    assert!(matches!(&differences(&named("b"), &named("a"))[..], [MoveError::GpuModel { .. }]));
    let older = DeviceInfo { capability: [8, 0], ..named("b") };
    assert!(differences(&older, &named("a")).is_empty(), "the capability is compared before");
}

/// What is in the way where differences are allowed.
fn with_differences(have: &DeviceInfo) -> Vec<String> {
    blockers(have, &info(), true).iter().map(MoveError::to_string).collect()
}

#[test]
fn where_differences_are_allowed_what_was_told_must_hold() {
    assert!(with_differences(&info()).is_empty());
    let attribute = |id: A, value: i32| {
        let mut other = info();
        other.attributes.retain(|(known, _)| *known != id as i32);
        other.attributes.push((id as i32, value));
        with_differences(&other)
    };
    assert!(attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1).is_empty());
    assert!(attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 8).is_empty());
    assert_eq!(attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 6).len(), 1);
    assert_eq!(attribute(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 8).len(), 1);
    assert_eq!(attribute(A::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 8).len(), 1);
    assert!(attribute(A::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 1).is_empty());
    assert_eq!(attribute(A::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 14).len(), 1);
    // What the program was not told does not matter, and what the target does not know does.
    assert!(attribute(A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0).is_empty());
    let mut less = info();
    less.attributes.pop();
    assert_eq!(with_differences(&less).len(), 1);
}

#[test]
fn rules_of_attributes() {
    assert!(Rule::Bits.holds(7, 5) && !Rule::Bits.holds(3, 5));
    assert!(Rule::Divides.holds(256, 512) && !Rule::Divides.holds(512, 256) && !Rule::Divides.holds(0, 256));
    assert!(Rule::AtMost.holds(1, 2) && !Rule::AtMost.holds(3, 2));
    let ids = || RELIED_ON.iter().map(|(id, ..)| *id as i32).chain(OTHER.iter().map(|(id, _)| *id as i32));
    assert_eq!(ids().count(), ids().collect::<std::collections::BTreeSet<i32>>().len(), "each has one rule");
}

#[test]
fn drivers_and_capabilities_must_not_be_less() {
    let version = |driver_version| DeviceInfo { driver_version, ..info() };
    assert!(with_differences(&version(13010)).is_empty());
    for other in [12080, 14000, 12990] {
        assert_eq!(blockers(&version(other), &info(), true)[0].code(), ::control::ReasonCode::DriverVersion, "{other}");
    }
    assert!(!blockers(&version(13010), &info(), false).is_empty());
    let capability = |capability| DeviceInfo { capability, ..info() };
    assert!(with_differences(&capability([9, 1])).is_empty() && with_differences(&capability([10, 0])).is_empty());
    assert_eq!(blockers(&capability([8, 9]), &info(), true)[0].code(), ::control::ReasonCode::ComputeCapability);
    let build = DeviceInfo { driver_build: "580.2".into(), ..info() };
    assert!(with_differences(&build).is_empty() && blockers(&build, &info(), false).len() == 1);
    let priorities = DeviceInfo { priorities: [0, -2], ..info() };
    assert_eq!(with_differences(&priorities).len(), 1);
}

#[test]
fn what_differs_is_known_and_told() {
    let none = Different::of(&info(), &info());
    assert!(!none.any() && none.notes().is_empty());
    let newer = Different::of(&DeviceInfo { capability: [10, 0], ..info() }, &info());
    assert!(newer.any() && newer.architecture && !newer.driver && (newer.capability, newer.from) == (100, 90));
    assert!(newer.notes()[0].contains("floating-point"));
    let build = Different::of(&DeviceInfo { driver_build: "2".into(), ..info() }, &info());
    assert!(build.any() && build.driver && !build.architecture && build.notes().len() == 1);
    let unknown = Different::of(&DeviceInfo { driver_build: String::new(), ..info() }, &info());
    assert!(!unknown.any());
}

#[test]
fn functions_must_be_as_good() {
    let function =
        FunctionInfo { max_threads: 512, static_shared: 64, max_dynamic_shared: 1024, name: "k".into(), ..Default::default() };
    let good = |got: FunctionInfo| function_is_as_good(&function, &got);
    assert!(good(FunctionInfo {
        max_threads: 1024,
        static_shared: 0,
        max_dynamic_shared: 2048,
        local_grew: 8,
        ..function.clone()
    }));
    assert!(!good(FunctionInfo { max_threads: 256, ..function.clone() }));
    assert!(!good(FunctionInfo { static_shared: 65, ..function.clone() }));
    assert!(!good(FunctionInfo { max_dynamic_shared: 1023, ..function.clone() }));
    assert!(!good(FunctionInfo { params: vec![(0, 8)], ..function.clone() }));
}

#[test]
fn what_a_driver_or_gpu_decides_stays_with_it() {
    let blocked = |id: u16, different: Different| {
        let record = OwnedRecord { id, ..put(vec![]) };
        different.blocker(&record.as_record()).map(|why| why.code())
    };
    let shown = || Some(::control::ReasonCode::NotShown);
    let other = Different { any: true, ..Different::default() };
    let build = Different { driver: true, ..other };
    let newer = Different { architecture: true, capability: 100, from: 90, ..other };
    assert!(
        [ops::id::HEAP_MAKE, ops::id::TILE_POOL_MAKE, ops::id::IMAGE_PUT]
            .iter()
            .all(|id| blocked(*id, Different::default()).is_none())
    );
    assert!([other, build, newer].iter().all(|different| blocked(ops::id::HEAP_MAKE, *different) == shown()));
    assert_eq!([other, build, newer].map(|different| blocked(ops::id::TILE_POOL_MAKE, different)), [None, shown(), shown()]);
    // An image that cannot be read.
    assert_eq!([other, build, newer].map(|different| blocked(ops::id::IMAGE_PUT, different)), [None, shown(), shown()]);
}

#[test]
fn code_must_be_there_and_take_no_addresses_of_functions() {
    let body_of = |text: &str| {
        let mut body = encode(&ImagePut { hash: [0; 32], kind: Kind::Ptx.code() });
        body.extend_from_slice(text.as_bytes());
        body.push(0);
        body
    };
    let blocked = |text: &str, capability: u32| {
        let body = body_of(text);
        let record = put(body);
        let different = Different { architecture: true, capability, from: 90, any: true, ..Different::default() };
        different.blocker(&record.as_record()).map(|why| why.code())
    };
    let ptx = |target: &str| format!(".version 8.0\n.target {target}\n.address_size 64\n.visible .entry k() {{ ret; }}\n");
    assert_eq!(blocked(&ptx("sm_90"), 100), None);
    assert_eq!(blocked(&ptx("sm_100"), 90), Some(::control::ReasonCode::NoCode));
    assert_eq!(blocked(&ptx("sm_90a"), 100), Some(::control::ReasonCode::NoCode));
    let calls = ptx("sm_90").replace("ret;", "prototype : .callprototype ()_ (); ret;");
    assert_eq!(blocked(&calls, 100), Some(::control::ReasonCode::NotShown));
    // The same driver and architecture with fewer multiprocessors.
    let calling = put(body_of(&calls));
    let same = Different { any: true, ..Different::default() };
    assert!(same.blocker(&calling.as_record()).is_none());
}
