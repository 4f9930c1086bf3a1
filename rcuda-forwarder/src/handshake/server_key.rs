//! The private key of a server, which need not be in the process that carries out a handshake: all that it is needed for is one signature in each.

use crate::certificate::Certificate;
use cuda_api::wire_struct;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::TrustAnchor;
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{RootCertStore, SignatureAlgorithm, SignatureScheme};
use std::fmt;
use std::sync::Arc;

/// What a server signs in TLS 1.3 begins so, and ends with a hash of the handshake so far (RFC 8446, section 4.4.3). Nothing that is signed for
/// another purpose does.
const CONTEXT: &[u8; 34] = b"TLS 1.3, server CertificateVerify\0";
const SPACES: [u8; 64] = [b' '; 64];
/// The signatures that TLS 1.3 has, in the order in which they are preferred.
const SCHEMES: [SignatureScheme; 7] = [
    SignatureScheme::ED25519,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
];

/// The hash of a handshake so far.
pub(crate) type TranscriptHash = [u8; 32];

/// Why a handshake is not signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the handshake cannot be signed: {0}")]
pub(crate) struct NotSigned(pub(crate) String);

/// Signs handshakes of a server.
pub(crate) trait SignHandshake: fmt::Debug + Send + Sync {
    /// The signature of the handshake whose messages so far have this hash.
    fn sign(&self, scheme: SignatureScheme, transcript: &TranscriptHash) -> Result<Vec<u8>, NotSigned>;
}

/// A private key. It signs nothing but handshakes of a server.
#[derive(Debug)]
pub(super) struct ServerKey(Arc<dyn SigningKey>);

impl SignHandshake for ServerKey {
    fn sign(&self, scheme: SignatureScheme, transcript: &TranscriptHash) -> Result<Vec<u8>, NotSigned> {
        let signer = SCHEMES.contains(&scheme).then(|| self.0.choose_scheme(&[scheme])).flatten();
        let signer = signer.ok_or_else(|| NotSigned("the key has no signature of this kind".to_owned()))?;
        signer.sign(&[&SPACES, &CONTEXT[..], transcript].concat()).map_err(|why| NotSigned(why.to_string()))
    }
}

wire_struct! {
    /// An authority that certifies clients: what is needed of its certificate to verify theirs.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Authority {
        subject: Vec<u8>,
        key: Vec<u8>,
        constraints: Option<Vec<u8>>,
    }
}

impl Authority {
    fn of(anchor: &TrustAnchor<'_>) -> Authority {
        Authority {
            subject: anchor.subject.to_vec(),
            key: anchor.subject_public_key_info.to_vec(),
            constraints: anchor.name_constraints.as_ref().map(|constraints| constraints.to_vec()),
        }
    }

    pub(super) fn anchor(&self) -> TrustAnchor<'static> {
        TrustAnchor {
            subject: self.subject.clone().into(),
            subject_public_key_info: self.key.clone().into(),
            name_constraints: self.constraints.clone().map(Into::into),
        }
    }
}

/// What a server shows of itself and requires of its clients. Nothing of it is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) certificate: ShownCertificate,
    /// Who certifies clients, if jobs must have a certificate.
    pub(crate) authorities: Option<Vec<Authority>>,
}

wire_struct! {
    /// The certificate of a server.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct ShownCertificate {
        /// With those that lead to an authority.
        pub(super) chain: Vec<Vec<u8>>,
        /// The signatures that its key can make, by their numbers in TLS.
        schemes: Vec<u16>,
    }
}

impl Identity {
    /// That of a server with this certificate, and its key. `clients`: who certifies clients.
    pub(super) fn of(
        certificate: &Certificate,
        clients: Option<&RootCertStore>,
        primitives: &CryptoProvider,
    ) -> Result<(Identity, ServerKey), rustls::Error> {
        let Certificate { chain, key } = certificate.clone();
        let of_key = CertifiedKey::from_der(chain, key, primitives)?;
        let can = |scheme: &SignatureScheme| of_key.key.choose_scheme(&[*scheme]).is_some();
        let identity = Identity {
            certificate: ShownCertificate {
                chain: of_key.cert.iter().map(|one| one.to_vec()).collect(),
                schemes: SCHEMES.iter().filter(|scheme| can(scheme)).map(|scheme| u16::from(*scheme)).collect(),
            },
            authorities: clients.map(|all| all.roots.iter().map(Authority::of).collect()),
        };
        Ok((identity, ServerKey(of_key.key)))
    }
}

/// The key of a certificate as rustls uses it: each signature is asked for.
#[derive(Debug)]
pub(super) struct AskedKey {
    schemes: Vec<SignatureScheme>,
    signs: Arc<dyn SignHandshake>,
}

impl AskedKey {
    pub(super) fn new(certificate: &ShownCertificate, signs: Arc<dyn SignHandshake>) -> AskedKey {
        AskedKey { schemes: certificate.schemes.iter().map(|number| SignatureScheme::from(*number)).collect(), signs }
    }
}

impl SigningKey for AskedKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = self.schemes.iter().copied().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(AskedSigner { scheme, signs: self.signs.clone() }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match self.schemes.first() {
            Some(SignatureScheme::ED25519) => SignatureAlgorithm::ED25519,
            Some(SignatureScheme::RSA_PSS_SHA512 | SignatureScheme::RSA_PSS_SHA384 | SignatureScheme::RSA_PSS_SHA256) => {
                SignatureAlgorithm::RSA
            }
            _ => SignatureAlgorithm::ECDSA,
        }
    }
}

#[derive(Debug)]
struct AskedSigner {
    scheme: SignatureScheme,
    signs: Arc<dyn SignHandshake>,
}

impl Signer for AskedSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        let transcript = message.strip_prefix(&SPACES).and_then(|rest| rest.strip_prefix(CONTEXT));
        let transcript = transcript.and_then(|hash| TranscriptHash::try_from(hash).ok());
        let transcript = transcript.ok_or_else(|| rustls::Error::General("this is no handshake of TLS 1.3".to_owned()))?;
        self.signs.sign(self.scheme, &transcript).map_err(|why| rustls::Error::General(why.to_string()))
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

#[cfg(test)]
mod tests {
    use super::super::primitives;
    use super::super::tests::certificate;
    use super::*;
    use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};

    fn key(name: &str) -> (ServerKey, Certificate) {
        let certificate = certificate(name);
        (Identity::of(&certificate, None, &primitives()).unwrap().1, certificate)
    }

    #[test]
    fn a_key_signs_handshakes_of_a_server_and_nothing_else() {
        let (key, certificate) = key("signs");
        let scheme = SignatureScheme::ECDSA_NISTP256_SHA256;
        let signature = key.sign(scheme, &[7; 32]).unwrap();
        let public = rcgen::KeyPair::try_from(certificate.key.secret_der()).unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, rcgen::PublicKeyData::der_bytes(&public).to_vec());
        let is_signed = |message: &[u8]| public.verify(message, &signature).is_ok();
        assert!(is_signed(&[&SPACES, &b"TLS 1.3, server CertificateVerify\0"[..], &[7; 32]].concat()));
        // What a client signs, the bytes that were given, and another hash.
        assert!(!is_signed(&[&SPACES, &b"TLS 1.3, client CertificateVerify\0"[..], &[7; 32]].concat()));
        assert!(!is_signed(&[7; 32]) && !is_signed(&[&SPACES, &CONTEXT[..], &[8; 32]].concat()));
        // Signatures of other keys, and those that TLS 1.3 has for certificates only.
        for scheme in [SignatureScheme::ED25519, SignatureScheme::RSA_PKCS1_SHA256, SignatureScheme::from(0)] {
            assert!(key.sign(scheme, &[7; 32]).is_err(), "{scheme:?}");
        }
    }

    #[test]
    fn only_handshakes_are_asked_for() {
        let (key, _) = key("asks");
        let shown = ShownCertificate { chain: Vec::new(), schemes: vec![0x0403] };
        let asked = AskedKey::new(&shown, Arc::new(key));
        assert!(asked.choose_scheme(&[SignatureScheme::ED25519]).is_none());
        let signer = asked.choose_scheme(&SCHEMES).unwrap();
        assert!(signer.sign(&[&SPACES, &CONTEXT[..], &[7; 32]].concat()).is_ok());
        let client = [&SPACES, &b"TLS 1.3, client CertificateVerify\0"[..], &[7; 32]].concat();
        let longer = [&SPACES, &CONTEXT[..], &[7; 48]].concat();
        for other in [&[7; 32][..], &[], &client, &longer] {
            assert!(signer.sign(other).is_err(), "{other:?}");
        }
    }
}
