//! The order in which changes are sent.

use super::line::{LINE, Line, WORDS, of_word};
use std::collections::BTreeMap;

/// Overwrites the words of a line with those of a later one.
pub(super) fn put_over(line: &mut Line, later: &Line) {
    for i in (0..WORDS).filter(|i| of_word(later[1], *i) != 0) {
        line[2 + i] = later[2 + i];
    }
    line[1] |= later[1];
}

/// The bits of all bytes of the words that have any of these bits.
pub(super) fn whole_words(mask: u64) -> u64 {
    (0..WORDS).filter(|i| of_word(mask, *i) != 0).fold(0, |m, i| m | 0xff << (8 * i))
}

/// Combines the lines of a first pass, by address, with those of later passes.
pub(super) fn first_and_later(first: Vec<Line>, mut later: BTreeMap<u64, Line>) -> Vec<Line> {
    let mut all = Vec::with_capacity(first.len() + later.len());
    for mut line in first {
        if let Some(l) = later.remove(&line[0]) {
            put_over(&mut line, &l);
        }
        all.push(line);
    }
    all.extend(later.into_values());
    all.sort_unstable_by_key(|l| l[0]);
    all
}

/// Lines, given by address, in the order in which they are sent.
pub(super) fn in_order(lines: Vec<Line>) -> Vec<Line> {
    let follows = |i: usize| i > 0 && i < lines.len() && lines[i][0] == lines[i - 1][0] + LINE;
    let neighbours = |i: usize| usize::from(follows(i)) + usize::from(follows(i + 1));
    let with = |n: usize| (0..lines.len()).rev().filter(move |i| neighbours(*i) == n).map(|i| lines[i]);
    let mut alone: Vec<Line> = with(0).collect();
    // A flag is one word; the data that it announces mostly is more.
    alone.sort_by_key(|l| std::cmp::Reverse(l[1].count_ones()));
    with(2).chain(with(1)).chain(alone).collect()
}

/// Combines the results of successive scans in the order in which the other side must apply them; `whole`: the last scan is a consistent
/// moment. In any case no older value of a word may follow a newer one: this side would not find the difference again.
pub fn joined(mut looks: Vec<Vec<Line>>, whole: bool) -> Vec<Line> {
    if looks.len() < 2 {
        return looks.pop().unwrap_or_default();
    }
    if whole {
        // All values are those of that moment.
        let mut all: BTreeMap<u64, Line> = BTreeMap::new();
        for line in looks.iter().flatten() {
            all.entry(line[0]).and_modify(|l| put_over(l, line)).or_insert(*line);
        }
        return in_order(all.into_values().collect());
    }
    // A writer never stops. The first result is sent with the values that it had then, before it words that were found later, and after
    // it their later values.
    let mut known: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for lines in &looks {
        let with = |line: &Line, mask: u64| (mask != 0).then(|| std::array::from_fn(|i| if i == 1 { mask } else { line[i] }));
        let of = |line: &Line| known.get(&line[0]).copied().unwrap_or(0);
        before.push(lines.iter().filter_map(|l| with(l, l[1] & !of(l))).collect::<Vec<Line>>());
        after.extend(lines.iter().filter_map(|l| with(l, l[1] & of(l))));
        lines.iter().for_each(|l| *known.entry(l[0]).or_default() |= whole_words(l[1]));
    }
    before.into_iter().rev().flatten().chain(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line with these words, of which these bytes have changed.
    fn line(at: u64, mask: u64, words: [u64; 2]) -> Line {
        [at, mask, words[0], words[1], 0, 0, 0, 0, 0, 0]
    }

    #[test]
    fn what_is_newer_of_a_word_comes_last() {
        // A word that changes between the looks, a byte of another one, a line that was found once.
        let first = vec![line(0x1000, 0x0103, [0x01b8, 5]), line(0x2000, 1, [7, 0])];
        let second = vec![line(0x3000, 1, [9, 0]), line(0x1000, 0x0302, [0x02b8, 0x105])];
        let third = vec![line(0x1000, 1, [0x02d8, 0x105])];
        let looks = vec![first, second, third];
        // All alone: the one that has changed most comes first.
        let want = [line(0x1000, 0x0303, [0x02d8, 0x105]), line(0x3000, 1, [9, 0]), line(0x2000, 1, [7, 0])];
        assert_eq!(joined(looks.clone(), true), want);
        let want = [
            line(0x3000, 1, [9, 0]),
            line(0x1000, 0x0103, [0x01b8, 5]),
            line(0x2000, 1, [7, 0]),
            line(0x1000, 0x0302, [0x02b8, 0x105]),
            line(0x1000, 1, [0x02d8, 0x105]),
        ];
        assert_eq!(joined(looks, false), want);
        assert_eq!(joined(Vec::new(), true), Vec::<Line>::new());
    }
}
