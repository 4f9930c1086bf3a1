use super::*;
use rcuda_forwarder::NotGreeted;

/// One value of each variant.
fn all() -> Vec<MoveError> {
    let place = || "nowhere".parse::<rcuda_forwarder::PlaceSpec>().unwrap_err();
    let refused = || Refused::Other("no".to_owned());
    let io = || io::Error::other("no");
    let at = || Moment::Phase("delta".to_owned());
    let server = || "a:1/0".parse().unwrap();
    let divergence = Divergence { seq: 1, call: "c".to_owned(), expected: "a".to_owned(), got: "b".to_owned() };
    vec![
        MoveError::NoGpu,
        MoveError::BadPlace(place()),
        MoveError::PlaceCount { places: 2, gpus: 1 },
        MoveError::NoSuchGpu { gpu: 1, last: 0 },
        MoveError::Busy { id: None },
        MoveError::QueueFull { waiting: 16, ahead: "m1".to_owned() },
        MoveError::DuplicateId { id: "m1".to_owned() },
        MoveError::NoSuchMove { id: None },
        MoveError::TooLate { id: "m1".to_owned(), how: MoveEnd::Done },
        MoveError::JobEnded { at: None },
        MoveError::Cancelled { at: Moment::BeforeStart },
        MoveError::DeadlineExceeded { at: at(), limit_ms: 1 },
        MoveError::DowntimeExceeded { at: at(), limit_ms: 1 },
        MoveError::AlreadyThere,
        MoveError::NotParked,
        MoveError::ParkedTogether,
        MoveError::ParkedFile("no".to_owned()),
        MoveError::ContextFailed(719),
        MoveError::SharedWithProcesses(Shared::Events),
        MoveError::PeerAccess { user: 0, owner: 1 },
        MoveError::TextureMemoryFreed { address: 1 },
        MoveError::NotIdle(Busyness::Answer),
        MoveError::NoMembarrier,
        MoveError::NoJournal(Arc::new(NoJournal::Memory(JournalError::NotAJournal))),
        MoveError::JournalIncomplete(JournalError::Incomplete),
        MoveError::InternalError("no".to_owned()),
        MoveError::TargetUnreachable(LinkError::Connect { to: server(), source: io() }),
        MoveError::TargetRefused(LinkError::Greeting { to: server(), why: NotGreeted::NoAnswer }),
        MoveError::NoToken(OpenError::Token(rcuda_forwarder::TokenError::Open { path: "token".into() })),
        MoveError::PlaceUnusable(OpenError::NoDriver),
        MoveError::DriverVersion { target: 12080, job: 13000 },
        MoveError::DriverBuild { target: "1".to_owned(), job: "2".to_owned() },
        MoveError::ComputeCapability { name: "a".to_owned(), target: [8, 0], job: [9, 0] },
        MoveError::GpuAttribute { what: "a".to_owned(), target: None, job: Some(1) },
        MoveError::GpuModel { target: "a".to_owned(), job: "b".to_owned() },
        MoveError::NoCode { capability: 80 },
        MoveError::NotResident { blocks: 2, resident: 1 },
        MoveError::NotShown("why"),
        MoveError::NoMemory { needed: 2, free: 1 },
        MoveError::HostMemory { error: 2, bytes: 1 },
        MoveError::TargetPeerAccess(1),
        MoveError::LayoutDiffers(Layout::Count { here: 1, there: 2 }),
        MoveError::ReplayDiverged(divergence),
        MoveError::NotConnected("no".to_owned()),
        MoveError::PlaceLost(None),
        MoveError::PlaceRefused(refused()),
        MoveError::BadAnswer("no".to_owned()),
        MoveError::PlaceSilent(Duration::from_secs(1)),
        MoveError::CallFailed { call: "c".to_owned(), error: 2 },
        MoveError::CopyFailed(refused()),
        MoveError::CopyTooSlow(Some(Duration::from_secs(1))),
        MoveError::NotIdentical("no".to_owned()),
        MoveError::SystemError { what: "start a thread", error: io() },
    ]
}

#[test]
fn every_variant_has_a_code_of_its_own() {
    let all = all();
    let variants: std::collections::HashSet<_> = all.iter().map(std::mem::discriminant).collect();
    assert_eq!(variants.len(), all.len());
    // Codes that only the protocol and the commands use.
    let others =
        ["bad-request", "version", "unknown-op", "too-long", "too-many", "forbidden", "no-job", "several-jobs", "no-answer"];
    for code in ReasonCode::ALL {
        let wanted = usize::from(!others.contains(&code.as_str()));
        assert_eq!(all.iter().filter(|e| e.code() == *code).count(), wanted, "{code}");
    }
    assert!(all.iter().all(|e| !matches!(e.code(), ReasonCode::Unknown(_)) && !e.to_string().is_empty()));
}

#[test]
fn a_failure_names_all_reasons_and_the_first_one_counts() {
    let several = vec![MoveError::NoMemory { needed: 5 << 20, free: 3 << 20 }, MoveError::AlreadyThere];
    let failure = Failure::unless_empty(several).unwrap_err().in_phase("prepare").of_gpu(1);
    assert_eq!(failure.code(), ReasonCode::NoMemory);
    let text =
        "GPU 1: cannot move: the job needs 5 MiB, the target has 3 MiB free; cannot move: the job is already at this place";
    assert_eq!(failure.to_string(), text);
    let lost = Failure::from(MoveError::PlaceLost(None)).in_phase("replay").in_phase("delta");
    assert_eq!(lost.to_string(), "replay: the target is gone");
    assert!(Failure::unless_empty(Vec::new()).is_ok());
}

#[test]
fn a_refusal_names_the_move() {
    let refusal = Refusal::from(MoveError::QueueFull { waiting: 16, ahead: "m1".to_owned() });
    assert_eq!((refusal.error, refusal.id.as_deref()), (::control::ErrorCode::Busy, Some("m1")));
    assert_eq!(refusal.code, Some(ReasonCode::QueueFull));
    let refusal = Refusal::from(MoveError::JobEnded { at: None });
    assert_eq!((refusal.error, refusal.code), (::control::ErrorCode::TooLate, Some(ReasonCode::JobEnded)));
}

fn server() -> rcuda_forwarder::Endpoint {
    "a:1/0".parse().unwrap()
}

fn code_of(e: LinkError) -> ReasonCode {
    MoveError::from(e).code()
}

#[test]
fn refusals_of_a_place_are_told_apart() {
    let of = |why| code_of(LinkError::Refused(why));
    assert_eq!(of(Refused::NotIdentical("x".into())), ReasonCode::NotIdentical);
    assert_eq!(of(Refused::OtherMemory("x".into())), ReasonCode::LayoutDiffers);
    assert_eq!(of(Refused::Unreachable("x".into())), ReasonCode::NotConnected);
    for why in [Refused::Other("x".into()), Refused::Driver(2), Refused::UnknownTicket, Refused::OtherEnd("x".into())] {
        assert_eq!(of(why), ReasonCode::PlaceRefused);
    }
}

#[test]
fn a_place_that_cannot_be_reached_is_not_one_that_refuses() {
    let io = || io::Error::other("no");
    assert_eq!(code_of(LinkError::Connect { to: server(), source: io() }), ReasonCode::TargetUnreachable);
    assert_eq!(code_of(LinkError::Setup { to: server(), source: io() }), ReasonCode::TargetUnreachable);
    assert_eq!(code_of(LinkError::Helper(io())), ReasonCode::TargetUnreachable);
    assert_eq!(code_of(LinkError::Greeting { to: server(), why: NotGreeted::NoAnswer }), ReasonCode::TargetRefused);
    assert_eq!(code_of(LinkError::NoToken { to: server() }), ReasonCode::TargetRefused);
}

#[test]
fn a_silent_place_is_lost_and_a_wrong_answer_is_not() {
    assert_eq!(code_of(LinkError::Unanswered(Duration::from_secs(3))), ReasonCode::PlaceLost);
    assert_eq!(code_of(LinkError::Answer), ReasonCode::BadAnswer);
}

#[test]
fn an_error_of_a_round_is_one_of_the_copy() {
    let of = |why| MoveError::of_round(LinkError::Refused(why));
    assert_eq!(of(Refused::Driver(2)).code(), ReasonCode::CopyFailed);
    assert_eq!(of(Refused::NotIdentical("x".into())).code(), ReasonCode::NotIdentical);
    assert_eq!(MoveError::of_round(LinkError::Answer).code(), ReasonCode::BadAnswer);
}

#[test]
fn a_round_that_failed_at_the_other_end_is_recognized() {
    assert!(MoveError::of_round(LinkError::Refused(Refused::OtherEnd("x".into()))).is_of_the_other_end());
    assert!(!MoveError::of_round(LinkError::Refused(Refused::Driver(2))).is_of_the_other_end());
    assert!(!MoveError::PlaceRefused(Refused::OtherEnd("x".into())).is_of_the_other_end());
}

#[test]
fn errors_of_opening_a_place_keep_their_kind() {
    let spec = || "local".parse().unwrap();
    assert_eq!(MoveError::from(OpenError::Server(LinkError::Answer)).code(), ReasonCode::BadAnswer);
    assert_eq!(MoveError::from(OpenError::NoToken { spec: spec(), file: "t".into() }).code(), ReasonCode::NoToken);
    assert_eq!(MoveError::from(OpenError::NoHelper("mhelper".into())).code(), ReasonCode::PlaceUnusable);
    assert_eq!(MoveError::from(OpenError::OwnFile(None)).code(), ReasonCode::PlaceUnusable);
}

#[test]
fn a_replay_that_diverged_is_not_a_lost_place() {
    let divergence = Divergence { seq: 1, call: "c".into(), expected: "a".into(), got: "b".into() };
    assert_eq!(MoveError::from(ReplayError::Diverged(divergence)).code(), ReasonCode::ReplayDiverged);
    assert_eq!(MoveError::from(ReplayError::Sink(MoveError::PlaceLost(None))).code(), ReasonCode::PlaceLost);
}

#[test]
fn versions_of_the_driver_are_readable() {
    assert_eq!(([13000, 12080, 12010, 11100].map(version)), ["13.0", "12.8", "12.1", "11.10"].map(str::to_owned));
}

#[test]
fn the_phase_is_named_where_the_text_needs_it() {
    let text = |e: MoveError| Failure::from(e).in_phase("delta").to_string();
    assert_eq!(text(MoveError::NotIdentical("page 3 differs".into())), "delta: page 3 differs");
    assert_eq!(text(MoveError::CallFailed { call: "c".into(), error: 2 }), "delta: c failed with error 2");
    assert_eq!(text(MoveError::AlreadyThere), "cannot move: the job is already at this place");
}

#[test]
fn every_error_reads_alone_or_with_its_phase() {
    for e in all() {
        let text = e.to_string();
        assert!(!text.ends_with('.') && !text.contains('\n') && !text.contains("  "), "{text:?}");
    }
}

#[test]
fn the_end_of_the_program_is_told_with_its_moment() {
    assert_eq!(MoveError::JobEnded { at: None }.to_string(), "too late: the program ends");
    let at = Some(Moment::Phase("replay".into()));
    assert_eq!(MoveError::JobEnded { at }.to_string(), "cancelled in the phase replay: the program ends");
}

#[test]
fn only_refusals_about_a_move_name_it() {
    let id = |e: MoveError| Refusal::from(e).id;
    assert_eq!(id(MoveError::Busy { id: Some("m1".into()) }).as_deref(), Some("m1"));
    assert_eq!(id(MoveError::DuplicateId { id: "m2".into() }).as_deref(), Some("m2"));
    assert_eq!(id(MoveError::TooLate { id: "m3".into(), how: MoveEnd::Done }).as_deref(), Some("m3"));
    assert_eq!((id(MoveError::Busy { id: None }), id(MoveError::NoGpu)), (None, None));
}
