//! The handshake of TLS 1.3, and what certificates are accepted.
//!
//! rustls carries it out. Its result is a [`Session`] (records.rs) and the **binding**: bytes that only the two ends of
//! this handshake have (the exporter of RFC 8446, section 7.5). The greeting that follows proves the secret over the
//! binding, so that no party between the two can be the other end of both.

use crate::certificate::{self, Certificate, CertificateError, Fingerprint};
use crate::config_file;
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::known_servers;
use crate::records::{Records, Session, Traffic};
use crate::sync::lock;
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, KeyLog, ServerConfig, ServerConnection, SignatureScheme,
};
use server_key::AskedKey;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use zeroize::Zeroize;

mod server_key;

pub(crate) use server_key::{Authority, Identity, NotSigned, ShownCertificate, SignHandshake, TranscriptHash};

/// The label under which both ends derive the binding.
const LABEL: &[u8] = b"EXPORTER-mrcuda-greeting";
/// Types of records begin here; an answer of the greeting is below.
const RECORDS: u8 = 20;
/// Maximum length of an encrypted record behind its header.
const LONGEST: usize = (1 << 14) + 256;

/// Why there is no encrypted connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The server has answered without encryption: with this beginning of an answer.
    #[error("the peer does not encrypt")]
    Plain([u8; 5]),
    /// The connection failed, or took too long.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The handshake failed.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] CertificateError),
    /// The certificate is not the server's.
    #[error("{0}")]
    Untrusted(String),
}

/// How a client recognizes servers, and is recognized by them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// File with the authorities that certify servers. Without one, a server's certificate is the one that was recorded
    /// at its first use.
    pub authorities: Option<PathBuf>,
    /// File with the recorded certificates.
    pub known_servers: PathBuf,
    /// File with the client's own certificate and private key, for servers that require one.
    pub certificate: Option<PathBuf>,
}

impl Trust {
    /// Whether a server's certificate is one that was recorded, or must be certified.
    pub(crate) fn knows(&self, server: &Endpoint) -> bool {
        let is_recorded = || known_servers::recorded(&self.known_servers, &server.server()).is_ok_and(|found| !found.is_empty());
        self.authorities.is_some() || is_recorded()
    }

    /// As the environment says: `MRCUDA_CA`, `MRCUDA_CERTIFICATE`, and `known_servers` in the user's configuration.
    pub fn from_environment() -> Trust {
        Trust {
            authorities: config_file::variable("MRCUDA_CA"),
            known_servers: config_file::directory().join("known_servers"),
            certificate: config_file::variable("MRCUDA_CERTIFICATE"),
        }
    }
}

/// What an established connection is.
#[derive(Debug)]
pub(crate) struct Established {
    /// Derived from the handshake, equal at its two ends and known only there.
    pub(crate) binding: [u8; 32],
    /// The peer's certificate; a client's has been verified.
    pub(crate) peer: Option<Fingerprint>,
}

/// Our primitives: one cipher, which records.rs implements, and the usual key exchanges and signatures.
fn primitives() -> Arc<CryptoProvider> {
    let cipher_suites = vec![provider::cipher_suite::TLS13_AES_128_GCM_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..provider::default_provider() })
}

/// Takes the secrets that a session begins with.
#[derive(Debug, Default)]
struct Secrets(Mutex<[Option<[u8; 32]>; 2]>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let which = match label {
            "CLIENT_TRAFFIC_SECRET_0" => 0,
            "SERVER_TRAFFIC_SECRET_0" => 1,
            _ => return,
        };
        lock(&self.0)[which] = secret.try_into().ok();
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        lock(&self.0).iter_mut().for_each(Zeroize::zeroize);
    }
}

impl Secrets {
    /// The session of the client or of the server.
    fn session(&self, client: bool) -> io::Result<Session> {
        let [Some(of_client), Some(of_server)] = &*lock(&self.0) else {
            return Err(io::Error::other("the handshake has no result"));
        };
        let [of_client, of_server] = [of_client, of_server].map(|secret| Traffic { secret: *secret, number: 0 });
        Ok(if client { Session { write: of_client, read: of_server } } else { Session { write: of_server, read: of_client } })
    }
}

/// Accepts every certificate whose key the peer has; the caller decides whether it is the server's.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The client's handshake: with any server, or with the one called `host`, as far as an authority can tell. The
/// connection is protected when this returns.
pub(crate) fn connect(
    conn: &Conn,
    server: Option<(&Trust, &str)>,
    deadline: impl Fn() -> Instant,
) -> Result<Established, HandshakeError> {
    let primitives = primitives();
    let builder = ClientConfig::builder_with_provider(primitives.clone()).with_protocol_versions(&[&TLS13])?;
    let (builder, name) = match server.and_then(|(trust, host)| Some((trust.authorities.as_deref()?, host))) {
        None => (builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(primitives))), "mrcuda"),
        Some((file, host)) => (builder.with_root_certificates(certificate::authorities(file)?), host),
    };
    let no_name = |_| HandshakeError::Untrusted(format!("no certificate can have the name `{name}`"));
    let name = ServerName::try_from(name.to_owned()).map_err(no_name)?;
    let mut config = match server.and_then(|(trust, _)| trust.certificate.as_deref()) {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let Certificate { chain, key } = Certificate::load(file)?;
            builder.with_client_auth_cert(chain, key)?
        }
    };
    let secrets = Arc::new(Secrets::default());
    config.key_log = secrets.clone();
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    let tls = ClientConnection::new(Arc::new(config), name)?;
    establish(conn, tls.into(), &secrets, true, deadline)
}

/// How a server carries out handshakes.
#[derive(Debug)]
pub(crate) struct ServerTls {
    config: ServerConfig,
    /// Clients that start jobs must have a certificate.
    pub(crate) certified_only: bool,
    /// What it shows and requires.
    pub(crate) identity: Arc<Identity>,
    /// What signs its handshakes.
    pub(crate) signs: Arc<dyn SignHandshake>,
}

impl ServerTls {
    /// A server with this certificate. With `clients`, a file with authorities, jobs must have a certificate of one of
    /// them.
    pub(crate) fn new(certificate: &Certificate, clients: Option<&Path>) -> Result<ServerTls, HandshakeError> {
        let clients = clients.map(certificate::authorities).transpose()?;
        let (identity, key) = Identity::of(certificate, clients.as_ref(), &primitives())?;
        ServerTls::of(Arc::new(identity), Arc::new(key))
    }

    /// A server whose handshakes are signed by another part of it, which has the key.
    pub(crate) fn of(identity: Arc<Identity>, signs: Arc<dyn SignHandshake>) -> Result<ServerTls, HandshakeError> {
        let primitives = primitives();
        let builder = ServerConfig::builder_with_provider(primitives.clone()).with_protocol_versions(&[&TLS13])?;
        let builder = match &identity.authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let roots = RootCertStore { roots: authorities.iter().map(Authority::anchor).collect() };
                // Other places are identified by a ticket, so not every client needs a certificate.
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), primitives).allow_unauthenticated().build();
                builder.with_client_cert_verifier(verifier.map_err(io::Error::other)?)
            }
        };
        let mut config = builder.with_cert_resolver(resolver(&identity.certificate, &signs));
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(ServerTls { config, certified_only: identity.authorities.is_some(), identity, signs })
    }

    /// The same server, whose handshakes are signed by something else.
    pub(crate) fn signed_by(&self, signs: Arc<dyn SignHandshake>) -> ServerTls {
        let mut config = self.config.clone();
        config.cert_resolver = resolver(&self.identity.certificate, &signs);
        ServerTls { config, certified_only: self.certified_only, identity: self.identity.clone(), signs }
    }

    /// The server's handshake. The connection is protected when this returns.
    pub(crate) fn accept(&self, conn: &Conn, deadline: Instant) -> Result<Established, HandshakeError> {
        let secrets = Arc::new(Secrets::default());
        let mut config = self.config.clone();
        config.key_log = secrets.clone();
        let tls = ServerConnection::new(Arc::new(config))?;
        establish(conn, tls.into(), &secrets, false, || deadline)
    }
}

/// Shows a certificate in every handshake, whose signature is asked for.
fn resolver(certificate: &ShownCertificate, signs: &Arc<dyn SignHandshake>) -> Arc<SingleCertAndKey> {
    let chain = certificate.chain.iter().map(|one| CertificateDer::from(one.clone())).collect();
    let key = AskedKey::new(certificate, signs.clone());
    Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, Arc::new(key))))
}

fn establish(
    conn: &Conn,
    mut tls: Connection,
    secrets: &Secrets,
    client: bool,
    deadline: impl Fn() -> Instant,
) -> Result<Established, HandshakeError> {
    let mut has_sent = false;
    shake(conn, &mut tls, &mut has_sent, deadline).inspect_err(|_| {
        // An answer that is not encrypted would mean nothing to the client any more.
        if has_sent && !client {
            conn.cut();
        }
    })?;
    let binding = tls.export_keying_material([0; 32], LABEL, None)?;
    let peer = tls.peer_certificates().and_then(|chain| chain.first()).map(Fingerprint::of);
    conn.protect(Records::new(secrets.session(client)?)?);
    Ok(Established { binding, peer })
}

/// Exchanges the messages of the handshake. Not a byte behind the last one is read.
fn shake(
    mut conn: &Conn,
    tls: &mut Connection,
    has_sent: &mut bool,
    deadline: impl Fn() -> Instant,
) -> Result<(), HandshakeError> {
    let mut flight = Vec::new();
    loop {
        while tls.wants_write() {
            tls.write_tls(&mut flight)?;
        }
        *has_sent |= !flight.is_empty();
        conn.write_all(&flight)?;
        flight.clear();
        if !tls.is_handshaking() {
            return Ok(());
        }
        let mut head = [0; 5];
        conn.read_exact_by(&mut head, deadline())?;
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if head[0] < RECORDS {
            return Err(HandshakeError::Plain(head));
        }
        if length > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a record has an invalid length").into());
        }
        let mut record = head.to_vec();
        record.resize(head.len() + length, 0);
        conn.read_exact_by(&mut record[head.len()..], deadline())?;
        let mut rest = &record[..];
        while !rest.is_empty() {
            tls.read_tls(&mut rest)?;
            if let Err(why) = tls.process_new_packets() {
                // The peer gets the reason, if it still listens.
                while tls.wants_write() && tls.write_tls(&mut flight).is_ok() {}
                let _ = conn.write_all(&flight);
                return Err(why.into());
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
