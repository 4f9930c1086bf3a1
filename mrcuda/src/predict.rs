//! Predicts the times of a move from a plan's figures, with the models of this machine.

use crate::table::duration;
use crate::timeline::describe;
use control::{Move, Plan};
use models::Models;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Where `mrcuda models fit` writes the models and a plan reads them: `$XDG_CONFIG_HOME/mrcuda/models.json`, or in
/// `~/.config`.
pub(crate) fn default_file() -> Option<PathBuf> {
    let config = match std::env::var_os("XDG_CONFIG_HOME") {
        Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir),
        _ => PathBuf::from(std::env::var_os("HOME").filter(|h| !h.is_empty())?).join(".config"),
    };
    Some(config.join("mrcuda").join("models.json"))
}

/// Predicted times of a move, in milliseconds; `None` if unknown.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Predicted {
    /// From the request to the end of the release.
    total_ms: Option<f64>,
    /// Downtime if the job writes nothing meanwhile.
    downtime_ms: Option<f64>,
    /// Downtime if the job writes as much as the last round before the quiesce may leave.
    downtime_busy_ms: Option<f64>,
    /// From the request to the end of the release, if the job rewrites all of its memory as fast as it is copied; null if its memory is so
    /// small that `downtime_busy_ms` covers that.
    total_rewriting_ms: Option<f64>,
    /// Downtime of such a job.
    downtime_rewriting_ms: Option<f64>,
    /// Caveats about these figures.
    warnings: Vec<String>,
}

/// The models to predict with; adds a warning if they are not this machine's.
fn models(warnings: &mut Vec<String>) -> Models {
    match default_file().filter(|f| f.exists()).map(|f| Models::read(&f)) {
        Some(Ok(models)) => return models,
        Some(Err(why)) => warnings.push(why.to_string()),
        None => {}
    }
    let builtin = "by built-in models, which are not of this machine (mrcuda bench and mrcuda models fit make some that are)";
    warnings.push(builtin.to_owned());
    Models::builtin()
}

/// The first of several places.
fn first(places: &str) -> String {
    places.split(',').next().unwrap_or_default().to_owned()
}

/// The prediction for a plan. Several GPUs move in parallel; they are treated as one with the sum of their figures.
pub(crate) fn predict(plan: &Plan) -> Predicted {
    predict_from(models::predict::Plan {
        from: first(&plan.from),
        to: first(&plan.to),
        bytes: plan.chunk_bytes.saturating_sub(plan.adoptable_bytes) as f64,
        regions: plan.chunks as f64,
        records: plan.records as f64,
        chunks: plan.chunks as f64,
        modules: plan.modules as f64,
    })
}

/// What a plan would have predicted for a move that has succeeded, from what it had to carry.
pub(crate) fn predict_move(it: &Move) -> Option<Predicted> {
    let to = it.legs.first().map_or(&it.to, |gpu| &gpu.to);
    it.ok.then(|| {
        predict_from(models::predict::Plan {
            from: first(&it.from),
            to: first(to),
            bytes: it.chunk_bytes.saturating_sub(it.bytes_adopted) as f64,
            regions: it.chunks as f64,
            records: it.records as f64,
            chunks: it.chunks as f64,
            modules: it.modules as f64,
        })
    })
}

fn predict_from(figures: models::predict::Plan) -> Predicted {
    let mut warnings = Vec::new();
    let predicted = models::predict::predict(&models(&mut warnings), &figures);
    let ms = |s: f64| Some(s * 1e3);
    match predicted {
        Ok(p) => {
            if p.far {
                warnings.push("the job is much larger than what the models were fitted to".to_owned());
            }
            Predicted {
                total_ms: ms(p.total),
                downtime_ms: ms(p.downtime),
                downtime_busy_ms: ms(p.downtime_busy),
                total_rewriting_ms: p.rewriting.and_then(|r| ms(r.total)),
                downtime_rewriting_ms: p.rewriting.and_then(|r| ms(r.downtime)),
                warnings,
            }
        }
        Err(why) => {
            warnings.push(why.to_string());
            Predicted {
                total_ms: None,
                downtime_ms: None,
                downtime_busy_ms: None,
                total_rewriting_ms: None,
                downtime_rewriting_ms: None,
                warnings,
            }
        }
    }
}

impl Predicted {
    /// The downtime of a job that writes as much as it may, or of one that writes nothing.
    pub(crate) fn downtime_ms(&self) -> Option<f64> {
        self.downtime_busy_ms.or(self.downtime_ms)
    }

    /// Whether anything is predicted.
    pub(crate) fn is_one(&self) -> bool {
        self.total_ms.is_some()
    }

    /// The prediction as text.
    pub(crate) fn words(&self) -> String {
        let mut out = match (self.total_ms, self.downtime_ms, self.downtime_busy_ms) {
            (Some(total), Some(still), Some(busy)) => format!(
                "   predicted: {} in all; downtime {}, or {} if the job writes much memory meanwhile\n",
                duration(total),
                duration(still),
                duration(busy)
            ),
            _ => "   no prediction\n".to_owned(),
        };
        if let (Some(total), Some(downtime)) = (self.total_rewriting_ms, self.downtime_rewriting_ms) {
            out.push_str(&format!(
                "   if the job rewrites all of its memory meanwhile: {} in all; downtime {}\n",
                duration(total),
                duration(downtime)
            ));
        }
        for warning in &self.warnings {
            out.push_str(&format!("   ({warning})\n"));
        }
        out
    }
}

/// Describes a move, and what was to be expected of it.
pub(crate) fn describe_with_prediction(it: &Move) -> String {
    describe(it) + &predict_move(it).filter(Predicted::is_one).map(|p| p.words()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_predicted_or_it_is_said_what_is_missing() {
        let plan = |from: &str, to: &str| Plan {
            from: from.into(),
            to: to.into(),
            chunk_bytes: 1 << 30,
            chunks: 1,
            records: 10,
            ..Plan::default()
        };
        // With the built-in models, or with those of the user who runs this.
        let p = predict(&plan("a:1/0,b:1/0", "local:0"));
        assert!(
            p.total_ms > p.downtime_busy_ms && p.downtime_busy_ms >= p.downtime_ms && p.words().contains("downtime "),
            "{p:?}"
        );
        assert!(p.total_rewriting_ms > p.total_ms && p.downtime_rewriting_ms > p.downtime_busy_ms, "{p:?}");
        assert!(p.words().contains("rewrites all of its memory"), "{}", p.words());
        let none = predict(&plan("here", "unix:/x"));
        assert!(none.total_ms.is_some() || none.words().contains("no model of `prepare` on `tls->shm`"), "{none:?}");
        predict(&plan("", ""));
    }
}
