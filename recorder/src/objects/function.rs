//! The recorder's data about functions and kernels. A device's place returns the properties that launches need once; they may differ
//! between devices, since attributes of a kernel are set for one device.

use crate::base::answers::Answers;
use crate::base::log::lock;
use crate::base::sync::AtomicPtr;
use crate::objects::table::Known;
use cuda_api::address_map::DEVICES;
use cuda_api::code::{self, Code};
use cuda_api::ops::FunctionInfo;
use cuda_api::wire::Wire;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// Properties of a function that a place has returned.
#[derive(Debug)]
pub(crate) struct FunctionProperties {
    pub(crate) info: FunctionInfo,
    name: Option<CString>,
}

impl FunctionProperties {
    /// The function's name for the program: the driver promises a string that lives as long as the module.
    pub(crate) fn name(&self) -> Result<&CStr, Code> {
        self.name.as_deref().ok_or(code::ERROR_UNKNOWN)
    }

    /// Decodes an answer. Launches may use it while its function is destroyed and the handle is reused, so it is never freed; but it is
    /// stored only once, however often the same code is loaded or an attribute changes.
    fn of(answer: Vec<u8>) -> Result<&'static FunctionProperties, Code> {
        static ALL: Mutex<Option<HashMap<Vec<u8>, &'static FunctionProperties>>> = Mutex::new(None);
        let mut all = lock(&ALL);
        let all = all.get_or_insert_default();
        if let Some(properties) = all.get(&answer) {
            return Ok(properties);
        }
        let info = FunctionInfo::get(&mut &answer[..]).ok().filter(FunctionInfo::is_sound).ok_or(code::ERROR_UNKNOWN)?;
        let name = CString::new(info.name.as_str()).ok();
        let properties: &'static FunctionProperties = Box::leak(Box::new(FunctionProperties { info, name }));
        all.insert(answer, properties);
        Ok(properties)
    }
}

/// The recorder's data about a function or kernel.
#[derive(Debug, Default)]
pub(crate) struct FunctionData {
    /// The answer of the first device, if it is still valid,
    first: AtomicPtr<FunctionProperties>,
    /// and those of the others, which a job with one device never has.
    others: OnceLock<Box<[AtomicPtr<FunctionProperties>; DEVICES as usize - 1]>>,
    /// Cached answers of its place.
    pub(crate) answers: Answers,
    /// Module or library to which it belongs.
    pub(crate) parent: AtomicU64,
}

impl FunctionData {
    fn on(&self, device: u32) -> Option<&AtomicPtr<FunctionProperties>> {
        match device.checked_sub(1) {
            None => Some(&self.first),
            Some(other) => self.others.get()?.get(other as usize),
        }
    }

    /// Its parameters and limits on a device, if its code has been used there (the journalled first use) and nothing that they depend on
    /// has changed since.
    #[inline]
    pub(crate) fn known_on(&self, device: u32) -> Option<&'static FunctionProperties> {
        // SAFETY: published values were leaked by `FunctionProperties::of`.
        unsafe { self.on(device)?.load(Ordering::Acquire).as_ref() }
    }

    /// Queries a device's place and stores its answer. The ledger is held from before the query, as it is held over every change until
    /// after [`FunctionData::forget_on`]: so the answer is up to date.
    pub(crate) fn learn<L>(
        &self,
        device: u32,
        ledger: &Mutex<L>,
        ask: impl FnOnce(&mut L) -> Result<Vec<u8>, Code>,
    ) -> Result<&'static FunctionProperties, Code> {
        if device > 0 {
            self.others.get_or_init(Box::default);
        }
        let on = self.on(device).ok_or(code::ERROR_INVALID_DEVICE)?;
        let mut ledger = lock(ledger);
        let properties = FunctionProperties::of(ask(&mut ledger)?)?;
        on.store(ptr::from_ref(properties).cast_mut(), Ordering::Release);
        Ok(properties)
    }

    /// Invalidates the answer for a device: something on which the limits depend has changed, or the code is no longer there.
    pub(crate) fn forget_on(&self, device: u32) {
        if let Some(on) = self.on(device) {
            on.store(ptr::null_mut(), Ordering::Release);
        }
    }
}

impl Known for FunctionData {
    fn forget(&self) {
        (0..DEVICES).for_each(|d| self.forget_on(d));
        self.answers.forget();
        self.parent.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sync::AtomicU32;
    use interleave::{Barrier, Body, explore};
    use std::sync::Arc;

    /// These tests share the stored answers of all functions, and a lock that another test holds looks like a deadlock to a model.
    fn alone() -> std::sync::MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        cuda_api::lock::lock(&ONE)
    }

    fn answer(shared: u32) -> Vec<u8> {
        let mut answer = Vec::new();
        FunctionInfo { max_dynamic_shared: shared, name: "kernel".into(), ..FunctionInfo::default() }.put(&mut answer);
        answer
    }

    fn shared(data: &FunctionData, device: u32) -> Option<u32> {
        data.known_on(device).map(|properties| properties.info.max_dynamic_shared)
    }

    #[test]
    fn each_device_has_limits_of_its_own() {
        let _alone = alone();
        let (data, ledgers) = (FunctionData::default(), [const { Mutex::new(()) }; 2]);
        let learn = |device: u32, value| data.learn(device, &ledgers[device as usize], |()| Ok(answer(value))).map(drop);
        assert_eq!((shared(&data, 0), shared(&data, 1), shared(&data, 31)), (None, None, None));
        learn(0, 65536).unwrap();
        learn(1, 49152).unwrap();
        assert_eq!((shared(&data, 0), shared(&data, 1)), (Some(65536), Some(49152)), "an attribute was set on one");
        data.forget_on(0);
        assert_eq!((shared(&data, 0), shared(&data, 1)), (None, Some(49152)));
        assert_eq!(data.learn(2, &ledgers[0], |()| Err(code::ERROR_INVALID_HANDLE)).err(), Some(code::ERROR_INVALID_HANDLE));
        assert!(data.learn(32, &ledgers[0], |()| Ok(answer(1))).is_err());
        data.forget();
        assert_eq!((shared(&data, 0), shared(&data, 1), shared(&data, 31)), (None, None, None));
    }

    #[test]
    fn what_is_said_again_is_kept_once() {
        let _alone = alone();
        let (data, ledger) = (FunctionData::default(), Mutex::new(()));
        let learn = |value| ptr::from_ref(data.learn(0, &ledger, |()| Ok(answer(value))).unwrap());
        let (first, second) = (learn(1), learn(2));
        assert_ne!(first, second);
        for _ in 0..100 {
            data.forget();
            assert_eq!((learn(1), learn(2)), (first, second));
        }
        assert_eq!(data.known_on(0).unwrap().name(), Ok(c"kernel"));
        let sound = data.learn(0, &ledger, |()| Ok(b"no answer".to_vec()));
        assert_eq!(sound.err(), Some(code::ERROR_UNKNOWN));
    }

    /// A place, in which the attribute has a value, and threads that query it, set it and launch.
    #[derive(Default)]
    struct World {
        attribute: AtomicU32,
        ledger: Mutex<()>,
        data: FunctionData,
        /// Number of settings whose calls have returned.
        set: AtomicU32,
    }

    impl World {
        fn ask(&self) -> u32 {
            self.attribute.load(Ordering::SeqCst)
        }

        /// A launch: the value that it uses is not older than the last setting when it began.
        fn launch(&self, held: bool) {
            let least = self.set.load(Ordering::SeqCst);
            let properties = match self.data.known_on(0) {
                Some(properties) => properties,
                None if held => self.data.learn(0, &self.ledger, |()| Ok(answer(self.ask()))).unwrap(),
                None => {
                    // The former, wrong behaviour: a change may supersede the answer.
                    let said = self.ask();
                    self.data.learn(0, &self.ledger, |()| Ok(answer(said))).unwrap()
                }
            };
            assert!(properties.info.max_dynamic_shared >= least, "a launch is compared with what is no longer so");
        }

        fn set(&self, value: u32, forgets_early: bool) {
            let held = lock(&self.ledger);
            if forgets_early {
                self.data.forget_on(0);
                drop(held);
                self.attribute.store(value, Ordering::SeqCst);
            } else {
                self.attribute.store(value, Ordering::SeqCst);
                self.data.forget_on(0);
                drop(held);
            }
            self.set.store(value, Ordering::SeqCst);
        }
    }

    fn run(held: bool, forgets_early: bool) -> Result<usize, String> {
        explore(3, Barrier::Works, || {
            let world = Arc::new(World::default());
            let (launches, sets) = (world.clone(), world);
            let twice = move || (0..2).for_each(|_| launches.launch(held));
            let set = move || {
                sets.set(1, forgets_early);
                sets.launch(held);
            };
            vec![Box::new(twice) as Body, Box::new(set)]
        })
    }

    #[test]
    fn no_launch_is_compared_with_what_is_no_longer_so() {
        let _alone = alone();
        assert!(run(true, false).unwrap() > 100);
        for (held, forgets_early) in [(false, false), (true, true)] {
            let found = run(held, forgets_early).unwrap_err();
            assert!(found.contains("no longer so"), "the model finds what was wrong: {found}");
        }
    }
}
