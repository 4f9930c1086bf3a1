//! Metrics for Prometheus in its text format 0.0.4.

use std::fmt::{Display, Write};

/// A metric: its name, its type, and what it says.
pub type Family = (&'static str, &'static str, &'static str);

/// Metrics in the text format.
#[derive(Debug, Default)]
pub struct Exposition(String, &'static str);

impl Exposition {
    /// Begins a metric.
    pub fn family(&mut self, (name, kind, help): Family) -> &mut Exposition {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {}\n# TYPE {name} {kind}", escaped(help, false));
        self.1 = name;
        self
    }

    /// A value of the metric that was begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.series("", labels, value);
    }

    /// A histogram of the metric that was begun last.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let mut count = 0;
        for (bound, n) in histogram.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]).zip(&histogram.counts) {
            count += n;
            self.series("_bucket", &[labels, &[("le", &bound)]].concat(), count);
        }
        self.series("_sum", labels, histogram.sum);
        self.series("_count", labels, count);
    }

    /// A value of a series of the metric that was begun last.
    fn series(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{}{suffix}{labels} {value}", self.1);
    }

    /// The text.
    pub fn finish(self) -> String {
        self.0
    }
}

/// Values by their size.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// For each bound the values up to it and above the one before; at last those above all.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// One with buckets up to these bounds, which ascend.
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at] += 1;
        self.sum += value;
    }
}

/// Text as the format wants it: in a label's value quotes are escaped, too.
fn escaped(text: &str, is_label: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if is_label { text.replace('"', "\\\"") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_help_are_escaped() {
        let mut text = Exposition::default();
        text.family(("a", "gauge", "one\\two\n\"three\"")).sample(&[("x", "\\ \" \n ü"), ("y", "")], 1.5);
        let wanted = "# HELP a one\\\\two\\n\"three\"\n# TYPE a gauge\na{x=\"\\\\ \\\" \\n ü\",y=\"\"} 1.5\n";
        let text = text.finish();
        assert_eq!(text, wanted);
        assert_eq!(text.lines().count(), 3, "no value makes a line of its own");
    }

    #[test]
    fn a_histogram_counts_what_is_at_most_each_bound() {
        let mut values = Histogram::new(&[0.5, 2.0]);
        [0.25, 0.5, 1.0, 64.0].into_iter().for_each(|value| values.add(value));
        let mut text = Exposition::default();
        text.family(("h", "histogram", "x.")).histogram(&[("a", "b")], &values);
        let wanted = "# HELP h x.\n# TYPE h histogram\nh_bucket{a=\"b\",le=\"0.5\"} 2\nh_bucket{a=\"b\",le=\"2\"} 3\n\
                      h_bucket{a=\"b\",le=\"+Inf\"} 4\nh_sum{a=\"b\"} 65.75\nh_count{a=\"b\"} 4\n";
        assert_eq!(text.finish(), wanted);
    }
}
