//! A service at work for about a minute; `cargo xtask soak service` does it for as long, and with as many clients, as one likes.

use std::time::Duration;
use tests::random;
use tests::service::{self, Plan};

#[test]
fn nothing_is_lost_and_nothing_grows_where_a_server_is_replaced_and_an_agent_killed() {
    let plan = Plan {
        clients: 5,
        moves_per_hour: 900,
        length: Duration::from_secs(40),
        steps: 400,
        pace: Duration::from_millis(20),
        every: Duration::from_secs(1),
        seed: random::seed(),
    };
    let directory = std::env::temp_dir().join(format!("mrt-{}-service", std::process::id()));
    let summary = service::run(&plan, &directory, |_| ()).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(summary.problems, [""; 0], "cargo xtask soak service --seed {}: {summary:#?}", plan.seed);
    assert!(summary.identical > plan.clients && summary.moves > 0 && summary.growth.len() == 2, "{summary:#?}");
}
