use super::*;

#[test]
fn places_are_read() {
    for text in ["local", "local:3", "helper", "helper:31", "gpubox:7878/1", "unix:/run/s/0", "memory", "file:/var/park"] {
        assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
    }
    assert!(matches!("gpubox:7878/1".parse(), Ok(Spec::Remote(e)) if e.port == 7878 && e.gpu == 1));
    assert!(
        ["memory", "file:/d", "a:1/memory", "unix:/run/s/memory"].iter().all(|text| text.parse::<Spec>().unwrap().is_store())
    );
    assert!(["memory:1/0", "local", "a:1/0", "unix:/run/memory.s"].iter().all(|text| !text.parse::<Spec>().unwrap().is_store()));
    for bad in ["", "local:x", "local:32", "localhost", "helper:", "a:b", "local2", "helpers", "memory:", "file", "file:d"] {
        assert!(bad.parse::<Spec>().is_err(), "{bad}");
    }
}

fn chosen(list: &str, taken: &[u32], bound: Option<(u32, u32)>) -> String {
    let wanted = (0..).zip(list.split(',').map(|s| s.parse().unwrap())).collect();
    choose(wanted, taken, bound).iter().map(Spec::to_string).collect::<Vec<_>>().join(",")
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

fn parsed(text: &str) -> Result<Spec, SpecError> {
    text.parse()
}

#[test]
fn places_of_this_machine_may_have_a_number() {
    assert_eq!(
        (parsed("local"), parsed("local:0"), parsed("helper:31")),
        (Ok(Spec::Local(None)), Ok(Spec::Local(Some(0))), Ok(Spec::Helper(Some(31))))
    );
}

#[test]
fn a_number_that_is_too_high_is_named() {
    let error = parsed("local:32").unwrap_err();
    assert_eq!(error, SpecError::Gpu { text: "local:32".into(), number: "32".into() });
    assert_eq!(error.to_string(), "local:32: invalid GPU number `32`");
}

#[test]
fn what_is_no_number_is_named() {
    for number in ["", "x", "-1", "1 ", "0x1", "1:2", "4294967296"] {
        let text = format!("helper:{number}");
        assert_eq!(parsed(&text), Err(SpecError::Gpu { text: text.clone(), number: number.into() }));
    }
}

#[test]
fn a_text_without_a_known_form_is_quoted_with_the_forms() {
    let error = parsed("nowhere").unwrap_err();
    assert_eq!(error, SpecError::Shape("nowhere".into()));
    assert!(error.to_string().contains("HOST:PORT[/GPU]"));
}

#[test]
fn names_are_case_sensitive() {
    assert!(parsed("Local").is_err() && parsed("HELPER").is_err());
}

#[test]
fn a_host_may_be_called_like_a_prefix_of_a_place() {
    assert!(matches!(parsed("localhost:7878"), Ok(Spec::Remote(e)) if e.port == 7878 && e.gpu == 0));
    assert!(matches!(parsed("helpers:1/3"), Ok(Spec::Remote(e)) if e.gpu == 3));
}

#[test]
fn every_place_is_read_as_it_is_written() {
    for text in ["local", "local:31", "helper", "helper:0", "a:1/0", "a.b-c:65535/31", "unix:/x/0", "unix:/run/a b/7"] {
        assert_eq!(parsed(text).unwrap().to_string(), text);
    }
}

#[test]
fn only_places_of_this_machine_have_a_local_number() {
    let number = |text| parsed(text).unwrap().local_number();
    assert_eq!(
        (number("local:3"), number("helper:4"), number("local"), number("a:1/5"), number("unix:/x/6")),
        (Some(3), Some(4), None, None, None)
    );
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
