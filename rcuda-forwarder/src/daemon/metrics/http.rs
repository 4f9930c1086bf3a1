//! Serves metrics, and the server's page, over HTTP/1.1.
//!
//! Written by hand: it answers one request of a few kinds on each connection and needs limits on everything that a client does or does not
//! do, which libraries for servers leave to those who use them. Nobody has to prove anything here, so a client costs a thread and 4 KiB for
//! at most some seconds. Those that have not sent their request are admitted as in the greeting: a newcomer is never refused, and the
//! connection that is dropped for it is probably one of a client that sends slowly. The threads that serve jobs are others.

use crate::conn::Conn;
use crate::daemon::admission::{Budget, Door, Greeting, Source};
use crate::daemon::error::ServeError;
use crate::daemon::listeners::Each;
use crate::daemon::log::{Log, LogLine};
use crate::daemon::seats::{Seat, Seats};
use crate::threads;
use nix::poll::PollFlags;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest request, with its headers.
const LONGEST: usize = 4 << 10;
/// Time for a client to send its request,
pub(in crate::daemon) const REQUEST: Duration = Duration::from_secs(5);
/// to read the answer,
const ANSWER: Duration = Duration::from_secs(10);
/// and to close the connection then.
const PARTING: Duration = Duration::from_secs(1);
/// Connections that have not sent their request.
pub(in crate::daemon) const ASKING: Budget = Budget { all: 32, of_one: 16 };
/// Connections that are being answered, with metrics and with the status each.
const ANSWERING: Budget = Budget { all: 8, of_one: 4 };
/// Connections at a time that have their answer, and whose end is waited for: without that the kernel may discard it.
const PARTING_AT_ONCE: usize = 32;
/// Bytes that are written at a time.
const PIECE: usize = 16 << 10;
/// With every answer. The page may load and ask what this server has and nothing else, no other page may include it, and nothing is kept.
const HEADERS: &str = "X-Content-Type-Options: nosniff\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n\
    Referrer-Policy: no-referrer\r\n\
    Cache-Control: no-store\r\n\
    Connection: close\r\n";

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon) enum Resource {
    /// The metrics.
    Metrics,
    /// The same as JSON, with the jobs that were served of late.
    Status,
    /// The page that shows it.
    Page,
    /// How the page looks.
    Style,
    /// What the page does.
    Script,
}

impl Resource {
    fn at(path: &str) -> Option<Resource> {
        match path {
            "/metrics" => Some(Resource::Metrics),
            "/status.json" => Some(Resource::Status),
            "/" => Some(Resource::Page),
            "/page.css" => Some(Resource::Style),
            "/page.js" => Some(Resource::Script),
            _ => None,
        }
    }

    fn format(self) -> &'static str {
        match self {
            Resource::Metrics => "text/plain; version=0.0.4; charset=utf-8",
            Resource::Status => "application/json",
            Resource::Page => "text/html; charset=utf-8",
            Resource::Style => "text/css; charset=utf-8",
            Resource::Script => "text/javascript; charset=utf-8",
        }
    }
}

/// What the first line of an answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon) enum Status {
    Ok,
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Timeout,
    TooLong,
    Busy,
    Version,
}

impl Status {
    fn words(self) -> &'static str {
        match self {
            Status::Ok => "200 OK",
            Status::BadRequest => "400 Bad Request",
            Status::Forbidden => "403 Forbidden",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed",
            Status::Timeout => "408 Request Timeout",
            Status::TooLong => "431 Request Header Fields Too Large",
            Status::Busy => "503 Service Unavailable",
            Status::Version => "505 HTTP Version Not Supported",
        }
    }

    /// What the answer says.
    fn text(self) -> &'static str {
        match self {
            Status::Forbidden => "Here this server must be addressed by an IP address or as localhost.",
            _ => self.words(),
        }
    }
}

/// Listens for metrics alone.
pub(in crate::daemon) fn bind(at: SocketAddr) -> Result<(OwnedFd, SocketAddr), ServeError> {
    let failed = |source| ServeError::Listen { at: format!("{at} (--metrics)"), source };
    let listener = TcpListener::bind(at).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    Ok((listener.into(), at))
}

/// Listens, unless somebody else has begun to, and tells the log where.
pub(in crate::daemon) fn listen(at: SocketAddr, passed: Option<OwnedFd>, log: Log) -> Result<OwnedFd, ServeError> {
    let failed = |source| ServeError::Listen { at: format!("{at} (--metrics)"), source };
    let listener = match passed {
        Some(passed) => TcpListener::from(passed),
        None => TcpListener::bind(at).map_err(failed)?,
    };
    let at = listener.local_addr().map_err(failed)?;
    let line = if at.ip().is_loopback() {
        LogLine::info(format!("metrics are at http://{at}/metrics"))
    } else {
        LogLine::warning(format!("metrics are at http://{at}/metrics, for anyone who can connect to it"))
    };
    log(&line);
    log(&LogLine::info(format!("a page that shows this server is at http://{at}/")));
    Ok(listener.into())
}

/// Makes what is served; `None`: that is not served here.
pub(in crate::daemon) type Pages = Arc<dyn Fn(Resource) -> Option<Arc<str>> + Send + Sync>;

/// Serves these pages at each connection.
pub(in crate::daemon) fn serve_each(pages: Pages) -> Each {
    let (door, desk) = (Door::new(ASKING), Arc::new(Desk::default()));
    Box::new(move |fd| {
        let conn = Arc::new(Conn::new(fd));
        let greeting = door.admit(&conn);
        let (desk, pages) = (desk.clone(), pages.clone());
        // Without a thread the connection is closed: the client asks again. One that has gone wants no answer.
        let _ = threads::spawn("metrics", move || desk.serve(&conn, greeting, &*pages));
    })
}

/// Where connections are answered.
#[derive(Debug, Default)]
struct Desk {
    metrics: Seats<Source>,
    status: Seats<Source>,
    parting: AtomicUsize,
}

impl Desk {
    /// Takes a seat for an answer: those who look at the page take none of those for metrics. The files of the page need none, because the
    /// kernel's buffer has room for them.
    fn seat(&self, asked: Resource, source: Source) -> Result<Option<Seat<Source>>, Status> {
        let seats = match asked {
            Resource::Metrics => &self.metrics,
            Resource::Status => &self.status,
            Resource::Page | Resource::Style | Resource::Script => return Ok(None),
        };
        seats.take(source, ANSWERING).map(Some).map_err(|_| Status::Busy)
    }

    /// Answers the request on a connection.
    fn serve(&self, conn: &Conn, greeting: Greeting, pages: &dyn Fn(Resource) -> Option<Arc<str>>) -> io::Result<()> {
        conn.tune()?;
        let head = read_head(conn, Instant::now() + REQUEST);
        let asked = match head {
            _ if greeting.was_dropped() => Err(Status::Busy),
            // It has sent nothing, and closed.
            Ok(head) if head.is_empty() => return Ok(()),
            Ok(head) => wanted(&head, conn.ip_local().is_some_and(|ip| ip.is_loopback())),
            Err(why) => Err(why),
        };
        drop(greeting);
        let made = asked.and_then(|asked| {
            let seat = self.seat(asked, Source::of(conn))?;
            Ok((asked, pages(asked).ok_or(Status::NotFound)?, seat))
        });
        match made {
            Ok((asked, text, _seat)) => answer(conn, Status::Ok, asked.format(), &text)?,
            Err(why) => answer(conn, why, "text/plain; charset=utf-8", &format!("{}\n", why.text()))?,
        }
        if self.parting.fetch_add(1, Ordering::AcqRel) < PARTING_AT_ONCE {
            conn.part(Instant::now() + PARTING);
        }
        self.parting.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }
}

/// Reads until the empty line behind the headers; nothing if the client closes at once.
fn read_head(conn: &Conn, deadline: Instant) -> Result<Vec<u8>, Status> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    loop {
        match conn.try_read(&mut piece) {
            Ok(0) if head.is_empty() => return Ok(head),
            Ok(0) => return Err(Status::BadRequest),
            Ok(n) => {
                head.extend(&piece[..n]);
                if ends(&head) {
                    return Ok(head);
                }
                if head.len() > LONGEST {
                    return Err(Status::TooLong);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() || conn.ready(PollFlags::POLLIN, left).map_err(|_| Status::BadRequest)?.is_empty() {
                    return Err(Status::Timeout);
                }
            }
            Err(_) => return Err(Status::BadRequest),
        }
        // One that sends byte by byte has no more time than others.
        if Instant::now() >= deadline {
            return Err(Status::Timeout);
        }
    }
}

/// Whether it has an empty line. At most some KiB are searched again with each piece.
fn ends(head: &[u8]) -> bool {
    head.windows(4).any(|four| four == b"\r\n\r\n") || head.windows(2).any(|two| two == b"\n\n")
}

/// What the request asks for. At a loopback address a page of another site could ask, if its name leads there.
fn wanted(head: &[u8], is_loopback: bool) -> Result<Resource, Status> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let line = std::str::from_utf8(lines.next().unwrap_or_default()).map_err(|_| Status::BadRequest)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err(Status::BadRequest);
    };
    if method.is_empty() || !method.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') {
        return Err(Status::BadRequest);
    }
    match version.strip_prefix("HTTP/") {
        Some("1.1" | "1.0") => {}
        Some(_) => return Err(Status::Version),
        None => return Err(Status::BadRequest),
    }
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let resource = Resource::at(path).ok_or(Status::NotFound)?;
    if method != "GET" {
        return Err(Status::MethodNotAllowed);
    }
    let is_foreign = is_loopback && lines.take_while(|line| !line.is_empty()).filter_map(host).any(|host| !is_ours(&host));
    if is_foreign { Err(Status::Forbidden) } else { Ok(resource) }
}

/// The value of a header `Host`.
fn host(header: &[u8]) -> Option<String> {
    let header = String::from_utf8_lossy(header);
    let (name, value) = header.split_once(':')?;
    name.trim().eq_ignore_ascii_case("host").then(|| value.trim().to_owned())
}

/// Whether no other site can have this name: an IP address or `localhost`, maybe with a port.
fn is_ours(host: &str) -> bool {
    let port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, end)| port(end)).map_or(host, |(name, _)| name);
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Writes an answer, to which the client has a limited time to listen.
fn answer(conn: &Conn, status: Status, format: &str, text: &str) -> io::Result<()> {
    let deadline = Instant::now() + ANSWER;
    let allow = if status == Status::MethodNotAllowed { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {}\r\n{allow}Content-Type: {format}\r\nContent-Length: {}\r\n{HEADERS}\r\n",
        status.words(),
        text.len()
    );
    // A write that finds no room fails after this time, so the last one may end so much later.
    conn.limit_unread(ANSWER)?;
    for piece in head.as_bytes().chunks(PIECE).chain(text.as_bytes().chunks(PIECE)) {
        let mut rest = piece;
        while !rest.is_empty() {
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match (&mut &*conn).write(rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => rest = &rest[n..],
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_is_answered_and_others_are_told_why_not() {
        let of = |line: &str| wanted(format!("{line}\r\nHost: x\r\n\r\n").as_bytes(), false);
        for good in ["GET /metrics HTTP/1.1", "GET /metrics HTTP/1.0", "GET /metrics?name[]=a HTTP/1.1"] {
            assert_eq!(of(good), Ok(Resource::Metrics), "{good}");
        }
        assert_eq!(wanted(b"GET /metrics HTTP/1.1\n\n", true), Ok(Resource::Metrics));
        assert_eq!((of("GET / HTTP/1.1"), of("GET /status.json?x HTTP/1.1")), (Ok(Resource::Page), Ok(Resource::Status)));
        for (bad, why) in [
            ("GET /index.html HTTP/1.1", Status::NotFound),
            ("POST / HTTP/1.1", Status::MethodNotAllowed),
            ("POST /metricss HTTP/1.1", Status::NotFound),
            ("GET //metrics HTTP/1.1", Status::NotFound),
            ("GET /metrics/../../etc/passwd HTTP/1.1", Status::NotFound),
            ("GET http://x/metrics HTTP/1.1", Status::NotFound),
            ("HEAD /metrics HTTP/1.1", Status::MethodNotAllowed),
            ("get /metrics HTTP/1.1", Status::MethodNotAllowed),
            ("DELETE /metrics?x HTTP/1.1", Status::MethodNotAllowed),
            ("PRI * HTTP/2.0", Status::Version),
            ("GET /metrics HTTP/0.9", Status::Version),
            ("GET /metrics", Status::BadRequest),
            ("GET  /metrics HTTP/1.1", Status::BadRequest),
            ("GET /metrics HTTP/1.1 x", Status::BadRequest),
            ("GET /metrics SMTP/1.1", Status::BadRequest),
            ("G\u{0}T /metrics HTTP/1.1", Status::BadRequest),
            (" /metrics HTTP/1.1", Status::BadRequest),
            ("", Status::BadRequest),
        ] {
            assert_eq!(of(bad), Err(why), "{bad}");
        }
        assert_eq!(wanted(b"\xff\xfe /metrics HTTP/1.1\r\n\r\n", true), Err(Status::BadRequest));
        assert_eq!(wanted(b"", true), Err(Status::BadRequest));
    }

    #[test]
    fn names_of_other_sites_are_refused_at_loopback_addresses() {
        let of = |headers: &str, is_loopback| wanted(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes(), is_loopback);
        for ours in ["127.0.0.1", "127.0.0.1:9878", "LocalHost", "localhost:9878", "[::1]", "[::1]:9878", " 10.0.0.7:80 "] {
            assert_eq!(of(&format!("Accept: x.org\r\nHOST:{ours}\r\n"), true), Ok(Resource::Page), "{ours}");
        }
        for other in
            ["x.org", "x.org:9878", "127.0.0.1.x.org", "localhost.x.org:9878", "127.0.0.1:80@x.org", "[x.org]:1", "\u{ff}", ""]
        {
            let header = format!("Accept: */*\r\nhost: {other}\r\n");
            assert_eq!((of(&header, true), of(&header, false)), (Err(Status::Forbidden), Ok(Resource::Page)), "{other}");
        }
        assert_eq!(of("Host: localhost\r\nHost: x.org\r\n", true), Err(Status::Forbidden));
        assert_eq!(of("", true), Ok(Resource::Page));
    }

    #[test]
    fn those_who_look_at_the_page_leave_room_for_metrics() {
        let desk = Desk::default();
        let take = |asked| desk.seat(asked, Source::Here);
        let taken: Vec<_> = (0..ANSWERING.of_one).map(|_| take(Resource::Status).unwrap()).collect();
        assert_eq!(take(Resource::Status).unwrap_err(), Status::Busy);
        assert!(take(Resource::Page).unwrap().is_none() && take(Resource::Metrics).unwrap().is_some());
        drop(taken);
        assert!(take(Resource::Status).is_ok());
    }

    #[test]
    fn the_page_needs_nothing_but_this_server_and_makes_markup_of_nothing() {
        let [page, script] = [include_str!("page/page.html"), include_str!("page/page.js")];
        for word in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function(", "cookie", "Storage"] {
            assert!(!script.contains(word), "{word}");
        }
        // What the policy would refuse is not there.
        assert!(!page.contains("style=") && !page.contains("<style") && !page.contains("://"));
        assert_eq!(page.matches("<script").count(), page.matches("<script src=\"page.js\"").count());
        assert!(!include_str!("page/page.css").contains("url(") && !include_str!("page/page.css").contains("@import"));
        assert_eq!(script.matches("://").count(), script.matches("http://www.w3.org/2000/svg").count());
        assert!(HEADERS.lines().all(|line| line.contains(": ") && !line.starts_with(' ') && !line.contains("unsafe")));
    }

    #[test]
    fn the_end_of_a_request_is_found_wherever_it_is_cut() {
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        assert!((0..request.len()).all(|n| !ends(&request[..n])) && ends(request));
        assert!(ends(b"GET /metrics HTTP/1.1\n\n"));
    }
}
