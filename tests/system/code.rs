//! Code with managed variables, as nvcc writes it for GPUs old and new: what it looks like with these variables in the job's memory.

use cuda_image::managed::Addresses;
use cuda_image::{Image, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use tests::toolchain::Toolchain;
use tests::{Install, Scene};

const SOURCE: &str = r"
struct Pair { int a; double b; int *p; };
__device__ __managed__ int counter = 5;
__device__ __managed__ unsigned long long big[1000];
__device__ __managed__ Pair pair = {7, 2.5, nullptr};
static __device__ __managed__ char odd[3] = {1, -2, 3};
__device__ int plain = 3;
__device__ int zeroed;
__global__ void work(int n, unsigned long long *out) {
    int i = threadIdx.x;
    atomicAdd(&counter, 1);
    big[i] += n * i;
    if (n > 100) big[i + 3] += 8;
    if (i == 0) pair.a += counter, pair.b *= 2, odd[n & 1] += 3, plain++, zeroed += odd[2], out[0] = (unsigned long long)&big[10];
    if (pair.p) *pair.p = 1;
}
__global__ void nothing_else() { counter++; }
";

const SYMTAB: u32 = 2;
const RELA: u32 = 4;
const REL: u32 = 9;
/// Tables of the second form of the code, which newer compilers add.
const SECOND: [u32; 2] = [0x7000_0082, 0x7000_0085];
const MANAGED: u8 = 4;

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut word = [0; 8];
    word[..len].copy_from_slice(&bytes[at..at + len]);
    u64::from_le_bytes(word)
}

/// One relocation: file offset, type, addend, symbol name.
type Relocation = (usize, u32, u64, String);

/// What the test reads of a cubin by itself.
#[derive(Debug)]
struct Tables {
    relocations: BTreeSet<Relocation>,
    /// Names of managed variables.
    managed: BTreeSet<String>,
    /// The bytes of tables and of the section headers: they may change, other bytes only where relocations point.
    tables: Vec<std::ops::Range<usize>>,
}

fn tables(elf: &[u8]) -> Tables {
    let (at, count) = (number(elf, 0x28, 8) as usize, number(elf, 0x3C, 2) as usize);
    let header = |n: usize| at + 64 * n;
    let body = |n: usize| number(elf, header(n) + 0x18, 8) as usize;
    let size = |n: usize| number(elf, header(n) + 0x20, 8) as usize;
    let (kind, link) = (|n: usize| number(elf, header(n) + 4, 4) as u32, |n: usize| number(elf, header(n) + 0x28, 4) as usize);
    let name = |table: usize, symbol: usize| {
        let from = body(link(table)) + number(elf, body(table) + 24 * symbol, 4) as usize;
        let len = elf[from..].iter().position(|b| *b == 0).unwrap();
        String::from_utf8(elf[from..from + len].to_vec()).unwrap()
    };
    let all_headers = at..at + 64 * count;
    let mut found = Tables { relocations: BTreeSet::new(), managed: BTreeSet::new(), tables: vec![all_headers] };
    for n in 0..count {
        match kind(n) {
            k if [RELA, REL, SECOND[0]].contains(&k) => {
                let row = if k == REL { 16 } else { 24 };
                for r in (body(n)..body(n) + size(n)).step_by(row) {
                    let place = body(number(elf, header(n) + 0x2C, 4) as usize) + number(elf, r, 8) as usize;
                    let added = if k == REL { 0 } else { number(elf, r + 16, 8) };
                    let symbol = name(link(n), number(elf, r + 12, 4) as usize);
                    found.relocations.insert((place, number(elf, r + 8, 4) as u32, added, symbol));
                }
                found.tables.push(body(n)..body(n) + size(n));
            }
            k if k == SYMTAB || k == SECOND[1] => {
                for symbol in 0..size(n) / 24 {
                    if elf[body(n) + 24 * symbol + 5] & MANAGED != 0 {
                        found.managed.insert(name(n, symbol));
                    }
                }
                found.tables.push(body(n)..body(n) + size(n));
            }
            _ => {}
        }
    }
    found
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn image(kind: Kind, mut bytes: Vec<u8>) -> Image {
    bytes.extend((kind == Kind::Ptx).then_some(0));
    Image::from_bytes(kind, bytes.into()).unwrap()
}

/// Addresses for all managed variables of some code, of which 32 bits are not enough.
fn addresses(image: &Image) -> Addresses {
    image.managed().unwrap().into_keys().zip((1u64..).map(|n| 0x4000_8765_4000 + n * 0x1_0000_1000)).collect()
}

/// Changes a cubin and compares it with what it was, byte by byte.
fn check_cubin(path: &Path) {
    let old = std::fs::read(path).unwrap();
    let before = tables(&old);
    let image = image(Kind::Cubin, old.clone());
    let variables = image.managed().unwrap();
    let at = addresses(&image);
    assert_eq!(variables.keys().collect::<BTreeSet<_>>(), before.managed.iter().collect(), "{path:?}");
    let of = |name: &str| variables.iter().find(|(n, _)| n.ends_with(name)).map(|(_, v)| (v.bytes, v.initial.clone())).unwrap();
    assert_eq!([of("counter"), of("big"), of("odd")], [(4, vec![5]), (8000, vec![]), (3, vec![1, 0xFE, 3])]);
    assert_eq!(of("pair"), (24, vec![7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 64]));

    let placed = image.with_managed(&at).unwrap();
    let new = placed.image.bytes.to_vec();
    let after = tables(&new);
    assert!(placed.left_out.is_empty() && after.managed.is_empty() && !placed.image.index().managed);
    let gone = before.relocations.iter().filter(|r| before.managed.contains(&r.3));
    let kept: BTreeSet<Relocation> = before.relocations.iter().filter(|r| !before.managed.contains(&r.3)).cloned().collect();
    assert_eq!(after.relocations, kept, "{path:?}");
    // What the linker or the driver would have written.
    let mut want = old.clone();
    let mut kinds = BTreeMap::new();
    for (place, kind, added, name) in gone {
        let value = at[name].wrapping_add(*added).to_le_bytes();
        let (skip, bytes) = match kind {
            0x2 | 0x4 | 0x1_0002 => (0, &value[..]),
            0x38 => (4, &value[..4]),
            0x39 => (4, &value[4..]),
            other => panic!("{path:?}: kind {other:#x}"),
        };
        let to = place + skip..place + skip + bytes.len();
        // A place that is not empty is none that was understood.
        assert!(old[to.clone()].iter().all(|b| *b == 0), "{path:?}: kind {kind:#x} at {place:#x}");
        want[to].copy_from_slice(bytes);
        *kinds.entry(*kind).or_insert(0) += 1;
    }
    assert!(kinds.contains_key(&2) || kinds.contains_key(&0x38), "{path:?}: {kinds:?}");
    for range in &before.tables {
        want[range.clone()].copy_from_slice(&new[range.clone()]);
    }
    assert_eq!(new, want, "{path:?}");
}

#[test]
fn managed_variables_are_given_addresses() {
    let scene = Scene::new("code");
    let bin = Toolchain::get(&Install::get().target).unwrap().nvcc().parent().unwrap().to_owned();
    let file = |name: &str| scene.path.join(name);
    let source = file("code.cu");
    std::fs::write(&source, SOURCE).unwrap();
    let nvcc = |args: &[&str], to: &Path| run(Command::new(bin.join("nvcc")).args(args).arg("-o").arg(to).arg(&source));
    for sm in [75, 90, 120] {
        let arch = format!("-arch=sm_{sm}");
        let (plain, part, linked) = (file("plain.cubin"), file("part.cubin"), file("linked.cubin"));
        let debug = file("debug.cubin");
        nvcc(&["-cubin", &arch], &plain);
        nvcc(&["-cubin", "-G", &arch], &debug);
        nvcc(&["-cubin", "-rdc=true", &arch], &part);
        run(Command::new(bin.join("nvlink")).args(["-arch", &format!("sm_{sm}"), "-o"]).arg(&linked).arg(&part));
        check_cubin(&plain);
        for path in [debug, part, linked] {
            if sm < 100 {
                check_cubin(&path);
                continue;
            }
            // The newest have their code a second time, in a form that cannot be changed.
            let image = image(Kind::Cubin, std::fs::read(&path).unwrap());
            let refused = image.with_managed(&addresses(&image));
            assert!(refused.is_err_and(|e| e.to_string().contains("a relocation of the unknown kind 0x1000")), "{path:?}");
        }
    }
    for args in [&["-ptx", "-arch=sm_75"][..], &["-ptx", "-G", "-arch=sm_90"], &["-ptx", "-lineinfo", "-rdc=true", "-arch=sm_90"]]
    {
        let (text, cubin) = (file("text.ptx"), file("assembled.cubin"));
        nvcc(args, &text);
        let image = image(Kind::Ptx, std::fs::read(&text).unwrap());
        assert_eq!(image.managed().unwrap().len(), 4);
        let placed = image.with_managed(&addresses(&image)).unwrap().image;
        std::fs::write(&text, &placed.bytes[..placed.bytes.len() - 1]).unwrap();
        let debug: &[&str] = if args.contains(&"-G") { &["-g"] } else { &[] };
        run(Command::new(bin.join("ptxas")).arg(args.last().unwrap()).args(debug).arg("-o").arg(&cubin).arg(&text));
        let assembled = tables(&std::fs::read(&cubin).unwrap());
        assert!(assembled.managed.is_empty() && assembled.relocations.iter().any(|r| r.3 == "plain"));
    }
}

#[test]
fn fat_binaries_are_put_together_anew() {
    let scene = Scene::new("fat");
    let bin = Toolchain::get(&Install::get().target).unwrap().nvcc().parent().unwrap().to_owned();
    let (source, fat) = (scene.path.join("code.cu"), scene.path.join("code.fatbin"));
    std::fs::write(&source, SOURCE).unwrap();
    let architectures = ["-gencode", "arch=compute_75,code=compute_75", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"];
    run(Command::new(bin.join("nvcc")).arg("-fatbin").args(architectures).arg("-o").arg(&fat).arg(&source));
    let old = image(Kind::Fatbin, std::fs::read(&fat).unwrap());
    let placed = old.with_managed(&addresses(&old)).unwrap();
    assert!(placed.left_out.is_empty());
    let new = placed.image;
    let shape = |image: &Image| image.entries().unwrap().iter().map(|e| (e.kind, e.sm)).collect::<Vec<_>>();
    assert_eq!((shape(&new).len(), shape(&new)), (3, shape(&old)));
    let (was, is) = (old.index(), new.index());
    assert!(was.managed && !is.managed && is.unreadable == 0 && was.kernels == is.kernels);
    assert_eq!(new.managed(), Ok(BTreeMap::new()));
}
