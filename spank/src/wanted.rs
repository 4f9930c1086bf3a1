//! What a user has asked for with the options of the plugin, as `mrcuda run` takes it.

/// The values of the options; `None`: not given.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) places: String,
    pub(crate) on_signal: Option<String>,
    pub(crate) home: Option<String>,
    pub(crate) policy: Option<String>,
}

impl Wanted {
    /// The arguments of `mrcuda` that print a task's variables.
    pub(crate) fn arguments(&self) -> Vec<String> {
        // Joined, so that no value is taken for another option.
        let option = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("--{name}={value}"));
        let more = [("on-signal", &self.on_signal), ("home", &self.home), ("policy", &self.policy)];
        let fixed = ["run".to_owned(), "--export=null".to_owned(), format!("--server={}", self.places)];
        fixed.into_iter().chain(more.into_iter().filter_map(|(name, value)| option(name, value))).collect()
    }
}
