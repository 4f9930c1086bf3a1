use super::*;
use crate::calls::{reference, texture};
use cuda_api::array::Resource;
use cuda_api::reference::{ReferenceSet, Setting};
use journal::Role;

fn record<'a>(id: u16, creates: &'a [u64], ends: Option<u64>, uses: &'a [u64]) -> Record<'a> {
    Record { seq: 1, id, role: Role::Plain, setting: None, device: 0, creates, ends, uses, body: &[], reply: &[] }
}

#[test]
fn records_of_graph_instances_name_them() {
    assert_eq!(instance_of(&record(ops::id::GRAPH_MAKE, &[5, 6], None, &[7])), Some(5));
    assert_eq!(instance_of(&record(ops::id::GRAPH_CHANGE, &[5], None, &[7, 8])), Some(7));
    assert_eq!(instance_of(&record(ops::id::GRAPH_SWITCH, &[], None, &[7])), Some(7));
    assert_eq!(instance_of(&record(ops::id::GRAPH_END, &[], Some(9), &[])), Some(9));
    assert_eq!(instance_of(&record(ops::id::CHUNK_MAP, &[5], Some(9), &[7])), None);
}

#[test]
fn every_name_is_in_a_record_and_few_are_there_twice() {
    let mut uses = Few::from([1]);
    [2, 2, 1, 3, 2].into_iter().for_each(|name| add_need(&mut uses, name));
    assert_eq!(*uses, [1, 2, 3]);
    (4..100).chain([1, 99]).for_each(|name| add_need(&mut uses, name));
    assert!(uses.iter().copied().eq((1..100).chain([1])), "{uses:?}");
}

#[test]
fn records_of_objects_name_them() {
    assert_eq!(texture::object_of(&record(ops::id::OBJECT_MAKE, &[5], None, &[7])), Some(5));
    assert_eq!(texture::object_of(&record(ops::id::OBJECT_END, &[], Some(6), &[7])), Some(6));
    assert_eq!(texture::object_of(&record(ops::id::GRAPH_MAKE, &[5], Some(6), &[7])), None);
}

#[test]
fn records_of_references_are_decoded() {
    let of = |setting| crate::base::encoding::encode(&ReferenceSet { reference: 20, setting });
    let (flags, resource) = (of(Setting::Flags(1)), of(Setting::Resource(Resource::default())));
    let with = |body| Record { body, ..record(ops::id::REFERENCE_SET, &[], None, &[]) };
    assert_eq!((reference::set_by(&with(&flags)), reference::set_by(&with(&resource))), (Some(20), Some(20)));
    assert_eq!((reference::resource_set_by(&with(&flags)), reference::resource_set_by(&with(&resource))), (None, Some(20)));
    assert_eq!(reference::set_by(&with(&flags[..3])), None, "cut short");
    assert_eq!(reference::set_by(&record(ops::id::GRAPH_MAKE, &[20], None, &[])), None);
}

#[test]
fn names_of_conditions_are_no_handles_and_differ_between_graphs() {
    const SLOT: u64 = 1 << 6;
    let graphs = [SLOT, 2 * SLOT, (1 << 30) + SLOT, (1 << 48) - SLOT].map(|low| (0x5c08 << 48) | low);
    let mut names = Vec::new();
    for graph in graphs {
        for condition in (0..100).chain([(1 << 14) - 1]) {
            let name = journal_name(graph, condition);
            assert_eq!((name >> 56, cuda_api::handle::kind(name)), (0x5e, None));
            names.push(name);
        }
        assert_eq!(journal_name(graph, u64::MAX) >> 56, 0x5e);
    }
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "no two have the same name");
}
