//! `surface`: calls the driver functions that programs use less, rightly and wrongly, and prints what each answered.
//!
//! The text is the same natively and under mrcuda, except for the differences that the tests list. With `--pause FILE` the
//! program builds its objects, then waits for the file (so that it can be moved) and uses them.

#[macro_use]
extern crate tests;

#[macro_use]
mod driver;
mod arrays;
mod contexts;
mod copies;
mod devices;
mod graphs;
mod memory;
mod modules;
mod pools;
mod sparse;
mod streams;
mod textures;
mod variables;
mod vmm;

use driver::Surface;
use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let pause = match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => None,
        ["--pause", file] => Some(*file),
        _ => {
            eprintln!("usage: surface [--pause FILE]");
            std::process::exit(64);
        }
    };
    let s = Surface::open().unwrap_or_else(|why| {
        eprintln!("surface: {why}");
        std::process::exit(2);
    });
    devices::before_start(&s);
    devices::identity(&s);
    contexts::primary(&s);
    let streams = streams::build(&s);
    let code = modules::build(&s);
    let shared = variables::build(&s);
    let buffers = memory::build(&s);
    let pooled = pools::build(&s, streams.plain);
    let mapped = vmm::build(&s);
    let shaped = arrays::build(&s);
    let tiled = sparse::build(&s);
    let objects = textures::build(&s);
    if let Some(file) = pause {
        eprintln!("built");
        while !Path::new(file).exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    streams::use_them(&s, &streams);
    modules::use_them(&s, &code, &buffers, streams.plain);
    variables::use_them(&s, &shared);
    memory::use_them(&s, &buffers);
    memory::prefetch_captured(&s, streams.plain);
    copies::all(&s, &buffers, streams.plain);
    streams::words(&s, &streams, buffers.device + 32768);
    graphs::all(&s, streams.plain, streams.untimed, buffers.device + 32768);
    pools::use_them(&s, &pooled, streams.plain);
    vmm::use_them(&s, &mapped);
    arrays::use_them(&s, &shaped, &buffers, streams.plain);
    sparse::use_them(&s, &tiled, streams.plain);
    textures::use_them(&s, &objects, &buffers);
    pools::end(&s, pooled, streams.plain);
    vmm::end(&s, mapped);
    arrays::end(&s, shaped);
    sparse::end(&s, tiled);
    textures::end(&s, objects);
    contexts::others(&s);
    contexts::made(&s, streams.untimed);
    contexts::parts(&s, streams.untimed);
    devices::links(&s);
    streams::end(&s, streams);
    modules::end(&s, code);
    variables::end(&s, shared);
    memory::end(&s, buffers);
    contexts::reset(&s);
}
