//! RDMA devices of this machine.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// The IPv4 address of a RoCE port: among its addresses (GIDs) are those of its network interface.
pub(super) fn address() -> Option<IpAddr> {
    address_in(Path::new("/sys/class/infiniband"))
}

fn address_in(devices: &Path) -> Option<IpAddr> {
    let entries = |at: &Path| std::fs::read_dir(at).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let ports = entries(devices).flat_map(|device| entries(&device.join("ports")).collect::<Vec<_>>());
    let gids = ports.flat_map(|port| entries(&port.join("gids")).collect::<Vec<_>>());
    let mapped = |gid| std::fs::read_to_string(gid).ok()?.trim().parse::<Ipv6Addr>().ok()?.to_ipv4_mapped();
    gids.filter_map(mapped).next().map(IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_the_address_of_its_interface() {
        let devices = std::env::temp_dir().join(format!("mrb-rdma-{}", std::process::id()));
        assert_eq!(address_in(&devices), None);
        let gids = devices.join("rx0/ports/1/gids");
        std::fs::create_dir_all(&gids).unwrap();
        std::fs::write(gids.join("0"), "fe80:0000:0000:0000:5054:00ff:fe12:3456\n").unwrap();
        std::fs::write(gids.join("1"), "0000:0000:0000:0000:0000:ffff:0a08:0001\n").unwrap();
        assert_eq!(address_in(&devices), Some("10.8.0.1".parse().unwrap()));
        std::fs::remove_dir_all(devices).unwrap();
    }
}
