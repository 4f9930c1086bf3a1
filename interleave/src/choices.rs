//! Runs code with every sequence of the choices that it makes, or with random ones.

/// The choices of one run.
#[derive(Debug)]
pub struct Choices {
    /// Each choice so far with the number of its possibilities; in a run of [`every_choice`] also those that it is to repeat.
    made: Vec<(usize, usize)>,
    /// Number of choices that this run has made.
    at: usize,
    /// Number of choices that were made before this run began. The last one is new: no earlier run made it after the same others.
    given: usize,
    /// State of the generator of a random run.
    random: Option<u64>,
}

impl Choices {
    /// One of `of` possibilities, from 0.
    ///
    /// # Panics
    /// There is none, or a run of [`every_choice`] is not determined by its choices.
    pub fn pick(&mut self, of: usize) -> usize {
        assert!(of > 0, "nothing to choose from");
        self.at += 1;
        if let Some(state) = &mut self.random {
            // xorshift64
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            return ((*state >> 8) % of as u64) as usize;
        }
        if let Some((choice, possible)) = self.made.get(self.at - 1) {
            assert_eq!(*possible, of, "a run is not determined by its choices");
            return *choice;
        }
        self.made.push((0, of));
        0
    }

    /// Whether something rare happens: in a random run one time of `of`, while [`every_choice`] runs both.
    pub fn rarely(&mut self, of: usize) -> bool {
        self.pick(if self.random.is_some() { of } else { 2 }) == 1
    }

    /// Whether an earlier run of [`every_choice`] has made all choices that this one has made so far. What it checked then need not be
    /// checked again, which would take most of the time: nearly all choices of a run are those of the run before.
    pub fn is_repeated(&self) -> bool {
        self.at < self.given
    }
}

/// Runs `run` once with each sequence of choices. Returns the number of runs.
pub fn every_choice(mut run: impl FnMut(&mut Choices)) -> usize {
    let mut choices = Choices { made: Vec::new(), at: 0, given: 0, random: None };
    let mut runs = 0;
    loop {
        (choices.at, choices.given) = (0, choices.made.len());
        run(&mut choices);
        runs += 1;
        // The last choice that has another possibility takes it.
        while choices.made.last().is_some_and(|(choice, of)| choice + 1 == *of) {
            choices.made.pop();
        }
        let Some((choice, _)) = choices.made.last_mut() else { return runs };
        *choice += 1;
    }
}

/// Runs `run` so often with random choices, which are the same each time.
pub fn random_choices(runs: u64, mut run: impl FnMut(&mut Choices)) {
    for seed in 1..=runs {
        run(&mut Choices { made: Vec::new(), at: 0, given: 0, random: Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1) });
    }
}

/// A bound of a model: the first one, or the second, larger one with `LARGE_MODELS=1` in the environment.
pub fn bound<T>(usual: T, large: T) -> T {
    if std::env::var_os("LARGE_MODELS").is_some_and(|value| value == "1") { large } else { usual }
}
