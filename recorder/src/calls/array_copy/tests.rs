use super::*;

#[test]
fn pieces_are_rows_of_one_slice_in_order() {
    let host = CopyEnd { memory: HOST, host: 0x1000, pitch: 3 << 20, height: 5, ..CopyEnd::default() };
    let array = CopyEnd { memory: ARRAY, array: 7, x: 16, y: 2, z: 1, ..CopyEnd::default() };
    let c = Copy3 { src: host, dst: array, width: 2 << 20, rows: 5, depth: 2 };
    let mut seen = Vec::new();
    pieces(&c, |p| {
        seen.push((p.dst.x, p.dst.y, p.dst.z, (p.src.host - 0x1000) / (3 << 20), p.rows));
        Ok(())
    })
    .unwrap();
    let expected = [(0, 2), (2, 2), (4, 1)];
    let expected = (0..2).flat_map(|z| expected.map(|(row, rows)| (16, 2 + row, 1 + z, z * 5 + row, rows)));
    assert_eq!(seen, expected.collect::<Vec<_>>());
    assert_eq!(span(&host, &c), 9 * (3 << 20) + (2 << 20));

    let memory = CopyEnd { memory: DEVICE, device: 0x1000, pitch: 100, height: 7, ..CopyEnd::default() };
    let c = Copy3 { src: array, dst: memory, width: 60, rows: 5, depth: 2 };
    let mut seen = Vec::new();
    pieces(&c, |p| {
        seen.push((p.src.y, p.src.z, p.dst.device, p.rows));
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, [(2, 1, 0x1000, 5), (2, 2, 0x1000 + 700, 5)]);
}
