//! `conformance`: calls every driver function that mrcuda declares, with valid, boundary and invalid arguments, and prints a
//! transcript that is the same for every driver that behaves in the same way: handles and addresses have names, nothing depends on
//! time. `tests/src/conformance.rs` makes transcripts natively and under mrcuda and compares them.
//!
//! Each section runs in a process of its own, so a call that crashes ends only its section's process; the section is then run
//! again without that call (or, where the cases are independent of each other, from the next one on).

#[macro_use]
extern crate tests;

#[macro_use]
mod tell;
mod code;
mod contexts;
mod identity;
mod kinds;
mod memory;
mod never;
mod objects;
mod parent;
mod references;
mod sweep;

use std::path::PathBuf;
use tell::Tell;

/// A part of the program.
pub struct Section {
    name: &'static str,
    /// Whether its cases stand for themselves: after a crash the next process goes on behind it.
    resumes: bool,
    run: fn(&Tell),
}

const SECTIONS: [Section; 35] = [
    Section { name: "never", resumes: false, run: never::list },
    Section { name: "errors", resumes: false, run: identity::errors },
    Section { name: "symbols", resumes: false, run: identity::symbols },
    Section { name: "devices", resumes: false, run: identity::devices },
    Section { name: "contexts", resumes: false, run: contexts::all },
    Section { name: "limits", resumes: false, run: contexts::limits },
    Section { name: "memory", resumes: false, run: memory::all },
    Section { name: "pointers", resumes: false, run: memory::pointers },
    Section { name: "functions", resumes: false, run: code::functions },
    Section { name: "launches", resumes: false, run: code::launches },
    Section { name: "linker", resumes: false, run: code::linker },
    Section { name: "references", resumes: false, run: references::settings },
    Section { name: "references-bound", resumes: false, run: references::bindings },
    Section { name: "kinds-copies", resumes: false, run: kinds::copies },
    Section { name: "kinds-used-copies", resumes: false, run: kinds::copies_of_used },
    Section { name: "kinds-batches", resumes: false, run: kinds::batches },
    Section { name: "kinds-fills", resumes: false, run: kinds::fills },
    Section { name: "kinds-words", resumes: false, run: kinds::words },
    Section { name: "kinds-used-writes", resumes: false, run: kinds::writes_of_used },
    Section { name: "kinds-copying-nodes", resumes: false, run: kinds::copying_nodes },
    Section { name: "kinds-writing-nodes", resumes: false, run: kinds::writing_nodes },
    Section { name: "kinds-used-nodes", resumes: false, run: kinds::nodes_of_used },
    Section { name: "kinds-updates", resumes: false, run: kinds::updates },
    Section { name: "kinds-captures", resumes: false, run: kinds::captures },
    Section { name: "kinds-arrays", resumes: false, run: kinds::arrays },
    Section { name: "kinds-attributes", resumes: false, run: kinds::attributes },
    Section { name: "kinds-advice", resumes: false, run: kinds::advice },
    Section { name: "streams", resumes: false, run: objects::streams },
    Section { name: "settings", resumes: false, run: objects::settings },
    Section { name: "start", resumes: true, run: sweep::before_start },
    Section { name: "alone", resumes: true, run: sweep::without_context },
    Section { name: "alone-buffers", resumes: true, run: sweep::without_context_with_buffers },
    Section { name: "zeros", resumes: true, run: sweep::zeros },
    Section { name: "buffers", resumes: true, run: sweep::buffers },
    Section { name: "ones", resumes: true, run: sweep::ones },
];

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Options {
    driver: PathBuf,
    /// The `mrcuda` program and the place to which each section moves itself in its middle.
    move_by: Option<(PathBuf, String)>,
    only: Option<String>,
    jobs: usize,
    /// In the process of a section: its name.
    section: Option<String>,
    /// Cases up to this number are not run, nor told.
    from: u32,
    /// Cases that crash.
    skip: Vec<u32>,
}

fn options() -> Option<Options> {
    let mut o =
        Options { driver: "libcuda.so.1".into(), move_by: None, only: None, jobs: 4, section: None, from: 0, skip: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--driver" => o.driver = args.next()?.into(),
            "--move" => o.move_by = Some((args.next()?.into(), args.next()?)),
            "--only" => o.only = Some(args.next()?),
            "--jobs" => o.jobs = args.next()?.parse().ok().filter(|n| (1..=64).contains(n))?,
            "--section" => o.section = Some(args.next()?),
            "--from" => o.from = args.next()?.parse().ok()?,
            "--skip" => o.skip.push(args.next()?.parse().ok()?),
            _ => return None,
        }
    }
    Some(o)
}

fn main() {
    let Some(o) = options() else {
        eprintln!("usage: conformance [--driver PATH] [--move MRCUDA PLACE] [--only TEXT] [--jobs N]");
        std::process::exit(64);
    };
    let Some(name) = &o.section else {
        let only = o.only.as_deref();
        let wanted: Vec<&Section> = SECTIONS.iter().filter(|s| only.is_none_or(|o| s.name.contains(o))).collect();
        parent::run(&o, &wanted);
        return;
    };
    let Some(section) = SECTIONS.iter().find(|s| s.name == name) else {
        eprintln!("conformance: there is no section {name}");
        std::process::exit(64);
    };
    match Tell::open(&o) {
        Ok(t) => (section.run)(&t),
        Err(why) => {
            eprintln!("conformance: {why}");
            std::process::exit(2);
        }
    }
}
