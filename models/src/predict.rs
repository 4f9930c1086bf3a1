//! Predicts the times of a move from the plan of a job.

use crate::form;
use crate::models_file::Models;

/// The figures of a move's plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The source.
    pub from: String,
    /// The target.
    pub to: String,
    /// Bytes of device memory that would be compared and copied.
    pub bytes: f64,
    /// Regions that contain them.
    pub regions: f64,
    /// Live records of the journal.
    pub records: f64,
    /// Chunks of physical memory that would be created.
    pub chunks: f64,
    /// Modules and libraries that would be loaded.
    pub modules: f64,
}

/// Predicted times of a move, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// From the request to the end of the release.
    pub total: f64,
    /// Downtime if the job writes nothing meanwhile.
    pub downtime: f64,
    /// Downtime if the job writes as much as the last round before the quiesce may leave.
    pub downtime_busy: f64,
    /// If the job has more memory than that, and rewrites all of it as fast as it is copied.
    pub rewriting: Option<Rewriting>,
    /// Whether the job is much larger than those that the models were fitted to.
    pub far: bool,
}

/// Predicted times of a move of a job that rewrites all of its memory as fast as it is copied, in seconds. Its pre-copy does not converge: a
/// second round copies as much as the first one, which ends the pre-copy, and everything is copied once more during the downtime.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rewriting {
    /// From the request to the end of the release.
    pub total: f64,
    /// The downtime.
    pub downtime: f64,
}

/// Bytes that a busy job may have written when it is quiesced: pre-copying ends when a round has sent no
/// more.
const CHANGED: f64 = (64 << 20) as f64;

/// A model that a prediction needs is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no model of `{overhead}` on `{path}`")]
pub struct MissingModel {
    /// The overhead.
    pub overhead: String,
    /// The path.
    pub path: String,
}

/// Computes the prediction.
///
/// # Errors
/// A required model is missing.
pub fn predict(models: &Models, plan: &Plan) -> Result<Prediction, MissingModel> {
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
    let rewriting = |term: &str| if term == "sent" { plan.bytes } else { amount(term) };
    let mut far = false;
    let mut seconds = |what: &str, path: &str| {
        // Without models of encrypted connections or RDMA those of plain ones are the best there is.
        let model = models.find(what, path).or_else(|| models.find(what, &path.replace("tls", "tcp").replace("rdma", "tcp")));
        let model = model.ok_or_else(|| MissingModel { overhead: what.to_owned(), path: path.to_owned() })?;
        far |= model.is_far(amount);
        Ok::<_, MissingModel>([model.seconds(amount), model.seconds(busy), model.seconds(rewriting)])
    };
    let [prepare, memsync, release] = ["prepare", "memsync", "release"].map(|what| seconds(what, &way));
    let (prepare, memsync) = (prepare?[0], memsync?[0]);
    let total = prepare + memsync + release?[0] + seconds("replay", form::transport(&plan.to))?[0];
    let [downtime, downtime_busy, all] = seconds("downtime", &way)?;
    let rewriting = (plan.bytes > CHANGED).then_some(Rewriting { total: total + memsync + all, downtime: all });
    Ok(Prediction { total: total + downtime_busy, downtime, downtime_busy, rewriting, far })
}
