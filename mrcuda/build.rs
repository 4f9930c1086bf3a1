//! Gives `mrcuda --version` the commit that it was built from: `unknown` outside of a git checkout of this project.
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // The sources of an archive may have been unpacked in the checkout of something else.
    let is_checkout = root.join(".git").exists();
    let commit = if is_checkout { git(&root, &["rev-parse", "--short=12", "HEAD"]) } else { None };
    println!("cargo:rustc-env=MRCUDA_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    if commit.is_some() {
        // Another commit changes the second file, except where git keeps no logs; a checkout changes both.
        for name in ["HEAD", "logs/HEAD"] {
            if let Some(path) = git(&root, &["rev-parse", "--git-path", name]).map(|path| root.join(path)).filter(|p| p.exists())
            {
                println!("cargo:rerun-if-changed={}", path.display());
            }
        }
    }
}

/// The output of git, if it succeeds and is not empty.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
