//! Runs code with every sequence of the choices that it makes, or with random ones.

/// The choices of one run.
#[derive(Debug)]
pub struct Choices {
    /// Each choice so far with the number of its possibilities; in a run of [`every_choice`] also those that it is to repeat.
    made: Vec<(usize, usize)>,
    /// Number of choices that this run has made.
    at: usize,
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
}

/// Runs `run` once with each sequence of choices. Returns the number of runs.
pub fn every_choice(mut run: impl FnMut(&mut Choices)) -> usize {
    let mut choices = Choices { made: Vec::new(), at: 0, random: None };
    let mut runs = 0;
    loop {
        choices.at = 0;
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
        run(&mut Choices { made: Vec::new(), at: 0, random: Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1) });
    }
}
