//! PCI addresses as text.

/// `domain:bus:device.function` of a GPU; the function is 0.
pub fn text([domain, bus, device]: [i32; 3]) -> String {
    format!("{domain:04X}:{bus:02X}:{device:02X}.0")
}

/// Domain, bus and device of `[domain:]bus:device[.function]`.
pub fn parse(text: &str) -> Option<[i32; 3]> {
    let (address, function) = text.split_once('.').unwrap_or((text, "0"));
    i32::from_str_radix(function, 16).ok()?;
    let numbers: Vec<i32> = address.split(':').map(|p| i32::from_str_radix(p, 16).ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [bus, device] => Some([0, bus, device]),
        [domain, bus, device] => Some([domain, bus, device]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form() {
        for form in ["0000:1f:00.0", "0000:1F:00", "1f:00.0", "1f:0", &text([0, 0x1f, 0])] {
            assert_eq!(parse(form), Some([0, 0x1f, 0]), "{form}");
        }
        for form in ["", "0", "zz:00.0", "0000:00:00.0:5", "0:0:0:0"] {
            assert_eq!(parse(form), None, "{form}");
        }
    }
}
