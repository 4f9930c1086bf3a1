//! What the plugin asks `mrcuda run` for.

#[path = "../src/wanted.rs"]
mod wanted;

use wanted::Wanted;

#[test]
fn only_what_was_given_is_passed_on() {
    let least = Wanted { places: "auto:2".into(), ..Wanted::default() };
    assert_eq!(least.arguments(), ["run", "--export=null", "--server=auto:2"]);
    let some = |text: &str| Some(text.to_owned());
    let all = Wanted { places: "a:1,b:1/2".into(), on_signal: some("memory"), home: some("local"), policy: some("home,balance") };
    assert_eq!(
        all.arguments()[2..],
        ["--server=a:1,b:1/2", "--on-signal=memory", "--home=local", "--policy=home,balance"].map(str::to_owned)
    );
}

#[test]
fn a_value_is_no_option() {
    let hostile = Wanted { places: "--pool=evil:1".into(), home: Some("--driver=/tmp/x".into()), ..Wanted::default() };
    assert_eq!(hostile.arguments()[2..], ["--server=--pool=evil:1", "--home=--driver=/tmp/x"].map(str::to_owned));
}
