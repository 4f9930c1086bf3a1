//! The record layer of TLS 1.3 (RFC 8446, section 5) for a connection whose handshake is complete.
//!
//! rustls carries out the handshake (handshake.rs), but its connections can neither be used by two threads at the same
//! time nor travel to another process, which the daemon's must. What remains of a handshake is a secret and a record
//! number for each direction: a [`Session`], from which this module protects the bytes that follow. Reading and
//! writing share nothing.

use crate::sync::lock;
use cuda_api::wire_struct;
use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use zeroize::{Zeroize, Zeroizing};

/// The cipher of all connections, which rustls calls `TLS13_AES_128_GCM_SHA256`.
static CIPHER: &aead::Algorithm = &aead::AES_128_GCM;
const KEY: usize = 16;

/// Bytes of a record's header: type, version, length.
const HEAD: usize = 5;
/// Bytes of a record that authenticate it.
const TAG: usize = 16;
/// Maximum bytes of plaintext in a record.
const TEXT: usize = 1 << 14;
/// Maximum length of what follows the header: plaintext, its type, padding, tag.
const BODY: usize = TEXT + 256;
/// Records that are sealed before they are sent in one system call.
const BATCH: usize = 16;
/// Bytes that are received in one system call.
const AHEAD: usize = BATCH * (HEAD + BODY);
/// Records after which a direction gets another key. The cipher's limit is 2^24.5 (RFC 8446, section 5.5).
const RENEWAL: u64 = 1 << 23;
/// Maximum number of successive records that contain no bytes for the reader. A peer could keep it from ever returning with
/// them, even one that has not proved anything yet.
const WITHOUT_TEXT: u32 = 32;

/// Types of content.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
/// The message by which a sender says that its next record has the next key; and the one by which it wants the same of
/// its peer, too.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const KEY_UPDATE_WANTED: [u8; 5] = [24, 0, 0, 1, 1];
/// The alert that ends a connection in order, and its description.
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

wire_struct! {
    /// One direction of a connection: its secret, and the number of its next record.
    #[derive(Clone, PartialEq, Eq)]
    pub(crate) struct Traffic {
        pub(crate) secret: [u8; 32],
        pub(crate) number: u64,
    }
}

/// A process that is taken over later must not find it: that one greets many clients, and has nothing to do with them afterwards.
impl Drop for Traffic {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

wire_struct! {
    /// What a process needs to use a connection whose handshake is complete.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Session {
        pub(crate) read: Traffic,
        pub(crate) write: Traffic,
    }
}

impl Session {
    /// Whether it is one of a server that has written nothing so far, and has read no more than a greeting.
    pub(crate) fn is_fresh(&self) -> bool {
        self.write.number == 0 && self.read.number < RENEWAL
    }
}

impl std::fmt::Debug for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traffic").field("number", &self.number).finish_non_exhaustive()
    }
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// A length for ring's key derivation.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label with an empty context.
fn expand<const N: usize>(secret: &[u8; 32], label: &[u8]) -> io::Result<[u8; N]> {
    let secret = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret);
    let (length, label) = ((N as u16).to_be_bytes(), [b"tls13 ", label].concat());
    let mut out = [0; N];
    let info = [&length[..], &[label.len() as u8], &label, &[0]];
    let derived = secret.expand(&info, Length(N)).and_then(|okm| okm.fill(&mut out));
    derived.map(|()| out).map_err(|_| broken("a key cannot be derived"))
}

/// The key of one direction.
#[derive(Debug)]
struct Key {
    traffic: Traffic,
    key: LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
}

impl Key {
    fn new(traffic: Traffic) -> io::Result<Key> {
        let key = Zeroizing::new(expand::<KEY>(&traffic.secret, b"key")?);
        let key = UnboundKey::new(CIPHER, &*key).map_err(|_| broken("a key is invalid"))?;
        let iv = expand(&traffic.secret, b"iv")?;
        Ok(Key { traffic, key: LessSafeKey::new(key), iv })
    }

    /// The key that follows this one.
    fn next(&self) -> io::Result<Key> {
        Key::new(Traffic { secret: expand(&self.traffic.secret, b"traffic upd")?, number: 0 })
    }

    /// The nonce of the next record. No two records have the same one: the number only grows, and a key is replaced long
    /// before it could repeat.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (n, b) in nonce[4..].iter_mut().zip(self.traffic.number.to_be_bytes()) {
            *n ^= b;
        }
        self.traffic.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The header of a record with this many bytes after it.
fn head(body: usize) -> [u8; HEAD] {
    let [high, low] = (body as u16).to_be_bytes();
    [DATA, 3, 3, high, low]
}

/// The sending direction.
#[derive(Debug)]
struct Sealer {
    key: Key,
    /// Records that have not been sent; the last one may be open.
    out: Vec<u8>,
    /// Where the open record begins.
    start: usize,
    /// Records after which the key is replaced.
    renewal: u64,
    /// Something was sealed that may not have been sent: nothing can follow it.
    broken: bool,
}

impl Sealer {
    /// Begins a record, with the next key if it is time for that or the peer wants it.
    fn open(&mut self, wanted: &AtomicBool) -> io::Result<()> {
        if self.key.traffic.number >= self.renewal || wanted.load(Ordering::Relaxed) && wanted.swap(false, Ordering::Relaxed) {
            self.begin();
            self.out.extend_from_slice(&KEY_UPDATE);
            self.close(HANDSHAKE)?;
            self.key = self.key.next()?;
        }
        self.begin();
        Ok(())
    }

    fn begin(&mut self) {
        self.start = self.out.len();
        self.out.extend_from_slice(&[0; HEAD]);
    }

    /// Bytes in the open record.
    fn text(&self) -> usize {
        self.out.len() - self.start - HEAD
    }

    /// Seals the open record.
    fn close(&mut self, content: u8) -> io::Result<()> {
        self.out.push(content);
        let head = head(self.text() + TAG);
        let (at, nonce) = (self.start, self.key.nonce());
        self.out[at..at + HEAD].copy_from_slice(&head);
        let sealed = self.key.key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut self.out[at + HEAD..]);
        let tag = sealed.map_err(|_| broken("a record cannot be sealed"))?;
        self.out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    fn flush(&mut self, send: &mut impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let sent = send(&self.out);
        self.out.clear();
        sent
    }

    fn write(&mut self, pieces: &[&[u8]], wanted: &AtomicBool, send: &mut impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut is_open = false;
        for mut piece in pieces.iter().copied() {
            while !piece.is_empty() {
                if !is_open {
                    self.open(wanted)?;
                    is_open = true;
                }
                let (now, later) = piece.split_at(piece.len().min(TEXT - self.text()));
                self.out.extend_from_slice(now);
                piece = later;
                if self.text() == TEXT {
                    self.close(DATA)?;
                    is_open = false;
                    if self.out.len() > AHEAD - 2 * (HEAD + BODY) {
                        self.flush(send)?;
                    }
                }
            }
        }
        if is_open {
            self.close(DATA)?;
        }
        if self.out.is_empty() { Ok(()) } else { self.flush(send) }
    }
}

/// State of the receiving direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The peer has ended the connection in order.
    Closed,
    /// What follows cannot be trusted.
    Broken(&'static str),
}

/// The receiving direction.
#[derive(Debug)]
struct Opener {
    key: Key,
    buffer: Vec<u8>,
    /// Received and not opened.
    sealed: Range<usize>,
    /// Opened and not read; it lies before `sealed`.
    text: Range<usize>,
    state: State,
    /// Number of records since the last one with bytes for the reader.
    without_text: u32,
    /// The peer wants our next record to have another key.
    wants_key: bool,
}

impl Opener {
    /// The header of the next record and the number of bytes behind it, if the whole record has been received.
    fn complete_record(&self) -> Result<Option<([u8; HEAD], usize)>, &'static str> {
        let Some(&head) = self.buffer[self.sealed.clone()].first_chunk::<HEAD>() else { return Ok(None) };
        let body = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if head[0] != DATA {
            return Err("a record is not encrypted");
        }
        if !(TAG + 1..=BODY).contains(&body) {
            return Err("a record has an invalid length");
        }
        Ok((self.sealed.len() >= HEAD + body).then_some((head, body)))
    }

    /// Opens the next record; false if it has not been received completely.
    fn open_next(&mut self) -> Result<bool, &'static str> {
        let Some((head, body)) = self.complete_record()? else { return Ok(false) };
        let at = self.sealed.start + HEAD;
        let nonce = self.key.nonce();
        let record = &mut self.buffer[at..at + body];
        let opened = self.key.key.open_in_place(nonce, Aad::from(head), record);
        let text = opened.map_err(|_| "a record was changed or forged on the way")?;
        // The last byte that is not padding is the type.
        let end = text.iter().rposition(|b| *b != 0).ok_or("a record has no type")?;
        let (content, text) = (text[end], &text[..end]);
        self.sealed.start = at + body;
        self.without_text = if content == DATA && end > 0 { 0 } else { self.without_text + 1 };
        if self.without_text > WITHOUT_TEXT {
            return Err("too many records without data");
        }
        match content {
            DATA if end > TEXT => return Err("a record is too long"),
            DATA => self.text = at..at + end,
            HANDSHAKE if text == KEY_UPDATE || text == KEY_UPDATE_WANTED => {
                self.wants_key |= text == KEY_UPDATE_WANTED;
                self.key = self.key.next().map_err(|_| "a key cannot be derived")?;
            }
            ALERT if text.len() == 2 && text[1] == CLOSE_NOTIFY[1] => self.state = State::Closed,
            ALERT => return Err("the peer reports an error of the connection"),
            _ => return Err("a record has an unexpected type"),
        }
        Ok(true)
    }

    /// Receives more bytes.
    fn fill(&mut self, receive: &mut impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<()> {
        if self.sealed.is_empty() {
            self.sealed = 0..0;
        } else if self.buffer.len() - self.sealed.end < HEAD + BODY {
            self.buffer.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
        }
        if self.buffer.is_empty() {
            self.buffer = vec![0; AHEAD];
        }
        match receive(&mut self.buffer[self.sealed.end..])? {
            // An attacker could end a connection in this way. No message of ours ends with the connection.
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was cut")),
            n => {
                self.sealed.end += n;
                Ok(())
            }
        }
    }

    fn read(&mut self, to: &mut [u8], receive: &mut impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let mut n = 0;
        loop {
            let some = self.text.len().min(to.len() - n);
            to[n..n + some].copy_from_slice(&self.buffer[self.text.start..self.text.start + some]);
            self.text.start += some;
            n += some;
            if n == to.len() {
                return Ok(n);
            }
            match self.state {
                State::Open => {}
                State::Broken(why) if n == 0 => return Err(broken(why)),
                State::Closed | State::Broken(_) => return Ok(n),
            }
            match self.open_next() {
                Ok(true) => {}
                Ok(false) if n > 0 => return Ok(n),
                Ok(false) => self.fill(receive)?,
                Err(why) => self.state = State::Broken(why),
            }
        }
    }

    /// Whether a read needs no further bytes from the socket.
    fn is_ready(&self) -> bool {
        !self.text.is_empty() || self.state != State::Open || !matches!(self.complete_record(), Ok(None))
    }
}

/// The protection of a connection.
#[derive(Debug)]
pub(crate) struct Records {
    sealer: Mutex<Sealer>,
    opener: Mutex<Opener>,
    /// [`Opener::is_ready`], for those who do not read.
    ready: AtomicBool,
    /// The peer wants the next record to have another key.
    wants_key: AtomicBool,
}

impl Records {
    pub(crate) fn new(session: Session) -> io::Result<Records> {
        let sealer = Sealer { key: Key::new(session.write)?, out: Vec::new(), start: 0, renewal: RENEWAL, broken: false };
        let opener = Opener {
            key: Key::new(session.read)?,
            buffer: Vec::new(),
            sealed: 0..0,
            text: 0..0,
            state: State::Open,
            without_text: 0,
            wants_key: false,
        };
        Ok(Records {
            sealer: Mutex::new(sealer),
            opener: Mutex::new(opener),
            ready: AtomicBool::new(false),
            wants_key: AtomicBool::new(false),
        })
    }

    /// Seals the pieces and sends them; `send` must send all bytes that it gets.
    pub(crate) fn write(&self, pieces: &[&[u8]], mut send: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut sealer = lock(&self.sealer);
        if sealer.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let written = sealer.write(pieces, &self.wants_key, &mut send);
        sealer.broken = written.is_err();
        written
    }

    /// Reads what has arrived, at least one byte; 0 at the orderly end. `receive` gets bytes from the socket.
    pub(crate) fn read(&self, to: &mut [u8], mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let mut opener = lock(&self.opener);
        let read = opener.read(to, &mut receive);
        self.ready.store(opener.is_ready(), Ordering::Release);
        if std::mem::take(&mut opener.wants_key) {
            self.wants_key.store(true, Ordering::Relaxed);
        }
        read
    }

    /// Whether a read needs no further bytes from the socket.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Tells the peer that the connection ends in order, unless a thread is writing. `send` must not wait.
    pub(crate) fn close(&self, send: impl FnOnce(&[u8])) {
        let Ok(mut sealer) = self.sealer.try_lock() else { return };
        if std::mem::replace(&mut sealer.broken, true) {
            return;
        }
        sealer.begin();
        sealer.out.extend_from_slice(&CLOSE_NOTIFY);
        if sealer.close(ALERT).is_ok() {
            send(&sealer.out);
        }
    }

    /// What another process needs to go on from here; `None` if bytes have been received that have not been read.
    pub(crate) fn session(&self) -> Option<Session> {
        let opener = lock(&self.opener);
        let unread = !opener.sealed.is_empty() || opener.is_ready();
        let write = lock(&self.sealer).key.traffic.clone();
        (!unread).then(|| Session { read: opener.key.traffic.clone(), write })
    }

    /// The same for a process that only writes: what was received is not used any more.
    pub(crate) fn session_to_part(&self) -> Session {
        let read = lock(&self.opener).key.traffic.clone();
        Session { read, write: lock(&self.sealer).key.traffic.clone() }
    }
}

#[cfg(test)]
pub(crate) mod tests;
