use super::*;

#[test]
fn a_launcher_chooses_among_the_places() {
    let places: Vec<PlaceSpec> = ["local:0", "helper:1", "unix:/run/s/2"].map(|p| p.parse().unwrap()).to_vec();
    let seen = |shown| visible(places.clone(), shown).iter().map(PlaceSpec::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(seen(None), "local:0 helper:1 unix:/run/s/2");
    assert_eq!(seen(Some("2, 0")), "unix:/run/s/2 local:0");
    assert_eq!(seen(Some("1,1,0")), "helper:1");
    assert_eq!((seen(Some("")), seen(Some("3,0")), seen(Some("-1"))), (String::new(), String::new(), String::new()));
}

fn seen(shown: &str) -> String {
    let places: Vec<PlaceSpec> = ["local:0", "helper:1", "unix:/run/s/2"].map(|p| p.parse().unwrap()).to_vec();
    visible(places, Some(shown)).iter().map(PlaceSpec::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn numbers_may_have_spaces_around_them() {
    assert_eq!((seen(" 1 ,\t0"), seen("1 0")), ("helper:1 local:0".to_owned(), String::new()));
}

#[test]
fn everything_behind_an_invalid_number_is_invisible() {
    assert_eq!(
        (seen("0,x,1"), seen("0,,1"), seen("0,3,1"), seen("0,-1,1")),
        ("local:0".into(), "local:0".into(), "local:0".into(), "local:0".into())
    );
}

#[test]
fn a_repeated_number_ends_the_list() {
    assert_eq!((seen("1,0,1,2"), seen("0,0")), ("helper:1 local:0".to_owned(), "local:0".to_owned()));
}

#[test]
fn numbers_that_overflow_are_invalid() {
    assert_eq!(seen("0,99999999999999999999999"), "local:0");
}

#[test]
fn signals_are_known_with_and_without_their_prefix() {
    assert_eq!((signal_number("USR1"), signal_number("SIGUSR1")), (Some(libc::SIGUSR1), Some(libc::SIGUSR1)));
    assert_eq!((signal_number("HUP"), signal_number("SIGTERM")), (Some(libc::SIGHUP), Some(libc::SIGTERM)));
}

#[test]
fn unknown_signals_are_refused() {
    assert!(["", "SIG", "usr1", "10", "USR3", "SIGUSR1 ", "SIGSIGUSR1"].into_iter().all(|name| signal_number(name).is_none()));
}

#[test]
fn errors_name_the_variable_and_the_value() {
    let place = ConfigError::Place { name: "MRCUDA_SERVERS", source: "nowhere".parse::<PlaceSpec>().unwrap_err() };
    assert!(place.to_string().starts_with("MRCUDA_SERVERS: invalid place `nowhere`"), "{place}");
    assert_eq!(ConfigError::Places(33).to_string(), "MRCUDA_SERVERS: 33 places: a job can have at most 32");
    assert_eq!(ConfigError::Signal("X".into()).to_string(), "MRCUDA_SIGNAL: no signal is called X");
    assert!(ConfigError::Name("a b".into()).to_string().starts_with("MRCUDA_NAME: `a b` is not a name: it has 1 to 64 letters"));
    assert_eq!(ConfigError::Homes(2).to_string(), "MRCUDA_HOME_PLACE: 2 places: a job belongs at one");
    let policy = ConfigError::Policy("home, balance".into()).to_string();
    assert_eq!(policy, "MRCUDA_POLICY: `home, balance` is not a list of policies, separated by commas, or none");
    let connections = ConfigError::Connections { name: "MRCUDA_MOVE_CONNECTIONS", value: "0".into(), least: 1 };
    assert_eq!(connections.to_string(), "MRCUDA_MOVE_CONNECTIONS: 0 is not a number from 1 to 64");
    assert_eq!(ConfigError::CopyThreads("65".into()).to_string(), "MRCUDA_COPY_THREADS: 65 is not a number from 0 to 64");
}
