//! Fuzz targets for the bodies of calls and of answers.

use crate::array::{ArrayMake, CopyBox, CopyBoxLate, Layout, ObjectMake, TilePool, TilesMap};
use crate::board::Constants;
use crate::calls::{self, Call, Visit};
use crate::facts::Facts;
use crate::ops::*;
use crate::reference::ReferenceSet;
use crate::wire::Wire;
use crate::work::{At, Edge, Kernel, Params, Spec, SpecNode, Work};
use ::fuzz::Limit;

/// Decoded values take at most a few times the memory of their bytes: an empty list takes 24 bytes of memory
/// and 8 encoded.
const LIMIT: Limit = Limit { bytes: 16 << 10, each: 40 };

/// Decodes a value from the front of bytes. Encoding it and decoding again must give the same bytes.
fn again<T: Wire>(bytes: &[u8]) {
    let mut rest = bytes;
    let Ok(value) = T::get(&mut rest) else { return };
    let (mut once, mut twice) = (Vec::new(), Vec::new());
    value.put(&mut once);
    // Only values other than numbers can have several encodings: any byte but 0 is `true`.
    assert_eq!(once.len(), bytes.len() - rest.len());
    let mut rest = &once[..];
    T::get(&mut rest).expect("what was written can be read").put(&mut twice);
    assert!(rest.is_empty() && once == twice);
}

struct Row<'a>(&'a [u8]);

impl Visit for Row<'_> {
    type Out = ();
    fn visit<C: Call>(self) {
        again::<C::Sent>(self.0);
        again::<C::Reply>(self.0);
        if let Ok(mut sent) = C::Sent::get(&mut { self.0 }) {
            C::edges(&sent);
            C::rename(&mut sent, 1);
        }
    }
}

/// Operations with a body of their own; those of others are numbers.
const OPERATIONS: &[(u16, fn(&[u8]))] = &[
    (id::LAUNCH, |b| {
        again::<Launch>(b);
        if let Ok((head, attributes, parameters)) = split_launch(b) {
            let mut whole = Vec::new();
            head.put(&mut whole);
            assert_eq!(attributes.len(), usize::from(head.attributes) * ATTRIBUTE_BYTES);
            assert_eq!(whole.len() + attributes.len() + parameters.len(), b.len());
        }
    }),
    (id::COPY_IN, again::<CopyIn>),
    (id::COPY_OUT, again::<CopyOut>),
    (id::BULK_IN, again::<BulkCopy>),
    (id::BULK_OUT, again::<BulkCopy>),
    (id::COPY_DEVICE, again::<CopyDevice>),
    (id::FILL, again::<Fill>),
    (id::CHUNK_MAP, again::<Chunk>),
    (id::IMAGE_PUT, again::<ImagePut>),
    (id::IMAGE_LOAD, |b| {
        again::<ImageLoad>(b);
        again::<ImageLoaded>(b);
    }),
    (id::FUNCTION_INFO, |b| {
        again::<FunctionInfo>(b);
        if let Ok(info) = FunctionInfo::get(&mut { b }) {
            info.is_sound();
        }
    }),
    (id::KERNEL_NAMES, again::<Vec<String>>),
    (id::TENSOR_MAP_TILED, again::<TensorMapTiled>),
    (id::TENSOR_MAP_IM2COL, again::<TensorMapIm2col>),
    (id::LINK, |b| {
        again::<Link>(b);
        again::<Linked>(b);
    }),
    (id::EVENT_RECORD, again::<EventRecord>),
    (id::EVENT_TIMES, |b| {
        again::<Vec<u64>>(b);
        again::<Vec<f64>>(b);
    }),
    (id::STREAM_WAIT_EVENT, again::<StreamWaitEvent>),
    (id::GRAPH_MAKE, again::<GraphMake>),
    (id::GRAPH_CHANGE, again::<GraphChange>),
    (id::GRAPH_SWITCH, again::<GraphSwitch>),
    (id::GRAPH_CALL, again::<GraphCall>),
    (id::GRAPH_CONDITION, again::<GraphCondition>),
    (id::VARIABLE_AROUND, again::<Variable>),
    (id::BOARD, |b| {
        again::<Constants>(b);
        again::<Facts>(b);
    }),
    (id::ALIAS_MAP, again::<Alias>),
    (id::HOST_PIN, again::<HostPin>),
    (id::HOST_BLOCK, again::<HostPin>),
    (id::HOST_CALL, again::<HostCall>),
    (id::COPY_IN_LATE, again::<CopyInLate>),
    (id::STREAM_MEMORY, |b| {
        again::<StreamMemory>(b);
        if let Ok(op) = StreamMemory::get(&mut { b }) {
            op.parts.iter().for_each(|part| _ = (part.bytes(), part.waits()));
        }
    }),
    (id::ARRAY_MAKE, |b| {
        again::<ArrayMake>(b);
        again::<Layout>(b);
    }),
    (id::COPY_BOX, again::<CopyBox>),
    (id::COPY_BOX_LATE, again::<CopyBoxLate>),
    (id::OBJECT_MAKE, again::<ObjectMake>),
    (id::TILE_POOL_MAKE, again::<TilePool>),
    (id::TILES_MAP, again::<TilesMap>),
    (id::STREAM_HOLD, again::<StreamHold>),
    (id::PEER_MAP, again::<PeerMap>),
    (id::EVENT_OPEN, again::<EventOpen>),
    (id::STREAM_ATTRIBUTE, again::<StreamAttribute>),
    (id::REFERENCE_SET, again::<ReferenceSet>),
];

fn seed(op: u16, value: &impl Wire) -> Vec<u8> {
    let mut bytes = op.to_le_bytes().to_vec();
    value.put(&mut bytes);
    bytes
}

#[test]
fn bodies_of_calls() {
    let edge = Edge { from_port: 1, to_port: 0, kind: 1 };
    let kernel = Kernel {
        function: 5,
        grid: [1; 3],
        block: [32, 1, 1],
        shared: 0,
        attributes: vec![[1; ATTRIBUTE_BYTES]],
        params: Params::from_elem(7, 24),
    };
    let node = |work, after: &[u32]| SpecNode { work, after: after.iter().map(|n| (*n, edge)).collect() };
    let inner = vec![node(Work::Empty, &[]), node(Work::MemOps(vec![[1, 2, 3, 4, 5, 6]]), &[0])];
    let whole = vec![node(Work::Kernel(kernel.clone()), &[]), node(Work::Child(1), &[0]), node(Work::EventWait(9), &[0, 1])];
    let graph = GraphMake { instance: 1, flags: 0, home: 0, direct: false, spec: Spec { graphs: vec![whole, inner] } };
    let change = GraphChange { instance: 1, at: At { graph: 0, node: 1 }, work: Work::Kernel(kernel) };
    let part = LinkInput { kind: 1, name: b"a.ptx".to_vec(), options: vec![(1, 2)], data: vec![3; 40] };
    let link = Link { options: vec![(7, 8)], inputs: vec![part.clone(), part], complete: true };
    let load = ImageLoad { handle: 1, hash: [2; 32], library: true, options: vec![(1, 2), (3, 4)], describe: true };
    let info = FunctionInfo { params: vec![(0, 8), (8, 4)], name: "kernel".into(), ..FunctionInfo::default() };
    let variable = PlacedVariable { name: "variable".into(), address: 1, bytes: 2 };
    let loaded = ImageLoaded {
        facts: CodeFacts { variables: vec![variable; 2], functions: vec![info.clone(); 2] },
        ..ImageLoaded::default()
    };
    let memory = MemoryPart { operation: 1, address: 2, value: 3, flags: 4 };
    let memory = StreamMemory { stream: 1, first_version: true, flags: 0, parts: vec![memory; 3] };
    let mut seeds = vec![
        seed(id::GRAPH_MAKE, &graph),
        seed(id::GRAPH_CHANGE, &change),
        seed(id::LINK, &link),
        seed(id::IMAGE_LOAD, &load),
        seed(id::FUNCTION_INFO, &info),
        seed(id::IMAGE_LOAD, &loaded),
        seed(id::STREAM_MEMORY, &memory),
        seed(id::KERNEL_NAMES, &vec!["first".to_owned(), "second".to_owned()]),
    ];
    // Zeros are numbers and empty lists; ones are lists of one as well.
    let all = OPERATIONS.iter().map(|(op, _)| *op).chain(calls::rows().map(|row| row.id));
    seeds.extend(all.flat_map(|op| [0u64, 1].map(|n| seed(op, &[n; 40]))));
    ::fuzz::run("bodies-of-calls", seeds, LIMIT, |input| {
        let Some((head, body)) = input.split_first_chunk() else { return };
        let op = u16::from_le_bytes(*head);
        match OPERATIONS.iter().find(|(known, _)| *known == op) {
            Some((_, read)) => read(body),
            None => _ = calls::by_id(op, Row(body)),
        }
    });
}
