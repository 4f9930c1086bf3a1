//! Which changes are sent, and in which order.

use super::line::{LINE, Line, WORDS, of_word};
use std::collections::BTreeMap;

/// Overwrites the words of a line with those of a later one.
fn put_over(line: &mut Line, later: &Line) {
    for i in (0..WORDS).filter(|i| of_word(later[1], *i) != 0) {
        line[2 + i] = later[2 + i];
    }
    line[1] |= later[1];
}

/// Adds a line to others by address, over what they have of its words.
fn put(all: &mut BTreeMap<u64, Line>, line: &Line) {
    all.entry(line[0]).and_modify(|l| put_over(l, line)).or_insert(*line);
}

/// The bits of all bytes of the words that have any of these bits.
fn whole_words(mask: u64) -> u64 {
    (0..WORDS).filter(|i| of_word(mask, *i) != 0).fold(0, |m, i| m | 0xff << (8 * i))
}

/// A line that a pass has found, and what its words were before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) line: Line,
    pub(super) was: [u64; WORDS],
}

/// Whether a pass and the one before it have each found only bytes that the pass before has found too. Each gives its changes by address.
///
/// What was written before a pass reads a byte is found by the next pass at the latest. So then the newest values of all passes but this
/// one miss nothing that was written before any of them, except in the bytes that change all the time. A program that announces data by a
/// flag, and goes on when it is answered, does not change them so often.
pub(super) fn only_the_same(pass: &[Change], passes: &[Vec<Change>]) -> bool {
    matches!(passes, [.., two_before, before] if within(pass, before) && within(before, two_before))
}

fn within(pass: &[Change], earlier: &[Change]) -> bool {
    pass.iter().all(|c| c.line[1] & !mask_in(earlier, c.line[0]) == 0)
}

/// The bits of the bytes that a pass has found in the line at an address.
fn mask_in(pass: &[Change], at: u64) -> u64 {
    pass.binary_search_by_key(&at, |c| c.line[0]).map_or(0, |i| pass[i].line[1])
}

/// For each line of the last pass, the bits of the words that change all the time: the same bytes have changed in the pass before, and the
/// word in the one before that. A word whose parts are written one after the other is not one of them.
pub(super) fn restless(last: &[Change], passes: &[Vec<Change>]) -> Vec<u64> {
    let [.., two_before, before] = passes else { return vec![0; last.len()] };
    let of_line = |c: &Change| {
        let (again, long) = (c.line[1] & mask_in(before, c.line[0]), whole_words(mask_in(two_before, c.line[0])));
        whole_words(again) & long
    };
    last.iter().map(of_line).collect()
}

/// Adds to the bytes of a line those that these lines have of its words, and removes these words from them. The values are the line's.
pub(super) fn take_words(from: &mut [Line], line: &mut Line) {
    if let Ok(i) = from.binary_search_by_key(&line[0], |l| l[0]) {
        let words = whole_words(line[1]);
        line[1] |= from[i][1] & words;
        from[i][1] &= !words;
    }
}

/// All changes of successive passes with their newest values, by address.
pub(super) fn newest(passes: Vec<Vec<Change>>) -> Vec<Line> {
    let mut passes = passes.into_iter();
    let mut all: Vec<Line> = passes.next().into_iter().flatten().map(|c| c.line).collect();
    let mut later: BTreeMap<u64, Line> = BTreeMap::new();
    passes.flatten().for_each(|change| put(&mut later, &change.line));
    for line in &mut all {
        if let Some(l) = later.remove(&line[0]) {
            put_over(line, &l);
        }
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
/// moment; `is_new`: an address is in memory that is mirrored only since the first scan. In any case no older value of a word may follow a
/// newer one: this side would not find the difference again.
pub fn joined(mut looks: Vec<Vec<Line>>, whole: bool, is_new: impl Fn(u64) -> bool) -> Vec<Line> {
    if looks.len() < 2 {
        return looks.pop().unwrap_or_default();
    }
    let mut all: BTreeMap<u64, Line> = BTreeMap::new();
    if whole {
        // All values are those of that moment.
        looks.iter().flatten().for_each(|l| put(&mut all, l));
        return in_order(all.into_values().collect());
    }
    // A writer never stops. The new memory comes first, because what follows refers to it; then what each scan has found.
    looks.iter().flatten().filter(|l| is_new(l[0])).for_each(|l| put(&mut all, l));
    let new = in_order(all.into_values().collect());
    new.into_iter().chain(looks.into_iter().flatten().filter(|l| !is_new(l[0]))).collect()
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
        let is_new = |at| at == 0x3000;
        assert_eq!(joined(looks.clone(), true, is_new), want);
        let want = [
            line(0x3000, 1, [9, 0]),
            line(0x1000, 0x0103, [0x01b8, 5]),
            line(0x2000, 1, [7, 0]),
            line(0x1000, 0x0302, [0x02b8, 0x105]),
            line(0x1000, 1, [0x02d8, 0x105]),
        ];
        assert_eq!(joined(looks, false, is_new), want);
        assert_eq!(joined(Vec::new(), true, is_new), Vec::<Line>::new());
    }

    /// A pass that has found these words, each in a line of its own.
    fn pass(words: &[u64]) -> Vec<Change> {
        words.iter().map(|at| Change { line: line(at * LINE, 1, [1, 0]), was: [0; WORDS] }).collect()
    }

    #[test]
    fn a_scan_ends_when_only_the_same_words_change() {
        let ends = |passes: &[&[u64]]| {
            let mut passes: Vec<_> = passes.iter().map(|p| pass(p)).collect();
            passes.pop().is_some_and(|last| only_the_same(&last, &passes))
        };
        assert!(ends(&[&[1, 5], &[1], &[1]]) && ends(&[&[7], &[1, 5], &[1], &[1]]));
        // Data that were written twice before their flag; other words each time.
        assert!(!ends(&[&[1], &[1, 5, 6], &[1, 5]]) && ends(&[&[1, 5, 6], &[1, 5], &[1]]));
        assert!(!ends(&[&[1], &[1]]) && !ends(&[&[1], &[2], &[3]]));
        // Another byte of the same word.
        let (first, mut second) = (pass(&[1]), pass(&[1]));
        second[0].line[1] = 2;
        assert!(!within(&second, &first) && within(&first, &first));
    }

    #[test]
    fn words_that_change_all_the_time_are_told_from_those_that_are_filled() {
        let byte = |at: u64, mask: u64| Change { line: line(at * LINE, mask, [7, 8]), was: [0; WORDS] };
        // A counter; a word that is filled byte by byte; one that was written long before; a new one.
        let passes = [vec![byte(1, 1), byte(3, 1)], vec![byte(1, 1), byte(2, 1)], vec![byte(1, 3), byte(2, 2)]];
        let last = [byte(1, 1), byte(2, 4), byte(3, 1), byte(4, 0x0100)];
        assert_eq!(restless(&last, &passes), [0xff, 0, 0, 0]);
        assert_eq!(restless(&last, &passes[..1]), [0; 4]);
        let mut kept = newest(passes.to_vec());
        let mut taken = last[1].line;
        take_words(&mut kept, &mut taken);
        assert_eq!((taken[1], kept.iter().map(|l| l[1]).collect::<Vec<_>>()), (7, vec![3, 0, 1]));
    }
}
