use super::*;

fn chosen(list: &str, taken: &[u32], bound: Option<(u32, u32)>) -> String {
    let wanted = (0..).zip(list.split(',').map(|s| s.parse().unwrap())).collect();
    choose(wanted, taken, bound).iter().map(PlaceSpec::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn the_first_local_gpu_is_in_process_and_further_ones_are_helpers() {
    assert_eq!(chosen("local", &[], None), "local:0");
    assert_eq!(chosen("local,local,local", &[], None), "local:0,helper:1,helper:2");
    assert_eq!(chosen("helper,local", &[], None), "helper:0,local:1");
    assert_eq!(chosen("a:1/0,local,helper:0", &[], None), "a:1/0,local:1,helper:0");
    assert_eq!(chosen("local,local", &[0, 2], None), "local:1,helper:3");
    // This process has had GPU 1 for device 0, or for another device.
    assert_eq!(chosen("local", &[], Some((1, 0))), "local:1");
    assert_eq!(chosen("local", &[1], Some((1, 0))), "helper:0");
    assert_eq!(chosen("local:0", &[], Some((1, 0))), "helper:0");
    assert_eq!(chosen("local", &[], Some((0, 5))), "helper:0");
}

#[test]
fn places_of_servers_are_left_alone() {
    assert_eq!(chosen("a:1/0,a:1/0,unix:/x/1", &[0, 1], Some((2, 9))), "a:1/0,a:1/0,unix:/x/1");
}

#[test]
fn requested_numbers_are_kept_and_avoided_by_others() {
    assert_eq!(chosen("local,local:0", &[], None), "local:1,helper:0");
    assert_eq!(chosen("helper,helper:0,helper:1", &[], None), "helper:2,helper:0,helper:1");
}

#[test]
fn the_same_number_may_be_requested_twice() {
    assert_eq!(chosen("local:2,local:2", &[], None), "local:2,helper:2");
}

#[test]
fn gpus_in_use_by_others_are_avoided_but_not_refused() {
    assert_eq!(chosen("local,helper", &[0, 1, 3], None), "local:2,helper:4");
    assert_eq!(chosen("local:1", &[1], None), "local:1");
}

#[test]
fn the_process_stays_with_its_gpu() {
    assert_eq!(chosen("helper,local", &[], Some((3, 1))), "helper:0,local:3");
    assert_eq!(chosen("local,local", &[], Some((3, 1))), "helper:0,local:3");
}

#[test]
fn a_gpu_of_the_process_that_another_place_wants_is_not_forced() {
    assert_eq!(chosen("helper:3,local", &[], Some((3, 1))), "helper:3,helper:0");
}

#[test]
fn at_most_one_place_is_in_process() {
    for bound in [None, Some((0, 0)), Some((1, 2)), Some((5, 9))] {
        for list in ["local,local,local", "local:1,local:0,local", "helper,local,local", "local,a:1/0,local"] {
            let all = chosen(list, &[], bound);
            assert!(all.split(',').filter(|p| p.starts_with("local")).count() <= 1, "{list} {bound:?}: {all}");
        }
    }
}
