//! What a move will take, from what the plan says of the job.

use crate::form;
use crate::models_file::Models;

/// What the plan of a move says.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Where the job is.
    pub from: String,
    /// Where it would go.
    pub to: String,
    /// Bytes of device memory that would be compared and copied.
    pub bytes: f64,
    /// Regions that they lie in.
    pub regions: f64,
    /// Live records of the journal.
    pub records: f64,
    /// Chunks of physical memory that would be made.
    pub chunks: f64,
    /// Modules and libraries that would be loaded.
    pub modules: f64,
}

/// How long a move is expected to take, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// From the request to the end of the release.
    pub total: f64,
    /// How long the job stands still if it changes nothing meanwhile.
    pub downtime: f64,
    /// The same if it changes as much as the last round before the pause may leave.
    pub downtime_busy: f64,
    /// Whether the job is much larger than what the models were fitted to.
    pub far: bool,
}

/// Bytes that a busy job may have changed when it is stopped: pre-copying ends when a round has sent no more.
const CHANGED: f64 = (64 << 20) as f64;

/// The prediction, or what there is no model of.
///
/// # Errors
/// A model that is needed and missing, by name and path.
pub fn predict(models: &Models, plan: &Plan) -> Result<Prediction, String> {
    let way = form::way(&plan.from, &plan.to);
    let amount = |term: &str| match term {
        "bytes" | "held" => plan.bytes,
        "regions" => plan.regions,
        "records" => plan.records,
        "chunks" => plan.chunks,
        "modules" => plan.modules,
        _ => 0.0,
    };
    let busy = |term: &str| if term == "sent" { CHANGED.min(plan.bytes) } else { amount(term) };
    let mut far = false;
    let mut seconds = |what: &str, path: &str| {
        let model = models.find(what, path).ok_or_else(|| format!("there is no model of `{what}` on `{path}`"))?;
        far |= model.is_far(amount);
        Ok::<_, String>((model.seconds(amount), model.seconds(busy)))
    };
    let mut total = 0.0;
    for what in ["prepare", "memsync", "release"] {
        total += seconds(what, &way)?.0;
    }
    total += seconds("replay", form::transport(&plan.to))?.0;
    let (downtime, downtime_busy) = seconds("downtime", &way)?;
    Ok(Prediction { total: total + downtime_busy, downtime, downtime_busy, far })
}
