//! Checks whether a given program would find the recorder: some ways of linking bypass LD_LIBRARY_PATH.

use super::finding::Finding;
use crate::elf::Elf;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SUBJECT: &str = "program";

/// All findings about a program.
pub(super) fn check(name: &OsStr) -> Vec<Finding> {
    let Some(path) = find(name) else {
        return vec![Finding::bad(SUBJECT, format!("{} was not found", Path::new(name).display()))];
    };
    let script = interpreter(&path);
    let mut findings = Vec::new();
    if let Some(interpreter) = &script {
        findings.push(Finding::good(SUBJECT, format!("{} is a script for {}", path.display(), interpreter.display())));
    }
    let binary = script.unwrap_or(path);
    match Elf::read(&binary) {
        Ok(elf) => findings.extend(linked(&binary, &elf)),
        Err(why) => findings.push(Finding::bad(SUBJECT, format!("{} {why}", binary.display()))),
    }
    findings
}

/// The file that a shell would execute.
fn find(name: &OsStr) -> Option<PathBuf> {
    let plain = Path::new(name);
    if plain.components().count() > 1 {
        return plain.is_file().then(|| plain.to_owned());
    }
    let runs = |p: &PathBuf| std::fs::metadata(p).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(plain)).find(runs)
}

/// The interpreter in a script's first line; `/usr/bin/env NAME` is resolved.
fn interpreter(path: &Path) -> Option<PathBuf> {
    use std::io::Read;
    let mut head = Vec::new();
    std::fs::File::open(path).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let program = words.next()?;
    if !program.ends_with("/env") {
        return Some(PathBuf::from(program));
    }
    find(OsStr::new(words.find(|w| !w.starts_with('-') && !w.contains('='))?))
}

fn linked(path: &Path, elf: &Elf) -> Vec<Finding> {
    let name = path.display();
    let mut findings = Vec::new();
    let mode = std::fs::metadata(path).map_or(0, |m| m.mode());
    if mode & 0o6000 != 0 {
        findings.push(Finding::bad(SUBJECT, format!("{name} is set-user-id: the system ignores LD_LIBRARY_PATH for it")));
    }
    if !elf.dynamic || elf.interpreter.is_none() {
        findings.push(Finding::bad(SUBJECT, format!("{name} is linked statically: it cannot load a CUDA driver at all")));
        return findings;
    }
    let home = path.parent().unwrap_or(Path::new("/"));
    let own = |entry: &str| PathBuf::from(entry.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", &home.to_string_lossy()));
    if let Some(rpath) = &elf.rpath
        && let Some(directory) = rpath.split(':').map(own).find(|f| f.join("libcuda.so.1").exists())
    {
        findings.push(Finding::bad(
            SUBJECT,
            format!(
                "{name} has a search path of its own (DT_RPATH) with a driver in {}: it goes before mrcuda's",
                directory.display()
            ),
        ));
    }
    for directory in [home.to_owned(), home.join("lib"), home.join("../lib")] {
        if let Some(driver) = ["libcuda.so.1", "libcuda.so"].iter().map(|n| directory.join(n)).find(|p| p.exists()) {
            let text = format!("brings a driver along ({}): if it loads that by path, mrcuda is not asked", driver.display());
            findings.push(Finding::note(SUBJECT, text));
        }
    }
    if findings.is_empty() {
        let how = if elf.needed.iter().any(|n| n.starts_with("libcuda.so")) {
            "is linked with libcuda"
        } else {
            "loads libcuda when it needs it"
        };
        findings.push(Finding::good(SUBJECT, format!("{name} {how}")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn ways_past_the_search_path_are_named() {
        let dir = std::env::temp_dir().join(format!("mrcuda-doctor-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let elf = |rpath: Option<&str>| {
            let mut elf = Elf::default();
            elf.interpreter = Some("/lib64/ld-linux-x86-64.so.2".into());
            elf.dynamic = true;
            elf.rpath = rpath.map(str::to_owned);
            elf
        };
        let program = dir.join("bin/program");
        std::fs::create_dir_all(dir.join("bin")).unwrap();
        std::fs::write(&program, "").unwrap();
        let worst = |elf: &Elf| linked(&program, elf).into_iter().map(|f| f.verdict).collect::<Vec<_>>();
        assert_eq!(worst(&elf(Some("$ORIGIN/../cuda"))), [Verdict::Good]);
        std::fs::create_dir_all(dir.join("cuda")).unwrap();
        std::fs::write(dir.join("cuda/libcuda.so.1"), "").unwrap();
        assert_eq!(worst(&elf(Some("/nowhere:$ORIGIN/../cuda"))), [Verdict::Bad]);
        assert_eq!(worst(&elf(None)), [Verdict::Good]);
        std::fs::write(dir.join("bin/libcuda.so"), "").unwrap();
        assert_eq!(worst(&elf(None)), [Verdict::Note]);
        assert_eq!(worst(&Elf::default()), [Verdict::Bad]);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn scripts_lead_to_their_interpreter() {
        let path = std::env::temp_dir().join(format!("mrcuda-script-{}", std::process::id()));
        std::fs::write(&path, "#!/usr/bin/env -S sh -e\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(interpreter(&path).is_some_and(|p| p.ends_with("sh")));
        assert!(check(path.as_os_str()).iter().all(|f| f.verdict != Verdict::Bad));
        std::fs::write(&path, "#!/bin/bash\n").unwrap();
        assert_eq!(interpreter(&path), Some(PathBuf::from("/bin/bash")));
        std::fs::write(&path, "plain text").unwrap();
        assert_eq!(interpreter(&path), None);
        assert_eq!(check(path.as_os_str())[0].verdict, Verdict::Bad);
        std::fs::remove_file(path).unwrap();
    }
}
