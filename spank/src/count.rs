//! How many remote GPUs a job has been given by Slurm, as `scontrol show job --oneliner` prints it.

/// The number that a job has of a resource: of a gres on each of its nodes, or of a licence in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    OfNode(u32),
    OfJob(u32),
}

impl Count {
    /// What each task gets of it, when so many run on this node and in all. An error if there is not one for each.
    pub(crate) fn for_each_task(self, name: &str, on_node: u32, in_all: u32) -> Result<u32, String> {
        let (count, tasks, what) = match self {
            Count::OfNode(count) => (count, on_node, "a node has"),
            Count::OfJob(count) => (count, in_all, "the job has"),
        };
        match count / tasks.max(1) {
            0 => Err(format!("{tasks} tasks cannot share {count} {name}, which {what}: each needs one with --mrcuda=auto")),
            each => Ok(each),
        }
    }
}

/// The job's number of `name`, which is a gres (`--gres=NAME:N`) or a licence (`--licenses=NAME:N`); `None` if it has asked for neither.
pub(crate) fn of_job(shown: &str, name: &str) -> Option<Count> {
    let field = |key: &str| shown.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let of_gres = |item: &str| number(item.strip_prefix("gres:").or_else(|| item.strip_prefix("gres/"))?, name);
    let sum = |text: &str, of: &dyn Fn(&str) -> Option<u32>| {
        let numbers: Vec<u32> = text.split([',', ';']).filter_map(of).collect();
        (!numbers.is_empty()).then(|| numbers.iter().fold(0, |sum: u32, n| sum.saturating_add(*n)))
    };
    let gres = field("TresPerNode").and_then(|text| sum(text, &of_gres)).map(Count::OfNode);
    gres.or_else(|| field("Licenses").and_then(|text| sum(text, &|item| number(item, name))).map(Count::OfJob))
}

/// The number of an item `NAME`, `NAME:N`, `NAME:TYPE:N` or `NAME@SERVER:N` (of which the parts may be joined by `=`).
fn number(item: &str, name: &str) -> Option<u32> {
    let mut parts = item.split([':', '=']);
    let is_named = parts.next()?.split('@').next() == Some(name);
    is_named.then(|| parts.next_back().and_then(|last| last.parse().ok()).unwrap_or(1))
}
