//! [`Canvas`]: SVG elements as text, the style sheet, and the card they lie on.
//!
//! Drawn from the top down: `y` is where the next part begins. Coordinates are rounded to tenths.
//! Text is escaped here and nowhere else; its width is estimated, since no font is at hand.

use std::fmt::Write;

use super::WIDTH;

/// Space between the card's edge and what is drawn.
pub(super) const MARGIN: f64 = 32.0;

/// Left and right end of what is drawn.
pub(super) const LEFT: f64 = MARGIN;
pub(super) const RIGHT: f64 = WIDTH as f64 - MARGIN;
/// Space left of a plot's axis for its labels.
pub(super) const LABELS_WIDTH: f64 = 62.0;

/// Colours for light viewers, then for dark ones. Rules by class only: not every renderer knows
/// custom properties.
const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,sans-serif}\
.h{font-size:20px;font-weight:600;fill:#1f2328}\
.d{font-size:13px;fill:#59636e}\
.l{font-size:13px;fill:#1f2328}\
.v{font-size:11px;fill:#2563eb;font-weight:600}\
.card{fill:#ffffff;stroke:#d1d9e0}\
.free{fill:#e4e8ec}.first{fill:#2563eb}.tenant{fill:#f2b134}\
.grid{stroke:#d9dee3;stroke-width:1}.axis{stroke:#818b98;stroke-width:1}\
.band{fill:#f6f8fa}\
.w{stroke-width:2;stroke-linecap:round;fill:none}\
.c{stroke-width:1.5;fill:none;stroke-opacity:.35}\
.m{stroke-width:0}\
.s0{stroke:#2563eb;fill:#2563eb}.s1{stroke:#d1570c;fill:#d1570c}\
.s2{stroke:#0f8a6a;fill:#0f8a6a}.s3{stroke:#8a5cc2;fill:#8a5cc2}\
.s4{stroke:#b03060;fill:#b03060}.s5{stroke:#6b7280;fill:#6b7280}\
path.w,path.c{fill:none}";

const DARK: &str = "\
.h,.l{fill:#f0f6fc}.d{fill:#9198a1}.v{fill:#6ea8fe}\
.card{fill:#0d1117;stroke:#3d444d}\
.free{fill:#2a313a}.first{fill:#4c8dff}.tenant{fill:#e0a02b}\
.grid{stroke:#2a313a}.axis{stroke:#656c76}.band{fill:#131922}\
.s0{stroke:#4c8dff;fill:#4c8dff}.s1{stroke:#f08a4b;fill:#f08a4b}\
.s2{stroke:#3fbf9b;fill:#3fbf9b}.s3{stroke:#b794f0;fill:#b794f0}\
.s4{stroke:#ec7fa9;fill:#ec7fa9}.s5{stroke:#9aa4b0;fill:#9aa4b0}\
path.w,path.c{fill:none}";

/// Where a text hangs on its point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A document in the making.
pub(super) struct Canvas {
    title: String,
    body: String,
    /// Top of what comes next.
    pub(super) y: f64,
}

impl Canvas {
    /// An empty card named `title` for those who do not see it.
    pub(super) fn new(title: &str) -> Self {
        Self { title: title.into(), body: String::new(), y: MARGIN }
    }

    /// Space and a rule between two parts.
    pub(super) fn gap(&mut self) {
        self.line("grid", LEFT, self.y + 26.0, RIGHT, self.y + 26.0);
        self.y += 52.0;
    }

    /// The whole document, its height as drawn.
    pub(super) fn finish(self) -> String {
        let height = number(self.y + MARGIN);
        let card = number(self.y + MARGIN - 1.0);
        let title = escaped(&self.title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{title}</title>\n\
             <style>{STYLE}@media (prefers-color-scheme:dark){{{DARK}}}</style>\n\
             <rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{card}\" rx=\"10\"/>\n\
             {}</svg>\n",
            WIDTH - 1,
            self.body
        )
    }

    /// Title and subtitle, broken into lines; moves down past them.
    pub(super) fn heading(&mut self, title: &str, subtitle: &str) {
        for line in wrapped(title, 64) {
            self.text("h", Anchor::Start, LEFT, self.y + 16.0, &line);
            self.y += 27.0;
        }
        for line in wrapped(subtitle, 116) {
            self.text("d", Anchor::Start, LEFT, self.y + 10.0, &line);
            self.y += 19.0;
        }
        self.y += 12.0;
    }

    /// A rectangle; nothing where it has no size.
    pub(super) fn rect(&mut self, class: &str, x: f64, y: f64, (w, h): (f64, f64), round: f64) {
        if !(w > 0.0 && h > 0.0) {
            return;
        }
        let [x, y, w, h, round] = [x, y, w, h, round].map(number);
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" \
             rx=\"{round}\"/>"
        );
    }

    pub(super) fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(number);
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"
        );
    }

    /// Straight strokes from point to point; `closed` joins the last to the first.
    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)], closed: bool) {
        let mut d = String::new();
        for (i, &(x, y)) in points.iter().enumerate() {
            let command = if i == 0 { 'M' } else { 'L' };
            let _ = write!(d, "{command}{} {}", number(x), number(y));
        }
        if closed {
            d.push('Z');
        }
        let _ = writeln!(self.body, "<path class=\"{class}\" d=\"{d}\"/>");
    }

    pub(super) fn circle(&mut self, class: &str, x: f64, y: f64, r: f64) {
        let [x, y, r] = [x, y, r].map(number);
        let _ = writeln!(self.body, "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{r}\"/>");
    }

    pub(super) fn text(&mut self, class: &str, anchor: Anchor, x: f64, y: f64, text: &str) {
        let [x, y] = [x, y].map(number);
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    /// Opens a group, which the caller closes by [`Canvas::end_group`].
    pub(super) fn group(&mut self, class: &str) {
        let _ = writeln!(self.body, "<g class=\"{class}\">");
    }

    pub(super) fn end_group(&mut self) {
        self.body.push_str("</g>\n");
    }
}

/// Width of `text` at `size` in a wide font, so that what is laid out by it collides in none.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}

/// To tenths, without idle zeros.
fn number(value: f64) -> String {
    let tenths = (value * 10.0).round();
    if !tenths.is_finite() {
        return "0".into();
    }
    let text = format!("{:.1}", tenths / 10.0 + 0.0);
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Text as XML has it; characters that XML forbids become a replacement character.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Broken at spaces into lines of at most `columns` characters; a longer word stays whole.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_finite() {
        let shown = [1.0, 0.04, -0.04, 12.345, f64::NAN, f64::INFINITY].map(number);
        assert_eq!(shown, ["1", "0", "0", "12.3", "0", "0"]);
    }

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrapped("aa bb  cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrapped("longer than", 3), ["longer", "than"]);
        assert!(wrapped(" ", 3).is_empty());
    }
}
