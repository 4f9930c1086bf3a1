//! The licences of the crates that are linked into the programs of the packages: each crate with its licence, and the texts that must go
//! with copies.

use crate::error::Error;
use ::tests::install;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The crates of the packages' programs and libraries.
const ROOTS: [&str; 6] = ["mrcuda", "mhelper", "microbench", "recorder", "nvml", "softgpu"];
/// How the names of files with licences and notices begin.
const TEXTS: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// A linked crate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Linked {
    name: String,
    version: String,
    licence: String,
    authors: String,
    repository: String,
    directory: PathBuf,
}

/// The file of the packages, for programs of a target.
pub(crate) fn text(target: &str) -> Result<String, Error> {
    let mut cargo = install::cargo();
    cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target]);
    let output = cargo.output().map_err(Error::start("cargo metadata"))?;
    Error::unless_success("cargo metadata", output.status)?;
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|e| Error::Found(format!("cargo metadata: {e}")))?;
    let linked = linked(&metadata)?;
    let texts = linked.iter().map(|it| texts(&it.directory)).collect::<Result<Vec<_>, _>>()?;
    Ok(written(&linked, &texts))
}

/// The crates that are linked, by what cargo says of all: neither those that only run while others are compiled, nor our own.
fn linked(metadata: &Value) -> Result<Vec<Linked>, Error> {
    let strange = || Error::Found("cargo metadata has another form than expected".to_owned());
    let list = |value: &Value| value.as_array().cloned().ok_or_else(strange);
    let packages: Vec<Value> = list(&metadata["packages"])?;
    let packages: HashMap<&str, &Value> = packages.iter().filter_map(|it| Some((it["id"].as_str()?, it))).collect();
    let nodes: Vec<Value> = list(&metadata["resolve"]["nodes"])?;
    let nodes: HashMap<&str, &Value> = nodes.iter().filter_map(|it| Some((it["id"].as_str()?, it))).collect();
    let is_root = |it: &Value| it["source"].is_null() && ROOTS.iter().any(|root| it["name"] == *root);
    let mut waiting: Vec<&str> = packages.iter().filter(|(_, it)| is_root(it)).map(|(id, _)| *id).collect();
    if waiting.len() != ROOTS.len() {
        return Err(strange());
    }
    let (mut seen, mut linked) = (BTreeSet::new(), BTreeSet::new());
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        let (package, node) = packages.get(id).zip(nodes.get(id)).ok_or_else(strange)?;
        if is_macro(package) {
            continue;
        }
        for edge in node["deps"].as_array().into_iter().flatten() {
            // Without a kind: neither of tests nor of build scripts.
            let is_linked = edge["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()));
            waiting.extend(edge["pkg"].as_str().filter(|_| is_linked));
        }
        if !package["source"].is_null() {
            linked.insert(described(package)?);
        }
    }
    Ok(linked.into_iter().collect())
}

/// Whether a crate only runs in the compiler.
fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array().into_iter().flatten();
    targets.flat_map(|target| target["kind"].as_array().into_iter().flatten()).any(|kind| kind == "proc-macro")
}

fn described(package: &Value) -> Result<Linked, Error> {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let (name, version) = (text("name"), text("version"));
    let in_file = package["license_file"].as_str().map(|file| format!("see {file}"));
    let licence = package["license"].as_str().map(str::to_owned).or(in_file);
    let licence = licence.ok_or_else(|| Error::Found(format!("{name} {version} does not say its licence")))?;
    let authors: Vec<&str> = package["authors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let directory = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent().unwrap_or(Path::new("")).to_owned();
    Ok(Linked { authors: authors.join(", "), repository: text("repository"), name, version, licence, directory })
}

/// The texts that a crate brings, by the names of their files.
fn texts(directory: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut texts = BTreeMap::new();
    for entry in std::fs::read_dir(directory).map_err(Error::file(directory))? {
        let path = entry.map_err(Error::file(directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if TEXTS.iter().any(|text| name.to_uppercase().starts_with(text)) && path.is_file() {
            let bytes = std::fs::read(&path).map_err(Error::file(&path))?;
            texts.insert(name, String::from_utf8_lossy(&bytes).replace("\r\n", "\n").trim().to_owned());
        }
    }
    Ok(texts)
}

/// The list of crates, and then each text once.
fn written(linked: &[Linked], texts: &[BTreeMap<String, String>]) -> String {
    let mut file =
        "The programs and libraries of mrcuda contain these crates, and Rust's standard library (MIT or Apache-2.0, with the\n\
                    texts below). The number of each text follows the name of the file in which the crate has it.\n\n"
            .to_owned();
    let mut numbered: Vec<&str> = Vec::new();
    for (it, texts) in linked.iter().zip(texts) {
        let mut references = String::new();
        for (name, text) in texts {
            let at = numbered.iter().position(|known| known == text).unwrap_or_else(|| {
                numbered.push(text);
                numbered.len() - 1
            });
            _ = write!(references, "\n    {name}: text {}", at + 1);
        }
        _ = writeln!(file, "{} {}: {}", it.name, it.version, it.licence);
        let about = [&it.authors, &it.repository];
        about.into_iter().filter(|text| !text.is_empty()).for_each(|text| _ = writeln!(file, "    {text}"));
        file.push_str(references.trim_start_matches('\n'));
        file.push_str(if references.is_empty() { "\n" } else { "\n\n" });
    }
    for (number, text) in (1..).zip(numbered) {
        _ = write!(file, "{}\nText {number}\n\n{text}\n\n", "-".repeat(80));
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn crates_that_only_run_while_others_are_compiled_are_not_linked() {
        let package = |name: &str, ours: bool, kind: &str| {
            json!({"id": name, "name": name, "version": "1.0", "license": "MIT", "authors": ["A"], "repository": null,
                "source": if ours { Value::Null } else { json!("registry") }, "manifest_path": format!("/{name}/Cargo.toml"),
                "targets": [{"kind": [kind]}]})
        };
        let edge = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let node = |name: &str, deps: Vec<Value>| json!({"id": name, "deps": deps});
        let all = vec![
            edge("linked", Value::Null),
            edge("tested", json!("dev")),
            edge("built", json!("build")),
            edge("derive", Value::Null),
        ];
        let mut packages: Vec<Value> = ROOTS.iter().map(|root| package(root, true, "lib")).collect();
        packages.extend(["linked", "deeper", "tested", "built", "quoted"].map(|name| package(name, false, "lib")));
        packages.push(package("derive", false, "proc-macro"));
        let mut nodes: Vec<Value> = ROOTS.iter().map(|root| node(root, all.clone())).collect();
        nodes.push(node("linked", vec![edge("deeper", Value::Null)]));
        nodes.push(node("derive", vec![edge("quoted", Value::Null)]));
        nodes.push(node("deeper", Vec::new()));
        let metadata = json!({"packages": packages, "resolve": {"nodes": nodes}});
        let names: Vec<String> = linked(&metadata).unwrap().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["deeper", "linked"]);
        let mut without = metadata.clone();
        without["packages"][ROOTS.len()]["license"] = Value::Null;
        assert!(linked(&without).unwrap_err().to_string().contains("linked 1.0 does not say its licence"));
    }

    #[test]
    fn each_text_is_there_once() {
        let of = |name: &str| Linked {
            name: name.into(),
            version: "1.0".into(),
            licence: "MIT".into(),
            authors: String::new(),
            repository: String::new(),
            directory: PathBuf::new(),
        };
        let text = |file: &str, text: &str| (file.to_owned(), text.to_owned());
        let texts = [
            BTreeMap::from([text("LICENSE-APACHE", "apache"), text("LICENSE-MIT", "mit")]),
            BTreeMap::from([text("COPYING", "mit")]),
        ];
        let file = written(&[of("a"), of("b")], &texts);
        assert!(
            file.contains("a 1.0: MIT\n    LICENSE-APACHE: text 1\n    LICENSE-MIT: text 2\n\nb 1.0: MIT\n    COPYING: text 2\n"),
            "{file}"
        );
        assert_eq!((file.matches("\nmit\n").count(), file.matches("Text 2\n").count()), (1, 1), "{file}");
    }

    #[test]
    fn the_crates_of_the_packages_have_licences_and_texts() {
        let file = text("x86_64-unknown-linux-gnu").unwrap();
        for linked in ["rustls ", "clap ", "ring ", "blake3 "] {
            assert!(file.lines().any(|line| line.starts_with(linked)), "{linked}");
        }
        for other in ["jsonschema ", "clap_derive ", "mrcuda "] {
            assert!(!file.lines().any(|line| line.starts_with(other)), "{other}");
        }
        assert!(file.contains("Permission is hereby granted, free of charge"), "no text");
    }
}
