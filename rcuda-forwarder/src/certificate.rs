//! Certificates: files with a private key, fingerprints, and authorities that sign certificates.

use crate::config_file;
use cuda_api::hex::hex;
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum size of a file with certificates.
const FILE: u64 = 1 << 20;

/// Why a file with certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file could not be read.
    #[error("cannot read the certificate file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file could not be created.
    #[error("cannot make the certificate file {path}: {source}")]
    Make {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Other users can read the private key.
    #[error("the certificate file {path} has a private key and can be read by others; run: chmod 600 {path}")]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// The file contains something else.
    #[error("the certificate file {path} is not usable: {why}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// The SHA-256 digest of a certificate, by which people and files name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) [u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Fingerprint(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex(&self.0))
    }
}

/// A certificate with its private key, and those that lead from it to an authority.
#[derive(Debug)]
pub(crate) struct Certificate {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Clone for Certificate {
    fn clone(&self) -> Certificate {
        Certificate { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl Certificate {
    /// Reads a file in the PEM format with the certificate, further ones of its chain, and the private key.
    pub(crate) fn load(path: &Path) -> Result<Certificate, CertificateError> {
        let (text, is_open) = read(path)?;
        let chain = certificates(&text, path)?;
        let key = PrivateKeyDer::from_pem_slice(&text).map_err(|why| match why {
            pem::Error::NoItemsFound => content(path, "it has no private key (BEGIN PRIVATE KEY)"),
            why => content(path, &why.to_string()),
        })?;
        if is_open { Err(CertificateError::Open { path: path.into() }) } else { Ok(Certificate { chain, key }) }
    }

    /// Reads the file, or makes one with a certificate that only its fingerprint identifies.
    pub(crate) fn load_or_create(path: &Path) -> Result<Certificate, CertificateError> {
        match std::fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            _ => return Certificate::load(path),
        }
        let failed = |source| CertificateError::Make { path: path.into(), source };
        let made = rcgen::generate_simple_self_signed(["mrcuda".to_owned()]).map_err(|e| failed(io::Error::other(e)))?;
        let text = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
        match config_file::create(path, text.as_bytes()) {
            // Another process was faster; its certificate is used.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            r => r.map_err(failed)?,
        }
        Certificate::load(path)
    }

    /// Its name.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        // A file without a certificate is not loaded.
        Fingerprint::of(&self.chain[0])
    }
}

/// The text of a file, and whether other users can read it.
fn read(path: &Path) -> Result<(Vec<u8>, bool), CertificateError> {
    config_file::read(path, FILE).map_err(|source| CertificateError::Read { path: path.into(), source })
}

fn content(path: &Path, why: &str) -> CertificateError {
    CertificateError::Content { path: path.into(), why: why.to_owned() }
}

/// All certificates of a file, at least one.
fn certificates(text: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match all {
        Ok(all) if all.is_empty() => Err(content(path, "it has no certificate (BEGIN CERTIFICATE)")),
        Ok(all) => Ok(all),
        Err(why) => Err(content(path, &why.to_string())),
    }
}

/// The authorities in a file in the PEM format.
pub(crate) fn authorities(path: &Path) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&read(path)?.0, path)? {
        roots.add(certificate).map_err(|why| content(path, &why.to_string()))?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn made_once_for_its_owner_only() {
        let directory = std::env::temp_dir().join(format!("mrcuda-certificate-{}", std::process::id()));
        let path = directory.join("deep").join("server.pem");
        let made = Certificate::load_or_create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = Certificate::load_or_create(&path).unwrap();
        assert_eq!((again.fingerprint(), &again.key), (made.fingerprint(), &made.key));
        assert!(made.fingerprint().to_string().starts_with("sha256:") && made.fingerprint().to_string().len() == 71);
        let whole = std::fs::read_to_string(&path).unwrap();
        let end = whole.find("-----BEGIN PRIVATE").unwrap();
        let refused = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Certificate::load_or_create(&path).unwrap_err().to_string()
        };
        assert!(refused("").contains("no certificate") && refused(&whole[..end]).contains("no private key"));
        assert!(refused(&whole[end..]).contains("no certificate"));
        std::fs::write(&path, &whole).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Certificate::load(&path), Err(CertificateError::Open { .. })));
        assert!(authorities(&path).is_ok(), "certificates are public");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
