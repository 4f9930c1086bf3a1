//! Records as lines of JSON.

use journal::{OwnedRecord, Role, print_line};

fn record() -> OwnedRecord {
    OwnedRecord {
        seq: 9,
        id: 0x401,
        role: Role::Stays,
        setting: None,
        device: 2,
        creates: vec![0x10, 0x20],
        ends: Some(0x30),
        uses: vec![1],
        body: vec![1, 0xab],
        reply: vec![0xff; 65],
    }
}

#[test]
fn a_known_call_is_named_and_decoded() {
    let name = |id| (id == 0x401).then(|| "cuStreamCreate".to_owned());
    let decode = |id: u16, body: &[u8]| (id == 0x401 && body == [1, 0xab]).then(|| "Flags=\"1\"\n\\\u{1}ü".to_owned());
    assert_eq!(
        print_line(&record(), &name, &decode),
        format!(
            "{{\"seq\":9,\"id\":\"0x0401\",\"call\":\"cuStreamCreate\",\"device\":2,\"role\":\"stays\",\"creates\":[\"0x10\",\"0x20\"],\
             \"ends\":\"0x30\",\"uses\":[\"0x1\"],\"body\":\"Flags=\\\"1\\\"\\n\\\\\\u0001ü\",\"reply_bytes\":65,\"reply_hex\":\"{}...\"}}",
            "ff".repeat(64)
        )
    );
}

#[test]
fn an_unknown_call_is_numbers() {
    let plain =
        OwnedRecord { role: Role::Plain, setting: None, creates: vec![], ends: None, uses: vec![], reply: vec![], ..record() };
    assert_eq!(
        print_line(&plain, &|_| None, &|_, _| None),
        "{\"seq\":9,\"id\":\"0x0401\",\"device\":2,\"body_bytes\":2,\"body_hex\":\"01ab\"}"
    );
}
