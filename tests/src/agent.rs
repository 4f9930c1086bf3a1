//! `mrcuda agent` as a process under test.

use crate::scene::Scene;
use serde_json::Value;
use std::fs::{File, read_to_string};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A running agent, which is killed when it goes out of scope.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    out: PathBuf,
}

impl Agent {
    /// Starts an agent with these settings, which it reads from `NAME.toml` of the scene.
    pub fn start(scene: &Scene, name: &str, settings: &str) -> Agent {
        let config = scene.path.join(format!("{name}.toml"));
        std::fs::write(&config, settings).unwrap_or_else(|e| panic!("{}: {e}", config.display()));
        let mut command = scene.mrcuda();
        command.args(["agent", "--json", "--metrics", "127.0.0.1:0", "--config"]).arg(&config);
        Agent::run(scene, name, command)
    }

    /// Starts an agent by a command of the caller's, whose output goes to `NAME.out` of the scene.
    pub fn run(scene: &Scene, name: &str, mut command: Command) -> Agent {
        let out = scene.path.join(format!("{name}.out"));
        let file = |path: &Path| File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        command.stdout(file(&out)).stderr(file(&out.with_extension("err")));
        Agent { child: command.spawn().unwrap_or_else(|e| panic!("cannot start an agent: {e}")), out }
    }

    /// What it has printed: a value for each line.
    pub fn lines(&self) -> Vec<Value> {
        let text = read_to_string(&self.out).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// How its moves have ended: the lines that say so.
    pub fn outcomes(&self) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["event"] == "outcome").collect()
    }

    /// How many of its moves have succeeded.
    pub fn moves(&self) -> usize {
        self.outcomes().iter().filter(|line| line["ok"] == true).count()
    }

    /// What it has written to stderr.
    pub fn errors(&self) -> String {
        read_to_string(self.out.with_extension("err")).unwrap_or_default()
    }

    /// Kills it, by a signal that it cannot handle.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}
