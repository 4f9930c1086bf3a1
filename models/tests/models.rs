//! Fits of made-up figures, and files that are not what they say.

use models::fit::{fit, one};
use models::predict::{Plan, predict};
use models::{Bench, Machine, Models, Sample, check, form, plot};
use std::path::PathBuf;

fn machine() -> Machine {
    Machine { gpu: "a GPU".into(), driver: "13.0".into(), cpu: "a CPU".into(), cores: 4, system: "Linux".into(), soft: true }
}

fn sample(what: &str, path: &str, terms: &[(&str, f64)], seconds: f64) -> Sample {
    let terms = terms.iter().map(|(t, n)| ((*t).to_owned(), *n)).collect();
    Sample { what: what.into(), path: path.into(), terms, seconds, runs: 3 }
}

fn bench(samples: Vec<Sample>) -> Bench {
    Bench { kind: models::bench::KIND.into(), v: models::bench::VERSION, machine: machine(), samples }
}

/// Numbers between -1 and 1 that repeat.
fn noise(seed: &mut u64) -> f64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Copies that cost 5 ms, 80 ps a byte and 20 us a region, within 2 %; `odd`: every ninth takes ten times as long.
fn copies(sizes: &[f64], odd: bool) -> Vec<Sample> {
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let mut all = Vec::new();
    for bytes in sizes {
        for regions in [1.0, 16.0, 256.0, 4096.0] {
            let mut seconds = (5e-3 + 80e-12 * bytes + 20e-6 * regions) * (1.0 + 0.02 * noise(&mut seed));
            if odd && all.len() % 9 == 4 {
                seconds *= 10.0;
            }
            all.push(sample("memsync", "tcp->in-process", &[("bytes", *bytes), ("regions", regions)], seconds));
        }
    }
    all
}

const SIZES: [f64; 5] = [67e6, 268e6, 1074e6, 4295e6, 17180e6];
const BETWEEN: [f64; 3] = [134e6, 537e6, 8590e6];

fn close(found: f64, want: f64, within: f64) {
    assert!((found / want - 1.0).abs() < within, "{found:e}, not {want:e}");
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("mrcuda-models-{}-{name}", std::process::id()))
}

#[test]
fn known_costs_are_found() {
    for (odd, within) in [(false, 0.05), (true, 0.1)] {
        let found = fit(&[bench(copies(&SIZES, odd))]).unwrap();
        let model = found.find("memsync", "tcp->in-process").unwrap();
        close(model.cost("once"), 5e-3, within);
        close(model.cost("bytes"), 80e-12, within);
        close(model.cost("regions"), 20e-6, within);
    }
}

#[test]
fn a_cost_that_is_not_there_is_zero_and_none_is_negative() {
    // Falling with the number of regions, which nothing real does: the best that is not negative is none.
    let samples: Vec<Sample> = SIZES
        .iter()
        .flat_map(|b| {
            [1.0, 1000.0].map(|r| sample("memsync", "x", &[("bytes", *b), ("regions", r)], 1e-10 * b * (1.0 - r * 1e-4)))
        })
        .collect();
    let refs: Vec<&Sample> = samples.iter().collect();
    let model = one(form::of("memsync").unwrap(), "x", &refs).unwrap();
    assert_eq!(model.cost("regions"), 0.0);
    close(model.cost("bytes"), 1e-10, 0.1);
    // One sample, or quantities that never vary: still a model, of what can be told.
    let model = one(form::of("replay").unwrap(), "tcp", &[&sample("replay", "tcp", &[("records", 100.0)], 1e-3)]).unwrap();
    close(model.seconds(|t| if t == "records" { 100.0 } else { 0.0 }), 1e-3, 1e-6);
    assert!(one(form::of("replay").unwrap(), "tcp", &[]).is_none());
}

#[test]
fn a_right_model_passes_on_other_runs_and_a_wrong_one_is_found() {
    let right = fit(&[bench(copies(&SIZES, true))]).unwrap();
    let others = copies(&BETWEEN, false);
    let errors = check::check(&right, &others);
    assert_eq!(errors.len(), 1);
    let r = errors[0].relative();
    assert!(errors[0].holds() && r.is_accurate() && r.mean <= r.p95 && r.median <= r.p90, "{r:?}");
    assert!(r.p90 <= r.p95 && r.p95 <= r.max && r.max < 0.1, "{r:?}");
    assert_eq!(errors[0].points.len(), others.len());

    let mut wrong = right.clone();
    *wrong.models[0].terms.get_mut("bytes").unwrap() *= 3.0;
    let found = &check::check(&wrong, &others)[0];
    assert!(!found.holds() && !found.relative().is_accurate());
    // A model that is missing is no model that holds.
    wrong.models.clear();
    let errors = check::check(&wrong, &others);
    assert!(!errors[0].holds() && errors[0].without == others.len());
}

#[test]
fn files_of_different_machines_do_not_mix() {
    let mut other = bench(copies(&SIZES, false));
    other.machine.gpu = "another GPU".into();
    assert!(fit(&[bench(copies(&SIZES, false)), other]).unwrap_err().to_string().contains("another GPU"));
    assert!(fit(&[]).is_err() && fit(&[bench(Vec::new())]).is_err());
}

#[test]
fn a_models_file_comes_back_as_it_was() {
    let models = fit(&[bench(copies(&SIZES, false))]).unwrap();
    let path = scratch("back").join("models.json");
    models.write(&path).unwrap();
    let back = Models::read(&path).unwrap();
    assert_eq!(back.machine, models.machine);
    let (was, is) = (&models.models[0], &back.models[0]);
    assert_eq!((&is.what, &is.path, is.samples, &is.range), (&was.what, &was.path, was.samples, &was.range));
    is.terms.iter().for_each(|(term, cost)| close(*cost, was.cost(term), 1e-12));
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn hostile_files_get_a_clear_error() {
    let good = serde_json::to_string(&fit(&[bench(copies(&SIZES, false))]).unwrap()).unwrap();
    let path = scratch("hostile");
    let twice = good.replacen(
        "\"models\":[",
        "\"models\":[{\"what\":\"memsync\",\"path\":\"tcp->in-process\",\"terms\":{},\"samples\":1,\"range\":{}},",
        1,
    );
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let cost = |with: &str| {
        let start = good.find("\"once\":").unwrap() + 7;
        let end = start + good[start..].find(['}', ',']).unwrap();
        format!("{}{with}{}", &good[..start], &good[end..])
    };
    for (text, want) in [
        ("", "EOF"),
        ("hello", "expected"),
        ("{}", "missing field"),
        (&good[..good.len() / 2], "EOF"),
        (deep.as_str(), "invalid type"),
        (&good.replace("mrcuda-models", "mrcuda-bench"), "kind"),
        (&good.replace("\"v\":1", "\"v\":2"), "version 2"),
        (&good.replace("\"memsync\"", "\"sorcery\""), "no overhead `sorcery`"),
        (&good.replace("\"regions\"", "\"moons\""), "moons"),
        (&good.replace("tcp->in-process", "\\u001b[2J"), "not printable"),
        (&good.replace("\"samples\"", "\"extra\":1,\"samples\""), "unknown field"),
        (&cost("-1.0"), "cannot be"),
        (&cost("1e300"), "cannot be"),
        (&cost("1e999"), "out of range"),
        (&cost("\"much\""), "invalid type"),
        (&twice, "two models"),
        (&" ".repeat(2 << 20), "longer than"),
    ] {
        std::fs::write(&path, text).unwrap();
        let words = Models::read(&path).expect_err(want).to_string();
        assert!(words.contains(want) && words.contains("hostile"), "{want}: {words}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(Models::read(&path).is_err());
}

#[test]
fn hostile_benchmark_files_too() {
    let good = serde_json::to_string(&bench(copies(&SIZES, false))).unwrap();
    let path = scratch("bench");
    for (text, want) in [
        (good.replace("mrcuda-bench", "x"), "kind"),
        (good.replacen('{', &format!("{{\"x\":{}", "[".repeat(100_000)), 1), "expected"),
        (good.replace("\"v\":1", "\"v\":7"), "version 7"),
        (good.replace("\"memsync\"", "\"sorcery\""), "sorcery"),
        (good.replacen("\"seconds\":", "\"seconds\":-", 1), "a time is -"),
    ] {
        std::fs::write(&path, text).unwrap();
        let words = Bench::read(&path).expect_err(want).to_string();
        assert!(words.contains(want), "{want}: {words}");
    }
    // What is there for people does not disturb.
    std::fs::write(&path, good.replacen('{', "{\"calls\":{\"tcp\":[]},", 1)).unwrap();
    assert_eq!(Bench::read(&path).unwrap().samples.len(), 20);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_models_in_the_program_predict_the_moves_that_they_came_from() {
    let models = Models::builtin();
    let path = scratch("builtin");
    models.write(&path).unwrap();
    // Reading from a file checks what reading from the program does not.
    assert_eq!(Models::read(&path).unwrap().models.len(), models.models.len());
    std::fs::remove_file(&path).unwrap();
    let plan = |from: &str, to: &str| Plan {
        from: from.into(),
        to: to.into(),
        bytes: (16u64 << 30) as f64,
        regions: 1.0,
        records: 10.0,
        chunks: 1.0,
        modules: 1.0,
    };
    // docs/measurements.md, "Models": tls->in-process, 16 GiB in 1 region: 1.71 s and 21.7 ms.
    let p = predict(&models, &plan("a:1/0", "local:0")).unwrap();
    assert!(
        (1.5..1.9).contains(&p.total) && (0.019..0.025).contains(&p.downtime) && p.downtime_busy > p.downtime && !p.far,
        "{p:?}"
    );
    // Without convergence: one more round, and all of it again during the downtime.
    let worst = p.rewriting.unwrap();
    assert!(worst.downtime > p.downtime_busy && worst.total > p.total + worst.downtime - p.downtime_busy, "{p:?}");
    assert!((worst.total - p.total - worst.downtime + p.downtime_busy - 1.37).abs() < 0.2, "{p:?}");
    let mut small = plan("a:1/0", "local:0");
    small.bytes = (32 << 20) as f64;
    assert_eq!(predict(&models, &small).unwrap().rewriting, None);
    let why = predict(&Models::new(machine(), Vec::new()), &plan("a:1/0", "unix:/x")).unwrap_err();
    assert!(why.path == "tls->shm" && why.to_string().contains("tls->shm"), "{why}");
    let mut huge = plan("a:1", "b:1");
    huge.bytes *= 100.0;
    assert!(predict(&models, &huge).unwrap().far);
}

/// Moves of 16 GiB over TCP between two H200s (docs/measurements.md, Downtime, 2026-11-28 09:37): the rates are those of the job that changes
/// nothing (30.2 GB/s, a pause of 14.4 ms, 762 ms in all); the job that rewrites everything took 547 to 557 ms of downtime, 1,711 to 1,775 ms
/// in all.
#[test]
fn a_job_that_rewrites_everything_is_predicted_from_one_that_changes_nothing() {
    let bytes = (16u64 << 30) as f64;
    let each = 1.0 / 30.2e9;
    let model = |what: &str, path: &str, terms: &[(&str, f64)]| {
        let samples: Vec<Sample> = [1.0, 2.0]
            .iter()
            .map(|n| sample(what, path, &terms.iter().map(|(t, _)| (*t, *n)).collect::<Vec<_>>(), 1.0))
            .collect();
        let mut model = one(form::of(what).unwrap(), path, &samples.iter().collect::<Vec<_>>()).unwrap();
        model.terms = terms.iter().map(|(term, cost)| ((*term).to_owned(), *cost)).collect();
        model
    };
    let way = "tcp->tcp";
    // What is neither copied nor a pause took 762 - 569 - 14 ms, however it is divided.
    let models = Models::new(
        machine(),
        vec![
            model("memsync", way, &[("bytes", each)]),
            model("downtime", way, &[("once", 0.0144), ("sent", each)]),
            model("prepare", way, &[("once", 0.089)]),
            model("release", way, &[("once", 0.089)]),
            model("replay", "tcp", &[("once", 0.001)]),
        ],
    );
    let plan = Plan {
        from: "plain://a:1/0".into(),
        to: "plain://b:1/0".into(),
        bytes,
        regions: 1.0,
        records: 10.0,
        chunks: 1.0,
        modules: 1.0,
    };
    let p = predict(&models, &plan).unwrap();
    assert!((p.downtime - 0.0144).abs() < 1e-9, "{p:?}");
    let worst = p.rewriting.unwrap();
    assert!((worst.downtime / 0.552 - 1.0).abs() < 0.1 && (worst.total / 1.743 - 1.0).abs() < 0.15, "{worst:?}");
}

#[test]
fn plots_are_drawn() {
    let path = scratch("plot.svg");
    let series = [plot::Series::new("first", vec![(1.0, 2.0), (100.0, 1e4), (0.0, 1.0), (f64::NAN, 1.0)])];
    let plot = plot::Plot { title: "a title", x: "bytes", y: "seconds", diagonal: true, lines: true, ..plot::Plot::default() };
    plot::draw(&path, &plot, &series).unwrap();
    let svg = std::fs::read_to_string(&path).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("a title") && svg.matches("<circle").count() >= 2, "{svg}");
    std::fs::remove_file(&path).unwrap();
    assert!(plot::draw(&path, &plot, &[]).is_err());
}
