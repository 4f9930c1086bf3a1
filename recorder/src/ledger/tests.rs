use super::*;
use cuda_api::calls::context::cuCtxSetCacheConfig;
use cuda_api::calls::module::{cuFuncLoad, cuModuleGetFunction};
use cuda_api::handle::compose;
use cuda_api::ops::FunctionInfo;
use executor::DeviceInfo;

pub(crate) fn info() -> DeviceInfo {
    DeviceInfo {
        name: "a GPU".into(),
        uuid: [0; 16],
        pci: [0; 3],
        total_bytes: 1 << 30,
        free_bytes: 1 << 30,
        driver_version: 13000,
        driver_build: "580.1".into(),
        capability: [9, 0],
        attributes: vec![],
        priorities: [0, -5],
        driver_path: String::new(),
        processors: 4,
    }
}

fn ledger() -> Ledger {
    Ledger::new(3, Writer::in_memory().map_err(NoJournal::Memory))
}

fn edges(creates: &[u64], ends: Option<u64>, uses: &[u64]) -> Edges {
    Edges { creates: creates.iter().copied().collect(), ends, uses: uses.iter().copied().collect() }
}

fn seqs(l: &Ledger) -> Vec<u64> {
    l.live().unwrap().map(|r| r.unwrap().seq).collect()
}

fn make(l: &mut Ledger, handle: u64) {
    l.append(1, &[], &[], &edges(&[handle], None, &[]), Keep::PLAIN).unwrap();
}

fn end(l: &mut Ledger, handle: u64) {
    l.append(2, &[], &[], &edges(&[], Some(handle), &[]), Keep::PLAIN).unwrap();
}

/// The body of a limit: its number and its value.
fn limit(which: Limit, value: u64) -> Vec<u8> {
    [&(which as u32).to_le_bytes()[..], &value.to_le_bytes()].concat()
}

const FUNCTION: u64 = 0x5c05_0000_0000_0040;

#[test]
fn records_are_numbered_from_one_with_the_device() {
    let mut l = ledger();
    (10..13).for_each(|h| make(&mut l, h));
    let all: Vec<(u64, u32)> = l.live().unwrap().map(|r| r.map(|r| (r.seq, r.device)).unwrap()).collect();
    assert_eq!(all, [(1, 3), (2, 3), (3, 3)]);
}

#[test]
fn what_has_ended_is_not_live() {
    let mut l = ledger();
    make(&mut l, 10);
    make(&mut l, 11);
    end(&mut l, 10);
    assert_eq!(seqs(&l), [2]);
    assert_eq!(l.size().0, 1);
}

#[test]
fn a_record_keeps_its_bytes() {
    let mut l = ledger();
    l.append(0x401, b"body", b"reply", &edges(&[9], None, &[7, 8]), Keep::PLAIN).unwrap();
    let r = l.live().unwrap().next().unwrap().unwrap();
    assert_eq!(
        (r.id, r.body, r.reply, r.creates, r.uses, r.ends),
        (0x401, &b"body"[..], &b"reply"[..], &[9][..], &[7, 8][..], None)
    );
}

#[test]
fn a_move_gets_the_live_set_and_then_the_tail() {
    let mut l = ledger();
    make(&mut l, 10);
    let live = l.begin_move().unwrap();
    make(&mut l, 11);
    end(&mut l, 10);
    assert_eq!(live.iter().map(|r| r.seq).collect::<Vec<_>>(), [1], "a copy does not change");
    assert_eq!(l.take_tail().unwrap().iter().map(|r| r.seq).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(l.take_tail().unwrap().iter().count(), 0);
    make(&mut l, 12);
    assert_eq!(l.take_tail().unwrap().iter().map(|r| r.seq).collect::<Vec<_>>(), [4]);
}

#[test]
fn without_a_move_there_is_no_tail() {
    let mut l = ledger();
    make(&mut l, 10);
    assert_eq!(l.take_tail().unwrap().iter().count(), 0);
    l.begin_move().unwrap();
    make(&mut l, 11);
    l.end_move();
    assert_eq!(l.take_tail().unwrap().iter().count(), 0);
    assert!(!l.tail_weight().is_heavy());
}

#[test]
fn a_second_move_begins_with_an_empty_tail() {
    let mut l = ledger();
    l.begin_move().unwrap();
    make(&mut l, 10);
    assert_eq!(l.begin_move().unwrap().iter().count(), 1);
    assert_eq!(l.take_tail().unwrap().iter().count(), 0);
}

#[test]
fn the_weight_of_the_tail_is_that_of_what_a_driver_needs_long_for() {
    use ops::id::{ARRAY_MAKE, CHUNK_MAP, CHUNK_UNMAP, GRAPH_MAKE, HEAP_MAKE, IMAGE_LOAD, IMAGE_PUT, LOCAL_GROW, TILE_POOL_MAKE};
    let mut l = ledger();
    let weight = |makings, bytes| Weight { makings, bytes };
    let add = |l: &mut Ledger, id, body: &[u8]| l.append(id, body, &[], &edges(&[], None, &[]), Keep::PLAIN).unwrap();
    let chunk = |bytes| crate::base::encoding::encode(&ops::Chunk { address: 1 << 40, bytes });
    add(&mut l, IMAGE_LOAD, &[]);
    l.begin_move().unwrap();
    make(&mut l, 11);
    end(&mut l, 11);
    add(&mut l, CHUNK_UNMAP, &chunk(7));
    assert_eq!(l.tail_weight(), weight(0, 0));
    assert!(!l.tail_weight().is_heavy());
    for id in [IMAGE_PUT, IMAGE_LOAD, HEAP_MAKE, LOCAL_GROW, GRAPH_MAKE, ARRAY_MAKE, TILE_POOL_MAKE] {
        add(&mut l, id, &[]);
        assert_eq!(l.tail_weight(), weight(1, 0));
        l.take_tail().unwrap();
        assert_eq!(l.tail_weight(), weight(0, 0), "it was taken");
    }
    add(&mut l, CHUNK_MAP, &chunk(2 << 20));
    add(&mut l, CHUNK_MAP, &chunk(32 << 20));
    add(&mut l, CHUNK_MAP, &chunk(u64::MAX));
    assert_eq!(l.tail_weight(), weight(0, u64::MAX), "a length that nothing has is no overflow");
    assert!(l.tail_weight().is_heavy());
}

#[test]
fn the_tail_tells_which_chunks_it_ends() {
    use ops::id::{CHUNK_MAP, CHUNK_UNMAP, CONTEXT_RESET};
    let mut l = ledger();
    let add = |l: &mut Ledger, id, address| {
        let body = crate::base::encoding::encode(&ops::Chunk { address, bytes: 2 << 20 });
        l.append(id, &body, &[], &edges(&[], None, &[]), Keep::PLAIN).unwrap();
    };
    let ended = |l: &Ledger| [1 << 40, 2 << 40, 3 << 40].map(l.tail_ends());
    add(&mut l, CHUNK_UNMAP, 1 << 40);
    assert_eq!(ended(&l), [false; 3], "there is no tail");
    l.begin_move().unwrap();
    add(&mut l, CHUNK_UNMAP, 1 << 40);
    // Ended, although there is another one at the address by now.
    add(&mut l, CHUNK_MAP, 1 << 40);
    add(&mut l, CHUNK_MAP, 2 << 40);
    assert_eq!(ended(&l), [true, false, false]);
    l.take_tail().unwrap();
    assert_eq!(ended(&l), [false; 3]);
    l.append(CONTEXT_RESET, &[], &[], &edges(&[], None, &[]), Keep::PLAIN).unwrap();
    assert_eq!(ended(&l), [true; 3]);
}

#[test]
fn the_tail_has_the_same_records_as_the_journal() {
    let mut l = ledger();
    l.begin_move().unwrap();
    for i in 0..200u64 {
        let body = vec![i as u8; i as usize];
        l.append(i as u16, &body, &body[..i as usize / 2], &edges(&[1000 + i], None, &[1, 2]), Keep::PLAIN).unwrap();
    }
    let tail = l.take_tail().unwrap();
    assert!(tail.iter().eq(l.live().unwrap().map(Result::unwrap)));
}

#[test]
fn a_setting_of_the_context_replaces_the_one_before() {
    let mut l = ledger();
    for value in [1, 2, 3] {
        let body = limit(Limit::CU_LIMIT_PRINTF_FIFO_SIZE, value);
        let keep = l.keep::<cuCtxSetLimit::Fn>(&body, &Edges::default()).expect("it is new");
        l.append(cuCtxSetLimit::Fn::ID, &body, &[], &Edges::default(), keep).unwrap();
    }
    assert_eq!(seqs(&l), [3]);
}

#[test]
fn a_setting_with_the_same_value_changes_nothing() {
    let mut l = ledger();
    let body = limit(Limit::CU_LIMIT_PRINTF_FIFO_SIZE, 4096);
    assert!(l.keep::<cuCtxSetLimit::Fn>(&body, &Edges::default()).is_some());
    assert_eq!(l.keep::<cuCtxSetLimit::Fn>(&body, &Edges::default()), None);
    assert!(l.keep::<cuCtxSetLimit::Fn>(&limit(Limit::CU_LIMIT_PRINTF_FIFO_SIZE, 8192), &Edges::default()).is_some());
    assert!(l.keep::<cuCtxSetLimit::Fn>(&body, &Edges::default()).is_some(), "it was another one meanwhile");
}

#[test]
fn limits_of_two_kinds_are_two_settings() {
    let mut l = ledger();
    let one = l.keep::<cuCtxSetLimit::Fn>(&limit(Limit::CU_LIMIT_PRINTF_FIFO_SIZE, 1), &Edges::default()).unwrap();
    let other = l.keep::<cuCtxSetLimit::Fn>(&limit(Limit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 1), &Edges::default()).unwrap();
    assert!(one.setting.is_some() && one.setting != other.setting);
}

#[test]
fn the_highest_limits_that_place_memory_stay() {
    let mut l = ledger();
    for which in [Limit::CU_LIMIT_STACK_SIZE, Limit::CU_LIMIT_MALLOC_HEAP_SIZE] {
        let keep = |l: &mut Ledger, value| l.keep::<cuCtxSetLimit::Fn>(&limit(which, value), &Edges::default()).unwrap();
        assert_eq!(keep(&mut l, 100), Keep::PLAIN, "the highest so far");
        assert!(keep(&mut l, 50).setting.is_some());
        assert!(keep(&mut l, 100).setting.is_some(), "as high as before");
        assert_eq!(keep(&mut l, 101), Keep::PLAIN);
    }
}

#[test]
fn a_body_that_is_cut_short_is_an_ordinary_setting() {
    let mut l = ledger();
    let whole = limit(Limit::CU_LIMIT_STACK_SIZE, 100);
    let keep = l.keep::<cuCtxSetLimit::Fn>(&whole[..11], &Edges::default());
    assert!(keep.is_some_and(|keep| keep.setting.is_some()));
}

#[test]
fn a_setting_of_a_function_belongs_to_it() {
    let mut l = ledger();
    let body = |f: u64, value: u32| [&f.to_le_bytes()[..], &8u32.to_le_bytes(), &value.to_le_bytes()].concat();
    let keep =
        |l: &mut Ledger, f: u64, value| l.keep::<cuFuncSetAttribute::Fn>(&body(f, value), &edges(&[], None, &[f])).unwrap();
    let (one, again, other) = (keep(&mut l, 7, 1), keep(&mut l, 7, 1), keep(&mut l, 9, 1));
    assert_eq!((one, one.setting.map(|s| s[0]), other.setting.map(|s| s[0])), (again, Some(7), Some(9)));
}

#[test]
fn a_function_keeps_the_place_of_its_first_look_up() {
    let mut l = ledger();
    let info = FunctionInfo { local_grew: 0, ..FunctionInfo::default() };
    make(&mut l, FUNCTION);
    l.info_asked(FUNCTION, &FUNCTION.to_le_bytes(), &info).unwrap();
    make(&mut l, 10);
    // An attribute was set, so it is asked again; its local memory may grow then.
    l.info_asked(FUNCTION, &FUNCTION.to_le_bytes(), &info).unwrap();
    assert_eq!(seqs(&l), [1, 2, 3]);
    l.info_asked(FUNCTION, &FUNCTION.to_le_bytes(), &FunctionInfo { local_grew: 4096, ..info.clone() }).unwrap();
    let ids: Vec<u16> = l.live().unwrap().map(|r| r.unwrap().id).collect();
    assert_eq!(ids, [1, ops::id::FUNCTION_INFO, 1, ops::id::LOCAL_GROW]);
    // In a new context it is looked up anew.
    l.context_ended().unwrap();
    l.info_asked(FUNCTION, &FUNCTION.to_le_bytes(), &info).unwrap();
    assert_eq!(l.live().unwrap().map(|r| r.unwrap().id).filter(|id| *id == ops::id::FUNCTION_INFO).count(), 2);
}

#[test]
fn what_code_lends_ends_with_it() {
    let mut l = ledger();
    let keep = l.keep::<cuModuleGetFunction::Fn>(&[], &edges(&[FUNCTION], None, &[5])).unwrap();
    assert_eq!(keep, Keep { role: Role::Child, setting: None });
}

#[test]
fn a_known_value_of_a_function_is_recognized() {
    let mut l = ledger();
    let (body, of) = ([7, 0, 0, 0, 0, 0, 0, 0], edges(&[], None, &[FUNCTION]));
    assert!(!l.is_set::<cuFuncSetCacheConfig::Fn>(&body, &of));
    l.keep::<cuFuncSetCacheConfig::Fn>(&body, &of);
    assert!(l.is_set::<cuFuncSetCacheConfig::Fn>(&body, &of));
    assert!(!l.is_set::<cuFuncSetCacheConfig::Fn>(&[8, 0, 0, 0, 0, 0, 0, 0], &of));
    assert!(!l.is_set::<cuFuncSetCacheConfig::Fn>(&body, &edges(&[], None, &[FUNCTION + 64])));
    assert!(!l.is_set::<cuCtxSetCacheConfig::Fn>(&body, &Edges::default()), "no function");
}

#[test]
fn a_preference_is_set_again_after_another_handle_of_the_function_has_set_it() {
    let mut l = ledger();
    let [library, kernel, function] = [Kind::Library, Kind::Kernel, Kind::Function].map(|k| compose(k, 1, 1));
    l.learn((1, vec![]), &edges(&[kernel], None, &[library]));
    l.learn((2, vec![]), &edges(&[function], None, &[kernel]));
    let (of_kernel, of_function) = (edges(&[], None, &[kernel]), edges(&[], None, &[function]));
    let body = |config: u8| [config, 0, 0, 0];
    assert!(l.keep::<cuKernelSetCacheConfig::Fn>(&body(2), &of_kernel).is_some());
    assert!(l.is_set::<cuKernelSetCacheConfig::Fn>(&body(2), &of_kernel));
    assert!(l.keep::<cuFuncSetCacheConfig::Fn>(&body(1), &of_function).is_some());
    assert!(!l.is_set::<cuKernelSetCacheConfig::Fn>(&body(2), &of_kernel), "it is 1 now");
    assert!(l.keep::<cuKernelSetCacheConfig::Fn>(&body(2), &of_kernel).is_some());
    assert!(!l.is_set::<cuFuncSetCacheConfig::Fn>(&body(1), &of_function), "it is 2 again");
    assert!(l.keep::<cuFuncLoad::Fn>(&[], &of_function).is_some());
    assert!(l.is_set::<cuKernelSetCacheConfig::Fn>(&body(2), &of_kernel), "a load sets nothing");
}

#[test]
fn names_of_changes_are_all_different() {
    let names: std::collections::HashSet<u64> = (0..1000).map(|_| change()).collect();
    assert_eq!(names.len(), 1000);
    assert!(names.iter().all(|name| name >> 56 == 0x5d), "and no handles");
}

#[test]
fn a_change_that_is_overtaken_is_not_replayed() {
    let mut l = ledger();
    let name = change();
    make(&mut l, name);
    make(&mut l, 10);
    l.overtaken(name).unwrap();
    assert_eq!(seqs(&l), [2]);
}

#[test]
fn an_image_is_known_until_it_ends() {
    let mut l = ledger();
    let name = l.put_image([7; 32], b"", b"image").unwrap();
    assert_eq!((l.image(&[7; 32]), l.image(&[8; 32]), seqs(&l)), (Some(name), None, vec![1]));
    l.end_image(&[7; 32]).unwrap();
    assert!(l.image(&[7; 32]).is_none() && seqs(&l).is_empty());
    l.end_image(&[7; 32]).unwrap();
    assert!(seqs(&l).is_empty(), "it has ended already");
}

#[test]
fn an_image_in_use_is_not_evicted() {
    let mut l = ledger();
    let hash = |n: usize| [n as u8; 32];
    for n in 0..=IDLE_IMAGES {
        l.put_image(hash(n), b"", b"").unwrap();
        l.loaded(100 + n as u64, hash(n));
    }
    for n in 0..IDLE_IMAGES {
        assert!(l.unloaded(100 + n as u64).is_empty(), "{n}");
    }
    assert_eq!(l.unloaded(100 + IDLE_IMAGES as u64), [hash(0)], "the one that has been idle for longest");
}

#[test]
fn loaded_code_keeps_its_image() {
    use super::call::Load;
    let (mut l, loaded) = (ledger(), ops::ImageLoaded::default());
    for n in 0..=IDLE_IMAGES as u64 + 1 {
        let hash = [n as u8; 32];
        let image = l.put_image(hash, b"", b"").unwrap();
        if n < 2 {
            l.load_succeeded(&Load { handle: 100 + n, hash, image, body: &[] }, &loaded).unwrap();
        }
    }
    assert!(l.unloaded(200).is_empty());
    assert_eq!(l.unloaded(101), [[2; 32]], "image 0 is in use, image 1 is the last one to have become idle");
}

/// As many idle images as are kept, from number 0 on.
fn with_idle_images() -> Ledger {
    let mut l = ledger();
    for n in 0..IDLE_IMAGES {
        l.put_image([n as u8; 32], b"", b"").unwrap();
        l.loaded(100 + n as u64, [n as u8; 32]);
        assert!(l.unloaded(100 + n as u64).is_empty());
    }
    l
}

#[test]
fn an_image_is_idle_when_the_last_module_of_it_is_unloaded() {
    let mut l = with_idle_images();
    l.put_image([200; 32], b"", b"").unwrap();
    l.loaded(1, [200; 32]);
    l.loaded(2, [200; 32]);
    assert!(l.unloaded(1).is_empty());
    assert_eq!(l.unloaded(2), [[0; 32]], "one more than are kept is idle");
}

#[test]
fn idle_images_are_bounded_by_their_bytes() {
    let mut l = ledger();
    let part = vec![0; IDLE_IMAGE_BYTES / 2];
    for n in 1..=3 {
        l.put_image([n; 32], b"", &part).unwrap();
        l.loaded(n.into(), [n; 32]);
    }
    assert!(l.unloaded(1).is_empty() && l.unloaded(2).is_empty());
    assert_eq!(l.unloaded(3), [[1; 32]]);
}

#[test]
fn an_image_that_is_loaded_again_is_not_idle() {
    let mut l = with_idle_images();
    l.loaded(1, [0; 32]);
    l.put_image([200; 32], b"", b"").unwrap();
    l.loaded(2, [200; 32]);
    assert!(l.unloaded(2).is_empty(), "image 0 is in use");
    assert_eq!(l.unloaded(1), [[1; 32]], "image 0 is the last one to have become idle");
}

#[test]
fn an_unknown_module_evicts_nothing() {
    let mut l = ledger();
    l.loaded(5, [9; 32]);
    assert!(l.unloaded(5).is_empty() && l.unloaded(6).is_empty());
}

#[test]
fn a_repeated_request_returns_the_same_handle() {
    let mut l = ledger();
    let key = || (7, b"f".to_vec());
    assert_eq!(l.known(&key()), None);
    l.learn(key(), &edges(&[FUNCTION], None, &[50]));
    assert_eq!((l.known(&key()), l.known(&(7, b"g".to_vec())), l.known(&(8, b"f".to_vec()))), (Some(FUNCTION), None, None));
    assert_eq!((l.parent(FUNCTION), l.is_child(FUNCTION), l.is_child(50)), (Some(50), true, false));
}

#[test]
fn a_request_that_creates_nothing_is_not_kept() {
    let mut l = ledger();
    l.learn((7, vec![]), &edges(&[], None, &[50]));
    assert_eq!(l.known(&(7, vec![])), None);
}

#[test]
fn everything_below_a_library_goes_with_it() {
    let mut l = ledger();
    let [library, module, kernel, function] =
        [Kind::Library, Kind::Module, Kind::Kernel, Kind::Function].map(|k| compose(k, 1, 1));
    l.learn((1, vec![]), &edges(&[module], None, &[library]));
    l.learn((2, vec![]), &edges(&[kernel], None, &[library]));
    l.learn((3, vec![]), &edges(&[function], None, &[module]));
    let mut gone = l.forget_children(library);
    gone.sort_unstable();
    let mut expected = vec![module, kernel, function];
    expected.sort_unstable();
    assert_eq!(gone, expected);
    assert!([1, 2, 3].into_iter().all(|id| l.known(&(id, vec![])).is_none()) && !l.is_child(function));
    assert!(l.forget_children(library).is_empty());
}

#[test]
fn children_of_others_stay() {
    let mut l = ledger();
    l.learn((1, vec![]), &edges(&[11], None, &[1]));
    l.learn((2, vec![]), &edges(&[12], None, &[2]));
    assert_eq!(l.forget_children(1), [11]);
    assert_eq!((l.known(&(2, vec![])), l.parent(12)), (Some(12), Some(2)));
}

#[test]
fn settings_of_a_function_are_forgotten_with_its_module() {
    let mut l = ledger();
    let (body, of) = ([1, 0, 0, 0], edges(&[], None, &[FUNCTION]));
    l.learn((1, vec![]), &edges(&[FUNCTION], None, &[50]));
    l.keep::<cuFuncSetCacheConfig::Fn>(&body, &of);
    l.forget_children(50);
    assert!(!l.is_set::<cuFuncSetCacheConfig::Fn>(&body, &of), "another function may get this handle");
}

#[test]
fn the_function_of_a_kernel_is_an_alias_of_it() {
    let mut l = ledger();
    let [library, module, kernel] = [Kind::Library, Kind::Module, Kind::Kernel].map(|k| compose(k, 1, 1));
    let (of_kernel, of_module) = (compose(Kind::Function, 1, 1), compose(Kind::Function, 1, 2));
    l.learn((1, vec![]), &edges(&[module], None, &[library]));
    l.learn((2, vec![]), &edges(&[kernel], None, &[library]));
    l.learn((3, vec![]), &edges(&[of_kernel], None, &[kernel]));
    l.learn((4, vec![]), &edges(&[of_module], None, &[module]));
    let aliases = |h| l.aliases(h).into_iter().collect::<BTreeSet<_>>();
    assert_eq!(aliases(kernel), [of_kernel, of_module].into());
    assert_eq!(aliases(of_kernel), [kernel, of_module].into());
    assert_eq!(aliases(of_module), [kernel, of_kernel].into());
    assert!(aliases(library).is_empty() && aliases(12345).is_empty());
}

#[test]
fn two_kernels_are_no_aliases() {
    let mut l = ledger();
    let library = compose(Kind::Library, 1, 1);
    let (one, other) = (compose(Kind::Kernel, 1, 1), compose(Kind::Kernel, 1, 2));
    l.learn((1, b"a".to_vec()), &edges(&[one], None, &[library]));
    l.learn((1, b"b".to_vec()), &edges(&[other], None, &[library]));
    assert!(l.aliases(one).is_empty());
}

#[test]
fn kernels_outlive_the_context_and_functions_do_not() {
    let mut l = ledger();
    let [library, kernel, function] = [Kind::Library, Kind::Kernel, Kind::Function].map(|k| compose(k, 1, 1));
    for (id, made, from) in [(1, kernel, library), (2, function, kernel)] {
        make(&mut l, made);
        l.learn((id, vec![]), &edges(&[made], None, &[from]));
    }
    assert_eq!(l.context_ended(), Ok(vec![function]));
    assert_eq!((l.known(&(1, vec![])), l.known(&(2, vec![]))), (Some(kernel), None));
    assert_eq!(seqs(&l), [1]);
}

#[test]
fn a_new_context_has_no_settings() {
    let mut l = ledger();
    let body = limit(Limit::CU_LIMIT_STACK_SIZE, 100);
    l.keep::<cuCtxSetLimit::Fn>(&body, &Edges::default());
    l.context_ended().unwrap();
    assert_eq!(l.keep::<cuCtxSetLimit::Fn>(&body, &Edges::default()), Some(Keep::PLAIN), "the highest so far");
}

#[test]
fn code_that_is_loaded_beside_arrays_needs_them() {
    let mut l = ledger();
    l.append(ops::id::ARRAY_MAKE, &[], &[], &edges(&[70], None, &[]), Keep::PLAIN).unwrap();
    let load = Keep { role: Role::Load, setting: None };
    l.append(ops::id::IMAGE_LOAD, &[], &[], &edges(&[80], None, &[5]), load).unwrap();
    make(&mut l, 90);
    l.append(ops::id::ARRAY_END, &[], &[], &edges(&[], Some(70), &[]), Keep::PLAIN).unwrap();
    l.append(ops::id::IMAGE_LOAD, &[], &[], &edges(&[81], None, &[5]), load).unwrap();
    let uses: Vec<(u64, Vec<u64>)> = l.live().unwrap().map(|r| r.map(|r| (r.seq, r.uses.to_vec())).unwrap()).collect();
    assert_eq!(uses, [(1, vec![]), (2, vec![5, 70]), (3, vec![]), (4, vec![]), (5, vec![5])], "so the array stays, with its end");
}

#[test]
fn the_arrays_that_code_needs_are_bounded() {
    let mut l = ledger();
    for handle in 0..MAX_ARRAYS as u64 + 10 {
        l.append(ops::id::ARRAY_MAKE, &[], &[], &edges(&[1000 + handle], None, &[]), Keep::PLAIN).unwrap();
    }
    l.append(ops::id::IMAGE_LOAD, &[], &[], &edges(&[80], None, &[]), Keep { role: Role::LightLoad, setting: None }).unwrap();
    assert_eq!(l.live().unwrap().last().unwrap().unwrap().uses.len(), MAX_ARRAYS);
}

#[test]
fn the_live_set_is_what_remains_of_a_random_history() {
    use crate::objects::ranges::tests::Random;
    for seed in 1..10 {
        let (mut l, mut random, mut open) = (ledger(), Random::new(seed), BTreeMap::new());
        for seq in 1..=2000u64 {
            let handle = 100 + random.below(200);
            if open.remove(&handle).is_some() {
                end(&mut l, handle);
            } else {
                make(&mut l, handle);
                open.insert(handle, seq);
            }
        }
        let mut expected: Vec<u64> = open.into_values().collect();
        expected.sort_unstable();
        assert_eq!(seqs(&l), expected, "{seed}");
        assert_eq!(l.begin_move().unwrap().iter().map(|r| r.seq).collect::<Vec<_>>(), expected);
    }
}
