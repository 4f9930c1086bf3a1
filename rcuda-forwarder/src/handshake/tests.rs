use super::*;
use crate::conn::pair;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("mrcuda-tls-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    directory
}

pub(super) fn certificate(name: &str) -> Certificate {
    let directory = directory(name);
    let certificate = Certificate::load_or_create(&directory.join("server.pem")).unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    certificate
}

/// The same socket, for rustls itself.
fn raw(conn: Conn) -> UnixStream {
    conn.socket().unwrap().try_clone_to_owned().unwrap().into()
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn both_ends_have_one_connection() {
    let server = ServerTls::new(&certificate("both"), None).unwrap();
    let (a, b) = pair();
    let (here, there) = thread::scope(|s| {
        let there = s.spawn(|| server.accept(&b, soon()).unwrap());
        (connect(&a, None, soon).unwrap(), there.join().unwrap())
    });
    assert_eq!(here.binding, there.binding);
    assert!(here.peer.is_some() && there.peer.is_none() && a.is_tls() && b.is_tls());
    // Two threads at each end.
    let data = &pattern(5 << 20);
    thread::scope(|s| {
        for conn in [&a, &b] {
            s.spawn(|| (&mut &*conn).write_all(data).unwrap());
            s.spawn(|| {
                let mut got = vec![0; data.len()];
                (&mut &*conn).read_exact(&mut got).unwrap();
                assert!(got == *data);
            });
        }
    });
    a.shutdown();
    assert_eq!((&mut &b).read(&mut [0]).unwrap(), 0);
}

/// The records of rustls and ours are the same, also after it has replaced its keys.
#[test]
fn a_client_understands_rustls_itself() {
    let server = ServerTls::new(&certificate("their-server"), None).unwrap();
    let (a, b) = pair();
    let data = pattern(300_000);
    let data = &data;
    // Each end is closed if its thread fails.
    thread::scope(|s| {
        s.spawn(move || {
            let mut tls = ServerConnection::new(Arc::new(server.config.clone())).unwrap();
            let mut socket = raw(b);
            let mut stream = rustls::Stream::new(&mut tls, &mut socket);
            for _ in 0..3 {
                let mut got = vec![0; data.len()];
                stream.read_exact(&mut got).unwrap();
                assert!(got == *data);
                stream.conn.refresh_traffic_keys().unwrap();
                stream.write_all(data).unwrap();
            }
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        });
        let a = a;
        connect(&a, None, soon).unwrap();
        for _ in 0..3 {
            (&mut &a).write_all(data).unwrap();
            let mut got = vec![0; data.len()];
            (&mut &a).read_exact(&mut got).unwrap();
            assert!(got == *data);
        }
        assert_eq!((&mut &a).read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn a_server_understands_rustls_itself() {
    let server = ServerTls::new(&certificate("their-client"), None).unwrap();
    let (a, b) = pair();
    let data = pattern(300_000);
    let data = &data;
    thread::scope(|s| {
        s.spawn(move || {
            let builder = ClientConfig::builder_with_provider(primitives()).with_protocol_versions(&[&TLS13]).unwrap();
            let any = Arc::new(AnyCertificate(primitives()));
            let config = builder.dangerous().with_custom_certificate_verifier(any).with_no_client_auth();
            let name = ServerName::try_from("mrcuda").unwrap();
            let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
            let mut socket = raw(a);
            let mut stream = rustls::Stream::new(&mut tls, &mut socket);
            for _ in 0..3 {
                stream.write_all(data).unwrap();
                stream.conn.refresh_traffic_keys().unwrap();
                let mut got = vec![0; data.len()];
                stream.read_exact(&mut got).unwrap();
                assert!(got == *data);
            }
        });
        let b = b;
        server.accept(&b, soon()).unwrap();
        for _ in 0..3 {
            let mut got = vec![0; data.len()];
            (&mut &b).read_exact(&mut got).unwrap();
            assert!(got == *data);
            (&mut &b).write_all(data).unwrap();
        }
    });
}

/// A file with the certificate of an authority, and one with a certificate that it has signed for `name`.
pub(crate) fn signed(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(params, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let own = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let files = [(format!("{name}-ca.pem"), ca.pem()), (format!("{name}.pem"), own.pem() + &key.serialize_pem())];
    let [ca, own] = files.map(|(name, text)| {
        crate::config_file::create(&directory.join(&name), text.as_bytes()).unwrap();
        directory.join(name)
    });
    (ca, own)
}

#[test]
fn authorities_certify_both_ends() {
    let directory = directory("authority");
    let (ca, of_server) = signed(&directory, "gpubox");
    let (client_ca, of_client) = signed(&directory, "laptop");
    let server = ServerTls::new(&Certificate::load(&of_server).unwrap(), Some(&client_ca)).unwrap();
    assert!(server.certified_only);
    let trust = |ca: &PathBuf, certificate: Option<&PathBuf>| Trust {
        authorities: Some(ca.clone()),
        known_servers: directory.join("none"),
        certificate: certificate.cloned(),
    };
    let meet = |trust: Trust, host: &str| {
        let (a, b) = pair();
        thread::scope(|s| {
            let there = s.spawn(|| {
                let there = server.accept(&b, soon());
                // A client that was refused learns it when it reads.
                (there.map(|e| e.peer.is_some()), (&mut &b).write_all(b"welcome"))
            });
            let here = connect(&a, Some((&trust, host)), soon).and_then(|_| Ok(a.read_exact_by(&mut [0; 7], soon())?));
            drop(a);
            (here, there.join().unwrap().0)
        })
    };
    let (here, there) = meet(trust(&ca, Some(&of_client)), "gpubox");
    here.unwrap();
    assert!(there.unwrap());
    let (here, there) = meet(trust(&ca, None), "gpubox");
    here.unwrap();
    assert!(!there.unwrap(), "without a certificate");
    let said = |trust, host| meet(trust, host).0.unwrap_err().to_string();
    assert!(said(trust(&ca, None), "other").contains("not valid for name"), "{}", said(trust(&ca, None), "other"));
    assert!(said(trust(&client_ca, None), "gpubox").contains("invalid peer certificate"));
    assert!(said(trust(&directory.join("missing"), None), "gpubox").contains("cannot read the certificate file"));
    let stranger = meet(trust(&ca, Some(&of_server)), "gpubox");
    assert!(stranger.0.is_err() && stranger.1.unwrap_err().to_string().contains("invalid peer certificate"));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn garbage_and_silence_end_a_handshake() {
    let server = ServerTls::new(&certificate("garbage"), None).unwrap();
    let heard = |bytes: &[u8], limit| {
        let (mut a, b) = pair();
        a.write_all(bytes).unwrap();
        let why = server.accept(&b, Instant::now() + limit).unwrap_err();
        assert!(!b.is_tls());
        why
    };
    let long = Duration::from_secs(30);
    assert!(matches!(heard(&[22, 3, 1, 0xff, 0xff], long), HandshakeError::Io(e) if e.kind() == io::ErrorKind::InvalidData));
    assert!(matches!(heard(&[1, 0, 0, 0, 0], long), HandshakeError::Plain(_)));
    assert!(matches!(heard(&[22, 3, 1, 0, 4, 9, 9, 9, 9], long), HandshakeError::Tls(_)));
    assert!(matches!(heard(&[23, 3, 3, 0, 4, 9, 9, 9, 9], long), HandshakeError::Tls(_)));
    let short = Duration::from_millis(100);
    assert!(matches!(heard(&[22, 3, 1, 0], short), HandshakeError::Io(e) if e.kind() == io::ErrorKind::TimedOut));
}
