//! Plots as SVG: points with fitted curves, on logarithmic axes or on even ones from zero; the legend is beside the axes, where it covers nothing. A path has the same
//! colour in all plots.

use crate::fit;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use std::io;
use std::path::{Path, PathBuf};

/// Points of one kind.
#[derive(Debug, Clone)]
pub struct Series {
    /// Text of the legend; determines the colour.
    pub name: String,
    /// The points; those that the [`Axes`] cannot show are omitted.
    pub points: Vec<(f64, f64)>,
    /// The curve fitted to them.
    pub fit: Option<Curve>,
}

/// A fitted curve.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its formula, for the legend.
    pub text: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// Number of points of a fitted curve.
const CURVE: usize = 60;

impl Series {
    /// Points without a curve.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, fit: None }
    }

    /// Times in seconds by an amount of `unit`, with the fitted line: a constant and a time for each (or a multiple of them, if they are
    /// `round trips`).
    pub fn times(name: impl Into<String>, points: Vec<(f64, f64)>, unit: &str) -> Series {
        let fit = fit::line(&points).map(|(once, each)| {
            let each_text = match unit {
                "bytes" => rate(each),
                "round trips" => format!("{each:.2} round trips"),
                _ => format!("{} each", seconds(each)),
            };
            Curve { text: format!("{} + {each_text}", seconds(once)), points: curve(&points, |n| once + each * n) }
        });
        Series { name: name.into(), points, fit }
    }

    /// The rate in GB/s of times in seconds by bytes, with the curve of the fitted line.
    pub fn rates(name: impl Into<String>, times: &[(f64, f64)]) -> Series {
        let fit = fit::line(times).map(|(once, each)| Curve {
            text: format!("{} + {}", seconds(once), rate(each)),
            points: curve(times, |n| n / (once + each * n) / 1e9),
        });
        Series { name: name.into(), points: times.iter().map(|(n, s)| (*n, n / s / 1e9)).collect(), fit }
    }
}

/// A function at evenly spaced logarithms between the smallest and the largest amount.
fn curve(points: &[(f64, f64)], f: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    let amounts = points.iter().map(|p| p.0).filter(|n| *n > 0.0);
    let (low, high) = amounts.fold((f64::INFINITY, 0.0f64), |(l, h), n| (l.min(n), h.max(n)));
    if low >= high {
        return Vec::new();
    }
    let at = |i: usize| low * (high / low).powf(i as f64 / (CURVE - 1) as f64);
    (0..CURVE).map(|i| (at(i), f(at(i)))).collect()
}

/// Bytes at a time for each.
fn rate(each: f64) -> String {
    if each > 0.0 { format!("bytes / {:.3} GB/s", 1.0 / each / 1e9) } else { "0".to_owned() }
}

/// A duration with its unit.
pub fn seconds(s: f64) -> String {
    match s {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s if s >= 1e-6 => format!("{:.2} us", s * 1e6),
        s => format!("{:.1} ns", s * 1e9),
    }
}

/// Both axes of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Axes {
    /// Logarithmic: for amounts that span orders of magnitude. Only positive values can be shown.
    #[default]
    Logarithmic,
    /// Even, from zero: for shares of a run and for moments. Negative values cannot be shown.
    FromZero,
}

impl Axes {
    /// Whether a point can be shown.
    fn show(self, (x, y): &(f64, f64)) -> bool {
        let shown = |n: f64| n.is_finite() && if self == Axes::Logarithmic { n > 0.0 } else { n >= 0.0 };
        shown(*x) && shown(*y)
    }

    /// The text at a mark of an axis. On logarithmic ones only marks of 1, 2 and 5 times a power of ten have one: there is no room for more.
    fn label(self, n: f64, unit: &str) -> String {
        let digit = n / 10f64.powf(n.log10().floor());
        let has_one = [1.0, 2.0, 5.0, 10.0].iter().any(|d| (digit - d).abs() < 0.01);
        if self == Axes::FromZero || has_one { figure(n, unit) } else { String::new() }
    }

    /// The ends of an axis for values between these.
    fn ends(self, low: f64, high: f64) -> (f64, f64) {
        match self {
            // Down to a power of ten, from which the axis has its figures.
            Axes::Logarithmic => (10f64.powf((low / 1.1).log10().floor()), high * 1.5),
            Axes::FromZero => (0.0, if high > 0.0 { high * 1.05 } else { 1.0 }),
        }
    }
}

/// Contents of a plot.
#[derive(Debug, Clone, Default)]
pub struct Plot<'a> {
    /// Heading.
    pub title: &'a str,
    /// Horizontal axis, with its unit.
    pub x: &'a str,
    /// Vertical axis, with its unit.
    pub y: &'a str,
    /// Draws the line on which both are equal.
    pub diagonal: bool,
    /// Joins the points of a series without a fitted curve.
    pub lines: bool,
    /// The axes.
    pub axes: Axes,
}

/// Width and height in pixels.
const SIZE: (u32, u32) = (1120, 640);
/// Width of the legend, and height of one of its entries.
const LEGEND: u32 = 300;
const ENTRY: i32 = 44;

/// Colours of the paths: distinct also for people who cannot distinguish red from green.
const PATHS: [(&str, RGBColor); 8] = [
    ("native", RGBColor(0, 0, 0)),
    ("in-process", RGBColor(0, 158, 115)),
    ("helper", RGBColor(230, 159, 0)),
    ("shm", RGBColor(140, 60, 170)),
    ("tcp", RGBColor(0, 90, 200)),
    ("tls", RGBColor(86, 180, 233)),
    ("raw", RGBColor(120, 120, 120)),
    ("against", RGBColor(213, 60, 0)),
];

/// Colours of everything else, by name.
const OTHERS: [RGBColor; 7] = [
    RGBColor(204, 100, 160),
    RGBColor(120, 70, 20),
    RGBColor(170, 150, 0),
    RGBColor(0, 95, 60),
    RGBColor(220, 20, 60),
    RGBColor(60, 60, 140),
    RGBColor(0, 190, 190),
];

/// How a series is drawn: moves have the colour of their target and the shape of their source.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Style {
    colour: RGBColor,
    shape: usize,
}

/// The path that a name begins with.
fn path_of(name: &str) -> Option<usize> {
    PATHS.iter().position(|(path, _)| name == *path || name.strip_prefix(path).is_some_and(|rest| rest.starts_with([' ', ','])))
}

fn style(name: &str) -> Style {
    let (from, to) = name.rsplit_once(' ').map_or(name, |(_, way)| way).split_once("->").unwrap_or(("tcp", name));
    let hash = || to.bytes().fold(0usize, |h, b| (h * 31 + usize::from(b)) % 1_000_003) % OTHERS.len();
    let colour = path_of(to).map_or_else(|| OTHERS[hash()], |path| PATHS[path].1);
    // A circle, unless the source is another path.
    let shape = match from {
        "in-process" => 1,
        "helper" => 2,
        "shm" => 3,
        _ => 0,
    };
    Style { colour, shape }
}

/// Number of shapes of marks.
const SHAPES: usize = 6;

/// Styles of series: those whose names do not determine one get different colours, several of one path different shapes.
fn styles(series: &[Series]) -> Vec<Style> {
    let mut used: Vec<Style> = Vec::new();
    for s in series {
        let mut style = style(&s.name);
        if path_of(&s.name).is_none() {
            let free = OTHERS.iter().find(|colour| !used.iter().any(|u| u.colour == **colour));
            if let (true, Some(free)) = (used.contains(&style), free) {
                style.colour = *free;
            }
        } else if used.contains(&style) {
            let others = (0..SHAPES).map(|shape| Style { shape, ..style });
            style = others.into_iter().find(|other| !used.contains(other)).unwrap_or(style);
        }
        used.push(style);
    }
    used
}

/// A number with an SI prefix, if a unit follows.
fn figure(n: f64, unit: &str) -> String {
    if n == 0.0 {
        return "0".to_owned();
    }
    if unit.is_empty() {
        return if n < 1000.0 { format!("{}", (n * 1e6).round() / 1e6) } else { figure(n, " ").trim_end().to_owned() };
    }
    let prefixes = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n")];
    let (scale, prefix) = prefixes.into_iter().find(|(scale, _)| n >= *scale * 0.9999).unwrap_or((1e-9, "n"));
    let shown = (n / scale * 1e3).round() / 1e3;
    format!("{shown} {prefix}{unit}")
}

/// The unit that follows a figure on an axis with this description: of amounts that have one without a prefix.
fn unit(axis: &str) -> &'static str {
    match axis {
        "bytes" => "B",
        axis if axis == "s" || axis.ends_with(", s") => "s",
        _ => "",
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

type AreaError = DrawingAreaErrorKind<io::Error>;

/// Why a plot was not drawn.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// No series has a point that the axes can show.
    #[error("{0}: there is nothing to draw")]
    Empty(String),
    /// The file cannot be written.
    #[error("{path}: {source}")]
    Draw {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: AreaError,
    },
}

/// One mark of a series, at a position in pixels.
fn mark(area: &Area<'_>, (x, y): (i32, i32), style: Style) -> Result<(), AreaError> {
    let filled = style.colour.filled();
    match style.shape {
        1 => area.draw(&TriangleMarker::new((x, y), 5, filled)),
        2 => area.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], filled)),
        3 => area.draw(&Cross::new((x, y), 5, style.colour.stroke_width(2))),
        4 => area.draw(&Circle::new((x, y), 5, style.colour.stroke_width(2))),
        5 => area.draw(&Rectangle::new([(x - 5, y - 5), (x + 5, y + 5)], style.colour.stroke_width(2))),
        _ => area.draw(&Circle::new((x, y), 4, filled)),
    }
}

fn legend(area: &Area<'_>, series: &[Series], styles: &[Style]) -> Result<(), AreaError> {
    for (number, (s, style)) in series.iter().zip(styles).enumerate() {
        let y = 60 + number as i32 * ENTRY;
        mark(area, (14, y), *style)?;
        let text = |words: &str, y, size, colour: RGBColor| {
            let font = ("sans-serif", size).into_font().color(&colour);
            area.draw(&Text::new(words.to_owned(), (28, y), font))
        };
        text(&s.name, y - 8, 16, BLACK)?;
        if let Some(fit) = &s.fit {
            text(&format!("fit: {}", fit.text), y + 10, 13, RGBColor(80, 80, 80))?;
        }
    }
    Ok(())
}

/// Draws a plot into a file.
///
/// # Errors
/// There is nothing to draw, or the file cannot be written.
pub fn draw(path: &Path, plot: &Plot, series: &[Series]) -> Result<(), PlotError> {
    let good = |point: &(f64, f64)| plot.axes.show(point);
    let series: Vec<Series> = series.iter().filter(|s| s.points.iter().any(good)).cloned().collect();
    let all: Vec<(f64, f64)> = series.iter().flat_map(|s| s.points.iter().copied().filter(good)).collect();
    if all.is_empty() {
        return Err(PlotError::Empty(plot.title.to_owned()));
    }
    let ends = |values: &dyn Fn(&(f64, f64)) -> f64| {
        let (low, high) = all.iter().map(values).fold((f64::INFINITY, 0.0f64), |(l, h), n| (l.min(n), h.max(n)));
        plot.axes.ends(low, high)
    };
    let (mut x, mut y) = (ends(&|p| p.0), ends(&|p| p.1));
    if plot.diagonal {
        let both = (x.0.min(y.0), x.1.max(y.1));
        (x, y) = (both, both);
    }
    let styles = styles(&series);
    let failed = |source| PlotError::Draw { path: path.to_owned(), source };
    let height = SIZE.1.max(80 + series.len() as u32 * ENTRY as u32);
    let whole = SVGBackend::new(path, (SIZE.0, height)).into_drawing_area();
    whole.fill(&WHITE).map_err(failed)?;
    let (area, beside) = whole.split_horizontally(SIZE.0 - LEGEND);
    match plot.axes {
        Axes::Logarithmic => {
            let scales = ((x.0..x.1).log_scale(), (y.0..y.1).log_scale());
            draw_on(&area, scales, (x, y), plot, &series, &styles).map_err(failed)?;
        }
        Axes::FromZero => draw_on(&area, (x.0..x.1, y.0..y.1), (x, y), plot, &series, &styles).map_err(failed)?,
    }
    legend(&beside, &series, &styles).map_err(failed)?;
    whole.present().map_err(failed)
}

/// Draws axes with these scales and ends, and the series.
fn draw_on<X, Y>(
    area: &Area<'_>,
    scales: (X, Y),
    (x, y): ((f64, f64), (f64, f64)),
    plot: &Plot,
    series: &[Series],
    styles: &[Style],
) -> Result<(), AreaError>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(plot.title, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(50)
        .y_label_area_size(86)
        .build_cartesian_2d(scales.0, scales.1)?;
    chart
        .configure_mesh()
        .x_desc(plot.x)
        .y_desc(plot.y)
        .axis_desc_style(("sans-serif", 17))
        .label_style(("sans-serif", 14))
        .x_label_formatter(&|n| plot.axes.label(*n, unit(plot.x)))
        .y_label_formatter(&|n| plot.axes.label(*n, unit(plot.y)))
        .light_line_style(WHITE)
        .draw()?;
    if plot.diagonal {
        chart.draw_series(LineSeries::new([(x.0, y.0), (x.1, y.1)], BLACK.mix(0.4)))?;
    }
    for (s, style) in series.iter().zip(styles) {
        let mut points: Vec<(f64, f64)> = s.points.iter().copied().filter(|point| plot.axes.show(point)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let inside = |p: &(f64, f64)| plot.axes.show(p) && (x.0..=x.1).contains(&p.0) && (y.0..=y.1).contains(&p.1);
        let line: Vec<(f64, f64)> = match &s.fit {
            Some(fit) => fit.points.iter().copied().filter(inside).collect(),
            None if plot.lines => points.clone(),
            None => Vec::new(),
        };
        chart.draw_series(LineSeries::new(line, style.colour.stroke_width(2)))?;
        for point in points {
            mark(area, chart.backend_coord(&point), *style)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_colour() {
        assert_eq!(style("tcp").colour, style("tcp, 4 threads").colour);
        assert_eq!(style("shm->tcp").colour, style("tcp").colour);
        assert_ne!(style("shm->tcp"), style("helper->tcp"));
        let named = |names: &[&str]| styles(&names.iter().map(|n| Series::new(*n, Vec::new())).collect::<Vec<_>>());
        let all = named(&["native", "in-process", "helper", "shm", "tcp", "raw tcp", "a:1/0", "b:1/0", "c:1/0", "d:1/0"]);
        for (i, style) in all.iter().enumerate() {
            assert!(!all[..i].contains(style), "{i}");
        }
        let path = named(&["tcp", "tcp, pinned", "shm", "tcp, queued", "tcp, pageable", "tcp, other", "tcp, last"]);
        assert!(path.iter().enumerate().all(|(i, style)| !path[..i].contains(style)));
        assert!(path.iter().enumerate().all(|(i, style)| (style.colour == path[0].colour) == (i != 2)));
    }

    #[test]
    fn figures_have_prefixes() {
        let with = |unit| move |n| figure(n, unit);
        assert_eq!([1e3, 2.5e9, 1.0, 1e-3, 0.5].map(with("B")), ["1 kB", "2.5 GB", "1 B", "1 mB", "500 mB"]);
        assert_eq!([1e3, 2e6, 1.0, 0.01, 0.5, 64.0].map(with("")), ["1 k", "2 M", "1", "0.01", "0.5", "64"]);
        assert_eq!(["bytes", "s", "round-trip time, s", "GB/s", "threads"].map(unit), ["B", "s", "s", "", ""]);
    }

    #[test]
    fn axes_show_what_they_can() {
        let shown = |axes: Axes| [(0.0, 1.0), (1.0, 1.0), (-1.0, 1.0), (1.0, f64::NAN)].map(|point| axes.show(&point));
        assert_eq!(shown(Axes::Logarithmic), [false, true, false, false]);
        assert_eq!(shown(Axes::FromZero), [true, true, false, false]);
        assert_eq!((Axes::FromZero.ends(3.0, 100.0), Axes::FromZero.ends(0.0, 0.0)), ((0.0, 105.0), (0.0, 1.0)));
        let labels = |axes: Axes| [0.001, 0.005, 0.007, 3e6, 2e6].map(|n| axes.label(n, "B"));
        assert_eq!(labels(Axes::Logarithmic), ["1 mB", "5 mB", "", "", "2 MB"]);
        assert_eq!((&labels(Axes::FromZero)[3][..], &Axes::FromZero.label(0.0, "s")[..]), ("3 MB", "0"));
    }

    #[test]
    fn times_have_a_constant_and_a_rate() {
        let points: Vec<(f64, f64)> = [1e3, 1e6, 1e9].map(|n| (n, 1e-3 + n / 2e9)).into();
        let series = Series::rates("tcp", &points);
        assert_eq!(series.fit.unwrap().text, "1.00 ms + bytes / 2.000 GB/s");
        assert!((series.points[2].1 - 2.0).abs() < 0.01);
    }
}
