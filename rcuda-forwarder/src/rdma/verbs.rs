//! Queue pairs of libibverbs: reliable connections over RoCE, whose ports have IP addresses.

use super::queue::{Done, Keys, Memory, Owner, Parameters, Prepared, Queue, Registrable, Side, Write, forget_unused, gid_of};
use super::stream::DEPTH;
use crate::sync::lock;
use crate::token::random;
use executor::Held;
use executor::fork::NotInherited;
use ibverbs_sys as ibv;
use std::ffi::{CStr, c_int};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{null, null_mut};
use std::sync::Mutex;

/// Time for an acknowledgement, as 4.096 µs times a power of two: 0.5 s,
const TIMEOUT: u8 = 17;
/// and how often a packet is sent again.
const RETRIES: u8 = 7;
/// How long to wait before a write for which there was no receive is repeated: 10.24 ms. The limits of the stream prevent that, so an
/// end that causes it does not keep to them,
const NOT_READY: u8 = 20;
/// and this is how often such a write is repeated. 7 would mean forever.
const NOT_READY_RETRIES: u8 = 6;
/// Maximum number of addresses of a device.
const GIDS: usize = 1024;
/// Size of the largest packets, as the verbs encode it: 4096 bytes.
const MTU: u32 = 5;

/// Registered memory that forked children do not have.
#[derive(Debug)]
struct Region {
    base: *mut u8,
    bytes: usize,
    mr: *mut ibv::ibv_mr,
}

impl Region {
    /// # Safety
    /// The protection domain exists, and longer than the region.
    unsafe fn new(pd: *mut ibv::ibv_pd, bytes: usize, access: ibv::ibv_access_flags) -> io::Result<Region> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: fresh memory at an address that the kernel chooses.
        let base = unsafe { libc::mmap(null_mut(), bytes, prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut region = Region { base: base.cast(), bytes, mr: null_mut() };
        // SAFETY: our mapping. What a device writes must not become a child's copy.
        if unsafe { libc::madvise(base, bytes, libc::MADV_DONTFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the caller keeps the domain; the memory is mapped until the region is dropped.
        region.mr = unsafe { ibv::ibv_reg_mr(pd, base, bytes, access.0 as c_int) };
        if region.mr.is_null() {
            let why = io::Error::last_os_error();
            return Err(io::Error::new(why.kind(), format!("cannot register {bytes} bytes of memory (ulimit -l): {why}")));
        }
        Ok(region)
    }

    fn keys(&self) -> (u32, u32) {
        // SAFETY: registered as long as the region exists.
        unsafe { ((*self.mr).lkey, (*self.mr).rkey) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered and mapped by `new`. The queue pair, which uses the memory, is gone.
        unsafe {
            if !self.mr.is_null() {
                ibv::ibv_dereg_mr(self.mr);
            }
            libc::munmap(self.base.cast(), self.bytes);
        }
    }
}

/// Other memory that was registered. Its owner is dropped afterwards.
#[derive(Debug)]
struct Lent(*mut ibv::ibv_mr);

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: registered, and deregistered once. If the queue pair exists, a write to this memory fails from now on.
        unsafe { ibv::ibv_dereg_mr(self.0) };
    }
}

/// The objects of the device, as far as they were made; destroyed in the order of dependence.
struct Objects {
    context: *mut ibv::ibv_context,
    channel: *mut ibv::ibv_comp_channel,
    pd: *mut ibv::ibv_pd,
    receives: *mut ibv::ibv_cq,
    writes: *mut ibv::ibv_cq,
    qp: *mut ibv::ibv_qp,
    outgoing: Option<Region>,
    incoming: Option<Region>,
    lent: Mutex<Vec<(Lent, Owner)>>,
    /// For the memory of the rings.
    _held: Held,
    /// Its descriptors, which children must not keep.
    not_inherited: Vec<NotInherited>,
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.not_inherited.clear();
        // SAFETY: each object was made by the function of its kind and is used by nothing any more. Errors leave objects behind.
        unsafe {
            if !self.qp.is_null() {
                ibv::ibv_destroy_qp(self.qp);
            }
            (self.outgoing, self.incoming) = (None, None);
            lock(&self.lent).clear();
            for cq in [self.receives, self.writes] {
                if !cq.is_null() {
                    ibv::ibv_destroy_cq(cq);
                }
            }
            if !self.pd.is_null() {
                ibv::ibv_dealloc_pd(self.pd);
            }
            if !self.channel.is_null() {
                ibv::ibv_destroy_comp_channel(self.channel);
            }
            ibv::ibv_close_device(self.context);
        }
    }
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("qp", &self.qp).finish_non_exhaustive()
    }
}

/// A queue pair with its memory.
#[derive(Debug)]
pub(super) struct Pair {
    objects: Objects,
    outgoing: *mut u8,
    incoming: *mut u8,
    ring: usize,
    local_key: u32,
    ours: Parameters,
    /// The port, and the index of its address.
    port: u8,
    gid_index: u8,
    theirs: Option<Parameters>,
}

// SAFETY: the functions of libibverbs may be called by several threads; the memory lives as long as the value.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

/// The pointer that a function has returned.
fn made<T>(what: &str, pointer: *mut T) -> io::Result<*mut T> {
    if pointer.is_null() { Err(failed(what, io::Error::last_os_error())) } else { Ok(pointer) }
}

fn failed(what: &str, why: io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{what}: {why}"))
}

fn check(what: &str, rc: c_int) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(failed(what, io::Error::from_raw_os_error(rc.abs()))) }
}

/// A port of an open device.
struct Port {
    context: *mut ibv::ibv_context,
    number: u8,
    gid_index: u8,
    gid: [u8; 16],
    mtu: u32,
}

/// The port of a device with this address, if it has one.
///
/// # Safety
/// The device is in a list that exists.
unsafe fn port_of(device: *mut ibv::ibv_device, wanted: &[u8; 16]) -> Option<Port> {
    // SAFETY: as the caller says.
    let context = unsafe { ibv::ibv_open_device(device) };
    if context.is_null() {
        return None;
    }
    let mut entries = vec![ibv::ibv_gid_entry::default(); GIDS];
    let size = size_of::<ibv::ibv_gid_entry>();
    // SAFETY: as many entries as stated, of the stated size.
    let n = unsafe { ibv::_ibv_query_gid_table(context, entries.as_mut_ptr(), GIDS, 0, size) };
    entries.truncate(usize::try_from(n).unwrap_or(0));
    // SAFETY: both members of the union are plain bytes.
    let is_wanted = |e: &&ibv::ibv_gid_entry| e.gid_type == ibv::IBV_GID_TYPE_ROCE_V2 && unsafe { e.gid.raw } == *wanted;
    let found = entries.iter().find(is_wanted).and_then(|e| {
        let (number, gid_index) = (u8::try_from(e.port_num).ok()?, u8::try_from(e.gid_index).ok()?);
        let mut attributes = ibv::ibv_port_attr::default();
        // SAFETY: the function writes the first part of the structure, which has not changed.
        let rc = unsafe { ibv::ibv_query_port(context, number, (&raw mut attributes).cast()) };
        let is_active = rc == 0 && attributes.state == ibv::ibv_port_state::IBV_PORT_ACTIVE;
        is_active.then_some(Port { context, number, gid_index, gid: *wanted, mtu: attributes.active_mtu })
    });
    if found.is_none() {
        // SAFETY: opened above.
        unsafe { ibv::ibv_close_device(context) };
    }
    found
}

/// The port with this address.
fn find(address: IpAddr) -> io::Result<Port> {
    let wanted = gid_of(address);
    // Before the first device is opened: the memory that the library shares with the card then stays where it is when the job forks.
    // SAFETY: no arguments.
    match unsafe { ibv::ibv_fork_init() } {
        0 => {}
        // The program itself has registered memory before. The connection works, unless the job forks.
        libc::EINVAL => tracing::warn!(
            target: "place",
            "ibv_fork_init is refused, because the program already uses RDMA: the job may lose its connection when it forks"
        ),
        why => return Err(io::Error::other(format!("ibv_fork_init: {}", io::Error::from_raw_os_error(why)))),
    }
    let mut n = 0;
    // SAFETY: `n` is writable.
    let list = made("the list of RDMA devices", unsafe { ibv::ibv_get_device_list(&raw mut n) })?;
    let devices = usize::try_from(n).unwrap_or(0);
    // SAFETY: the list has `n` devices.
    let found = (0..devices).find_map(|i| unsafe { port_of(*list.add(i), &wanted) });
    // SAFETY: the list from above. A device that is open stays so.
    unsafe { ibv::ibv_free_device_list(list) };
    found.ok_or_else(|| {
        io::Error::other(format!("none of {devices} RDMA devices has an active RoCE port with the address {address}"))
    })
}

impl Pair {
    /// Makes a queue pair at the device with this address, with rings of so many bytes, for which `held` is, and all receives posted.
    pub(super) fn new(address: IpAddr, ring: usize, held: Held) -> io::Result<Pair> {
        let port = find(address)?;
        let mut o = Objects {
            context: port.context,
            channel: null_mut(),
            pd: null_mut(),
            receives: null_mut(),
            writes: null_mut(),
            qp: null_mut(),
            outgoing: None,
            incoming: None,
            lent: Mutex::default(),
            _held: held,
            not_inherited: Vec::new(),
        };
        // SAFETY: each function gets objects that exist; `o` keeps the results in an order in which they can be destroyed.
        unsafe {
            o.channel = made("completion channel", ibv::ibv_create_comp_channel(o.context))?;
            let fds = [(*o.context).cmd_fd, (*o.context).async_fd, (*o.channel).fd];
            o.not_inherited = fds.into_iter().filter_map(NotInherited::note).collect();
            if libc::fcntl((*o.channel).fd, libc::F_SETFL, libc::O_NONBLOCK) < 0 {
                return Err(io::Error::last_os_error());
            }
            o.pd = made("protection domain", ibv::ibv_alloc_pd(o.context))?;
            let depth = DEPTH as c_int;
            o.receives = made("completion queue", ibv::ibv_create_cq(o.context, depth, null_mut(), o.channel, 0))?;
            o.writes = made("completion queue", ibv::ibv_create_cq(o.context, depth, null_mut(), null_mut(), 0))?;
            let local = ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
            o.outgoing = Some(Region::new(o.pd, ring, local)?);
            o.incoming = Some(Region::new(o.pd, ring, local | ibv::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?);
            let mut wanted = ibv::ibv_qp_init_attr {
                send_cq: o.writes,
                recv_cq: o.receives,
                cap: ibv::ibv_qp_cap {
                    max_send_wr: DEPTH as u32,
                    max_recv_wr: DEPTH as u32,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                },
                qp_type: ibv::ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 1,
                ..Default::default()
            };
            o.qp = made("queue pair", ibv::ibv_create_qp(o.pd, &raw mut wanted))?;
        }
        let (Some(out), Some(into)) = (&o.outgoing, &o.incoming) else { return Err(io::ErrorKind::OutOfMemory.into()) };
        let bytes = random()?;
        let ours = Parameters {
            gid: port.gid,
            // SAFETY: the queue pair exists.
            number: unsafe { (*o.qp).qp_num },
            first: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]),
            address: into.base as u64,
            key: into.keys().1,
            mtu: port.mtu,
        };
        let (outgoing, incoming, local_key) = (out.base, into.base, out.keys().0);
        let (port, gid_index) = (port.number, port.gid_index);
        let pair = Pair { objects: o, outgoing, incoming, ring, local_key, ours, port, gid_index, theirs: None };
        use ibv::ibv_qp_attr_mask as m;
        let mut attributes = ibv::ibv_qp_attr {
            qp_state: ibv::ibv_qp_state::IBV_QPS_INIT,
            port_num: port,
            qp_access_flags: ibv::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
            ..Default::default()
        };
        pair.modify(&mut attributes, m::IBV_QP_STATE | m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT | m::IBV_QP_ACCESS_FLAGS)?;
        (0..DEPTH).try_for_each(|_| pair.post_receive())?;
        Ok(pair)
    }

    fn modify(&self, attributes: &mut ibv::ibv_qp_attr, mask: ibv::ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair exists, and the function only reads the attributes.
        check("queue pair", unsafe { ibv::ibv_modify_qp(self.objects.qp, attributes, mask.0 as c_int) })
    }

    /// Takes a completion of a queue.
    fn take(&self, cq: *mut ibv::ibv_cq) -> io::Result<Option<ibv::ibv_wc>> {
        let mut completion = ibv::ibv_wc::default();
        // SAFETY: the context and the queue exist; one completion is written at most.
        let n = unsafe { (*self.objects.context).ops.poll_cq.map(|poll| poll(cq, 1, &raw mut completion)) };
        match n {
            Some(0) => Ok(None),
            Some(1) => match completion.error() {
                None => Ok(Some(completion)),
                Some((status, _)) => {
                    // SAFETY: the function returns a constant text for every number.
                    let text = unsafe { CStr::from_ptr(ibv::ibv_wc_status_str(status)) };
                    Err(io::Error::other(text.to_string_lossy().into_owned()))
                }
            },
            _ => Err(io::Error::other("the completion queue cannot be polled")),
        }
    }
}

impl Prepared for Pair {
    fn parameters(&self) -> Parameters {
        self.ours
    }

    fn connect(mut self: Box<Self>, other: &Parameters) -> io::Result<Box<dyn Queue>> {
        use ibv::ibv_qp_attr_mask as m;
        self.theirs = Some(*other);
        let mut attributes = ibv::ibv_qp_attr {
            qp_state: ibv::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: self.ours.mtu.min(other.mtu).clamp(1, MTU),
            dest_qp_num: other.number & 0xff_ffff,
            rq_psn: other.first & 0xff_ffff,
            max_dest_rd_atomic: 0,
            min_rnr_timer: NOT_READY,
            ah_attr: ibv::ibv_ah_attr {
                is_global: 1,
                port_num: self.port,
                grh: ibv::ibv_global_route {
                    dgid: ibv::ibv_gid { raw: other.gid },
                    sgid_index: self.gid_index,
                    hop_limit: 64,
                    ..Default::default()
                },
                ..Default::default()
            },
            ..Default::default()
        };
        let mask = m::IBV_QP_STATE | m::IBV_QP_AV | m::IBV_QP_PATH_MTU | m::IBV_QP_DEST_QPN | m::IBV_QP_RQ_PSN;
        self.modify(&mut attributes, mask | m::IBV_QP_MAX_DEST_RD_ATOMIC | m::IBV_QP_MIN_RNR_TIMER)?;
        let mut attributes = ibv::ibv_qp_attr {
            qp_state: ibv::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: self.ours.first,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: NOT_READY_RETRIES,
            max_rd_atomic: 0,
            ..Default::default()
        };
        let mask = m::IBV_QP_STATE | m::IBV_QP_SQ_PSN | m::IBV_QP_TIMEOUT | m::IBV_QP_RETRY_CNT;
        self.modify(&mut attributes, mask | m::IBV_QP_RNR_RETRY | m::IBV_QP_MAX_QP_RD_ATOMIC)?;
        Ok(self)
    }
}

impl Queue for Pair {
    fn ring(&self) -> usize {
        self.ring
    }

    fn outgoing(&self) -> *mut u8 {
        self.outgoing
    }

    fn incoming(&self) -> *const u8 {
        self.incoming
    }

    fn register(&self, memory: Registrable<'_>, owner: Owner) -> io::Result<Keys> {
        let access = ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let (pd, Registrable { at, bytes, dma_buf }, access) = (self.objects.pd, memory, access.0 as c_int);
        let (what, mr) = match dma_buf {
            // SAFETY: the domain exists, and the owner keeps the memory mapped until it is deregistered.
            None => ("registering memory (ulimit -l)", unsafe { ibv::ibv_reg_mr(pd, at as *mut libc::c_void, bytes, access) }),
            // SAFETY: the domain exists, and the descriptor is open; the registration keeps what it needs of it.
            Some(file) => ("registering memory of the GPU", unsafe {
                ibv::ibv_reg_dmabuf_mr(pd, 0, bytes, at as u64, file.as_raw_fd(), access)
            }),
        };
        let made = Lent(made(what, mr)?);
        // SAFETY: just registered.
        let keys = unsafe { Keys { ours: (*mr).lkey, theirs: (*mr).rkey } };
        let mut lent = lock(&self.objects.lent);
        forget_unused(&mut lent);
        lent.push((made, owner));
        Ok(keys)
    }

    fn forget_unused(&self) {
        forget_unused(&mut lock(&self.objects.lent));
    }

    fn post_write(&self, write: &Write) -> io::Result<()> {
        let theirs = self.theirs.ok_or(io::ErrorKind::NotConnected)?;
        let (bytes, number) = (write.bytes, write.number);
        let side = |side, ring| match side {
            Side::Ring(offset) => Memory::at(ring, offset as u64),
            Side::Other(memory) => memory,
        };
        let from = side(write.from, Memory { address: self.outgoing as u64, key: self.local_key });
        let to = side(write.to, Memory { address: theirs.address, key: theirs.key });
        let mut piece = ibv::ibv_sge { addr: from.address, length: bytes as u32, lkey: from.key };
        let mut request = ibv::ibv_send_wr {
            wr_id: 0,
            next: null_mut(),
            sg_list: &raw mut piece,
            num_sge: c_int::from(bytes > 0),
            opcode: ibv::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            send_flags: 0,
            __bindgen_anon_1: ibv::ibv_send_wr__bindgen_ty_1 { imm_data: number.to_be() },
            wr: ibv::ibv_send_wr__bindgen_ty_2 {
                rdma: ibv::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: to.address, rkey: to.key },
            },
            qp_type: Default::default(),
            __bindgen_anon_2: Default::default(),
        };
        let mut bad = null_mut();
        // SAFETY: the queue pair exists; the request and its piece are read before the function returns, and the memory that the
        // piece names stays registered.
        let rc =
            unsafe { (*self.objects.context).ops.post_send.map(|post| post(self.objects.qp, &raw mut request, &raw mut bad)) };
        check("a write", rc.unwrap_or(libc::EINVAL))
    }

    fn post_receive(&self) -> io::Result<()> {
        let mut request = ibv::ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: null::<ibv::ibv_sge>().cast_mut(), num_sge: 0 };
        let mut bad = null_mut();
        // SAFETY: as for writes.
        let rc =
            unsafe { (*self.objects.context).ops.post_recv.map(|post| post(self.objects.qp, &raw mut request, &raw mut bad)) };
        check("a receive", rc.unwrap_or(libc::EINVAL))
    }

    fn poll(&self) -> io::Result<Option<Done>> {
        // Writes first: if one fails, what completes afterwards only says that the queue pair has failed.
        if self.take(self.objects.writes)?.is_some() {
            return Ok(Some(Done::Written));
        }
        let Some(completion) = self.take(self.objects.receives)? else { return Ok(None) };
        let number = completion.imm_data().ok_or_else(|| io::Error::other("the other end has sent no number"))?;
        Ok(Some(Done::Received(u32::from_be(number))))
    }

    fn arm(&self) -> io::Result<()> {
        // SAFETY: the context and the queue exist.
        let rc = unsafe { (*self.objects.context).ops.req_notify_cq.map(|arm| arm(self.objects.receives, 0)) };
        check("completion events", rc.unwrap_or(libc::EINVAL))
    }

    fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists as long as the queue pair.
        unsafe { BorrowedFd::borrow_raw((*self.objects.channel).fd) }
    }

    fn clear_events(&self) -> io::Result<()> {
        let (mut cq, mut about) = (null_mut(), null_mut());
        // SAFETY: the channel does not block; both pointers are writable. Each event is acknowledged.
        unsafe {
            while ibv::ibv_get_cq_event(self.objects.channel, &raw mut cq, &raw mut about) == 0 {
                ibv::ibv_ack_cq_events(cq, 1);
            }
        }
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            e => Err(e),
        }
    }
}
