//! Jobs of a server that evicts the memory of stopped ones.

use super::*;
use crate::EvictStopped;

#[test]
fn a_call_that_takes_long_neither_loses_the_server_nor_stops_the_job() {
    let s = Scene::with(vec![0], |options| options.evict_stopped = Some(EvictStopped { after: 2, memory: 1 << 30 }));
    let over_network = s.link(0);
    let shared = Link::connect(&s.unix(0), None, &hello(), None).unwrap();
    // Longer than the job waits for a heartbeat. Nobody reads the job's answers to them meanwhile.
    let calls = [&over_network, &shared].map(|link| link.request(fake::STUCK, &[&15_000u64.to_le_bytes()]).unwrap());
    for call in calls {
        assert_eq!(call.wait_for(Duration::from_secs(120)).expect("it takes 15 s").unwrap().0, code::SUCCESS);
    }
    for link in [over_network, shared] {
        assert_eq!(link.request(fake::ECHO, &[b"on"]).unwrap().wait().unwrap().0, code::SUCCESS);
        let worker = format!("worker {}: its job gives no sign of life", pid(&link));
        assert!(!lock(&LOG).iter().any(|line| line.contains(&worker)), "it was taken for stopped");
    }
}
