//! Bytes as text.

/// Lower-case hexadecimal digits, two for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
