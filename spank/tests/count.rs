//! What the plugin reads of a job. The plugin itself cannot be linked into a test, because it calls functions of slurmstepd.

#[path = "../src/count.rs"]
mod count;

use count::{Count, of_job};

#[test]
fn the_number_of_a_gres_or_a_licence_is_found() {
    for (shown, wanted) in [
        ("JobId=7 JobName=a Licenses=(null) TresPerNode=gres:rgpu:2 Power=", Some(Count::OfNode(2))),
        ("JobId=7 TresPerNode=gres/rgpu:2,gres/gpu:1", Some(Count::OfNode(2))),
        ("JobId=7 TresPerNode=gres:gpu:1,gres:rgpu", Some(Count::OfNode(1))),
        ("JobId=7 TresPerNode=gres:rgpu:h200:3,gres:rgpu:a100:1", Some(Count::OfNode(4))),
        ("JobId=7 Licenses=matlab:5,rgpu:3 Network=(null)", Some(Count::OfJob(3))),
        ("JobId=7 Licenses=rgpu@slurmdb:2", Some(Count::OfJob(2))),
        ("JobId=7 Licenses=rgpu", Some(Count::OfJob(1))),
        ("JobId=7 Licenses=rgpus:3 TresPerNode=gres:gpu:2", None),
        ("JobId=7 Licenses=(null)", None),
        ("", None),
    ] {
        assert_eq!(of_job(shown, "rgpu"), wanted, "{shown}");
    }
}

#[test]
fn tasks_share_what_the_node_or_the_job_has() {
    assert_eq!(Count::OfNode(4).for_each_task("rgpu", 2, 8), Ok(2));
    assert_eq!(Count::OfJob(8).for_each_task("rgpu", 2, 4), Ok(2));
    assert_eq!(Count::OfNode(5).for_each_task("rgpu", 2, 8), Ok(2));
    assert_eq!(Count::OfNode(1).for_each_task("rgpu", 0, 0), Ok(1));
    let why = Count::OfNode(1).for_each_task("rgpu", 2, 2).unwrap_err();
    assert!(why.contains("2 tasks cannot share 1 rgpu, which a node has"), "{why}");
    assert!(Count::OfJob(1).for_each_task("rgpu", 1, 2).is_err());
}
