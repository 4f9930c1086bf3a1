//! Drains that an administrator asks for.

use super::*;
use crate::inspect::inspect;
use crate::leave_request::LeaveRequest;
use crate::request_drain::drain;
use crate::server_drain::{DrainRequest, DrainState, DrainWish};
use crate::server_event::{ServerEventKind, ServerEvents};
use crate::user_tokens::TokensFile;
use std::sync::mpsc::{Receiver, channel};

const LONG: Duration = Duration::from_secs(120);

fn asked(link: &Link) -> Receiver<LeaveRequest> {
    let (sender, receiver) = channel();
    link.set_leave_hook(move |request| drop(sender.send(request)));
    receiver
}

fn request(wish: DrainWish, to: Option<&str>) -> DrainRequest {
    DrainRequest { wish, to: to.map(str::to_owned), limit_ms: LONG.as_millis() as u64 }
}

fn ask(s: &Scene, wish: DrainWish, to: Option<&str>) -> DrainState {
    drain(&s.at(0), Some(&s.credentials), &request(wish, to)).unwrap()
}

fn connect(s: &Scene) -> Result<Arc<Link>, LinkError> {
    Link::connect(&s.at(0), Some(&s.credentials), &hello(), None)
}

#[test]
fn a_server_is_drained_from_another_machine_and_opened_again() {
    let s = Scene::lending(vec![0]);
    let events = ServerEvents::follow(&s.at(0), Some(&s.credentials)).unwrap();
    let next = |kind| loop {
        let event = events.next_event().unwrap();
        if event.kind == kind {
            break event;
        }
    };
    let link = connect(&s).unwrap();
    let requests = asked(&link);
    assert!(!ask(&s, DrainWish::Show, None).closed);
    let state = ask(&s, DrainWish::Begin, Some("b:1/3"));
    assert_eq!((state.closed, state.ending, state.to.as_deref(), state.workers), (true, false, Some("b:1/3"), 1));
    let asked = requests.recv_timeout(LONG).unwrap();
    assert_eq!((asked.to.as_str(), asked.request), ("b:1/3", None));
    assert_eq!((next(ServerEventKind::DrainBegan).to.as_deref()), Some("b:1/3"));
    let why = connect(&s).unwrap_err().to_string();
    assert!(why.contains("takes no new jobs") && !why.contains("ending"), "{why}");
    assert!(inspect(&s.at(0), Some(&s.credentials)).unwrap().ending);
    // The job's reason is shown, and it is asked again.
    link.control(&Control::Stay { request: None, why: "no room".into() }).unwrap();
    assert!(soon(|| ask(&s, DrainWish::Show, None).jobs.iter().any(|job| job.reason.as_deref() == Some("no room"))));
    requests.recv_timeout(LONG).unwrap();
    link.close();
    assert_eq!(next(ServerEventKind::DrainEnded).count, Some(0));
    let state = ask(&s, DrainWish::Show, None);
    assert_eq!((state.closed, state.to, state.workers), (true, None, 0), "it stays closed");
    assert!(!ask(&s, DrainWish::Cancel, None).closed);
    connect(&s).unwrap().close();
}

#[test]
fn a_server_that_is_only_closed_asks_no_job_and_a_cancelled_drain_asks_no_more() {
    let s = Scene::lending(vec![0]);
    let link = connect(&s).unwrap();
    let requests = asked(&link);
    assert!(ask(&s, DrainWish::Begin, None).closed);
    assert!(requests.recv_timeout(Duration::from_millis(200)).is_err());
    ask(&s, DrainWish::Begin, Some("local"));
    requests.recv_timeout(LONG).unwrap();
    link.control(&Control::Stay { request: None, why: "no".into() }).unwrap();
    assert!(!ask(&s, DrainWish::Cancel, None).closed);
    // It would be asked again after a second.
    requests.try_iter().for_each(drop);
    assert!(requests.recv_timeout(Duration::from_millis(2500)).is_err());
    // A new drain asks it at once, whatever it has said before.
    ask(&s, DrainWish::Begin, Some("helper"));
    assert_eq!(requests.recv_timeout(LONG).unwrap().to, "helper");
}

#[test]
fn only_administrators_drain_a_server() {
    let s = Scene::lending(vec![0, 1]);
    let link = connect(&s).unwrap();
    let requests = asked(&link);
    let token = TokensFile::beside(&s.directory.join("token")).add("ann").unwrap().token;
    let ann = Credentials { token: Some(token), ..s.credentials.clone() };
    let stranger = Credentials { token: Some(Token([9; 32])), ..s.credentials.clone() };
    for wish in [DrainWish::Show, DrainWish::Begin, DrainWish::Cancel] {
        for (by, words) in [(&ann, "only this server's administrator"), (&stranger, "wrong token")] {
            let why = drain(&s.at(0), Some(by), &request(wish, Some("local"))).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
    }
    for bad in ["nowhere", "file:/x", "b:1,c:1,d:1", ""] {
        assert!(drain(&s.at(0), Some(&s.credentials), &request(DrainWish::Begin, Some(bad))).is_err(), "{bad}");
    }
    assert!(!ask(&s, DrainWish::Show, None).closed && requests.try_recv().is_err());
    // The server's user on its machine.
    assert!(drain(&s.unix(0), None, &request(DrainWish::Begin, None)).unwrap().closed);
}
