//! Plots as SVG: points on logarithmic axes.

use plotters::prelude::*;
use std::path::Path;

/// Points of one kind.
#[derive(Debug, Clone)]
pub struct Series {
    /// Text of the legend.
    pub name: String,
    /// The points; non-positive ones cannot be shown on logarithmic axes and are omitted.
    pub points: Vec<(f64, f64)>,
}

/// Contents of a plot.
#[derive(Debug, Clone)]
pub struct Plot<'a> {
    /// Heading.
    pub title: &'a str,
    /// Horizontal axis, with its unit.
    pub x: &'a str,
    /// Vertical axis, with its unit.
    pub y: &'a str,
    /// Draws the line on which both are equal.
    pub diagonal: bool,
    /// Joins the points of a series.
    pub lines: bool,
}

/// Width and height in pixels.
const SIZE: (u32, u32) = (960, 640);

/// Draws a plot into a file.
///
/// # Errors
/// There is nothing to draw, or the file cannot be written.
pub fn draw(path: &Path, plot: &Plot, series: &[Series]) -> Result<(), String> {
    let good = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite() && *x > 0.0 && *y > 0.0;
    let all: Vec<(f64, f64)> = series.iter().flat_map(|s| s.points.iter().copied().filter(good)).collect();
    if all.is_empty() {
        return Err(format!("{}: there is nothing to draw", plot.title));
    }
    let ends = |values: &dyn Fn(&(f64, f64)) -> f64| {
        let (low, high) = all.iter().map(values).fold((f64::INFINITY, 0.0f64), |(l, h), n| (l.min(n), h.max(n)));
        (low / 1.5, high * 1.5)
    };
    let (mut x, mut y) = (ends(&|p| p.0), ends(&|p| p.1));
    if plot.diagonal {
        let both = (x.0.min(y.0), x.1.max(y.1));
        (x, y) = (both, both);
    }
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|e| failed(&e))?;
    let mut chart = ChartBuilder::on(&area)
        .caption(plot.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(80)
        .build_cartesian_2d((x.0..x.1).log_scale(), (y.0..y.1).log_scale())
        .map_err(|e| failed(&e))?;
    let figure = |n: &f64| format!("{n:.0e}");
    chart
        .configure_mesh()
        .x_desc(plot.x)
        .y_desc(plot.y)
        .x_label_formatter(&figure)
        .y_label_formatter(&figure)
        .light_line_style(WHITE)
        .draw()
        .map_err(|e| failed(&e))?;
    if plot.diagonal {
        let line = LineSeries::new([(x.0, y.0), (x.1, y.1)], BLACK.mix(0.4));
        chart.draw_series(line).map_err(|e| failed(&e))?;
    }
    for (number, s) in series.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        let mut points: Vec<(f64, f64)> = s.points.iter().copied().filter(good).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if plot.lines {
            chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(1))).map_err(|e| failed(&e))?;
        }
        chart
            .draw_series(points.iter().map(|p| Circle::new(*p, 3, colour.filled())))
            .map_err(|e| failed(&e))?
            .label(s.name.clone())
            .legend(move |(x, y)| Circle::new((x + 10, y), 4, colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(|e| failed(&e))?;
    area.present().map_err(|e| failed(&e))
}
