//! A strict parser of OpenMetrics 1.0 counters, gauges and histograms.
//!
//! The parser is stricter than the format: each family needs a type and a help text, and no sample
//! has a time stamp or an exemplar. Source: OpenMetrics 1.0.0, "ABNF" and "Metric types".

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

#[derive(Debug, Default)]
pub struct Family {
    pub name: String,
    pub kind: String,
    pub unit: String,
    pub help: String,
    pub samples: Vec<Sample>,
}

impl Family {
    fn names(&self) -> Vec<String> {
        let ends: &[&str] = match &*self.kind {
            "counter" => &["", "_total", "_created"],
            "histogram" => &["", "_bucket", "_sum", "_count", "_created"],
            _ => &[""],
        };
        ends.iter().map(|end| format!("{}{end}", self.name)).collect()
    }

    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if self.kind.is_empty() || self.help.is_empty() {
            return Err(format!("{name} has no type or no help"));
        }
        if !self.unit.is_empty() && !name.ends_with(&format!("_{}", self.unit)) {
            return Err(format!("{name} does not end in its unit {}", self.unit));
        }
        let mut seen = BTreeSet::new();
        for sample in &self.samples {
            if !seen.insert((&sample.name, &sample.labels)) {
                return Err(format!("{} comes twice: {:?}", sample.name, sample.labels));
            }
            let own = sample.name.strip_prefix(&**name).unwrap_or("?");
            let (counts, fits) = match &*self.kind {
                "counter" => (true, own == "_total"),
                "gauge" => (false, own.is_empty()),
                _ => (true, ["_bucket", "_sum", "_count"].contains(&own)),
            };
            if !fits || (own == "_bucket") != sample.labels.contains_key("le") {
                return Err(format!("{} is no sample of the {} {name}", sample.name, self.kind));
            }
            if counts && !(sample.value >= 0.0 && sample.value.is_finite()) {
                return Err(format!("{} cannot be {}", sample.name, sample.value));
            }
        }
        if self.kind == "histogram" {
            self.check_histogram()?;
        }
        Ok(())
    }

    fn check_histogram(&self) -> Result<(), String> {
        let mut groups: Vec<(BTreeMap<String, String>, Vec<&Sample>)> = Vec::new();
        for sample in &self.samples {
            let mut labels = sample.labels.clone();
            labels.remove("le");
            if groups.last().is_none_or(|(of, _)| *of != labels) {
                if groups.iter().any(|(of, _)| *of == labels) {
                    return Err(format!("{}: metrics are mixed", self.name));
                }
                groups.push((labels, Vec::new()));
            }
            groups.last_mut().expect("just pushed").1.push(sample);
        }
        for (labels, group) in groups {
            let wrong = |what: &str| Err(format!("{} {labels:?}: {what}", self.name));
            let of = |end: &str| -> Vec<&&Sample> {
                group.iter().filter(|s| s.name == format!("{}{end}", self.name)).collect()
            };
            let (buckets, count) = (of("_bucket"), of("_count"));
            if count.len() != 1 || of("_sum").len() != 1 {
                return wrong("not one count and one sum");
            }
            let mut last = (f64::NEG_INFINITY, 0.0);
            for bucket in &buckets {
                let le = number(&bucket.labels["le"])?;
                if le <= last.0 || bucket.value < last.1 {
                    return wrong("buckets do not grow");
                }
                last = (le, bucket.value);
            }
            if last != (f64::INFINITY, count[0].value) {
                return wrong("the last bucket is not +Inf and the count");
            }
        }
        Ok(())
    }
}

pub fn parse(text: &str) -> Result<Vec<Family>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("the end is not # EOF")?;
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("# EOF is not a line of its own".into());
    }
    let mut families: Vec<Family> = Vec::new();
    for line in body.split_terminator('\n') {
        line_into(&mut families, line).map_err(|why| format!("{line:?}: {why}"))?;
    }
    let mut taken = BTreeSet::new();
    for family in &families {
        family.check()?;
        if let Some(name) = family.names().into_iter().find(|name| !taken.insert(name.clone())) {
            return Err(format!("{name} belongs to two families"));
        }
    }
    Ok(families)
}

fn line_into(families: &mut Vec<Family>, line: &str) -> Result<(), String> {
    let Some(meta) = line.strip_prefix("# ") else {
        let sample = sample(line)?;
        let family = families.last_mut().ok_or("a sample before any family")?;
        if !family.names().contains(&sample.name) {
            return Err(format!("a sample of another family than {}", family.name));
        }
        family.samples.push(sample);
        return Ok(());
    };
    let mut words = meta.splitn(3, ' ');
    let (Some(what), Some(name), Some(rest)) = (words.next(), words.next(), words.next()) else {
        return Err("not three words".into());
    };
    check_name(name, ":")?;
    if families.last().is_none_or(|family| family.name != name) {
        if families.iter().any(|family| family.name == name) {
            return Err("a family in two places".into());
        }
        families.push(Family { name: name.into(), ..Family::default() });
    }
    let family = families.last_mut().ok_or("no family")?;
    if !family.samples.is_empty() {
        return Err("metadata after samples".into());
    }
    let (field, value) = match what {
        "TYPE" if ["counter", "gauge", "histogram"].contains(&rest) => {
            (&mut family.kind, rest.into())
        }
        "UNIT" => (&mut family.unit, check_name(rest, ":").map(|()| rest.to_owned())?),
        "HELP" => (&mut family.help, unescape(rest)?),
        _ => return Err("neither TYPE of a known type, UNIT nor HELP".into()),
    };
    if !field.is_empty() {
        return Err(format!("{what} twice"));
    }
    *field = value;
    Ok(())
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    check_name(name, ":")?;
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("a label without value")?;
            check_name(label, "")?;
            let close = closing_quote(after).ok_or("a label's value does not end")?;
            if labels.insert(label.to_owned(), unescape(&after[..close])?).is_some() {
                return Err(format!("label {label} twice"));
            }
            rest = &after[close + 1..];
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = rest.strip_prefix(',').ok_or("labels without a comma between")?;
        }
    }
    let value = number(rest.strip_prefix(' ').ok_or("no space before the value")?)?;
    Ok(Sample { name: name.into(), labels, value })
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

fn check_name(name: &str, also: &str) -> Result<(), String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || also.contains(c);
    match name.chars().next() {
        Some(first) if !first.is_ascii_digit() && name.chars().all(word) => Ok(()),
        _ => Err(format!("{name:?} is no name")),
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '"' => return Err("a bare quote".into()),
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some(c @ ('\\' | '"')) => c,
                other => return Err(format!("\\{other:?} is no escape")),
            },
            c => c,
        });
    }
    Ok(out)
}

/// Parses a number, and refuses spellings that only Rust reads.
fn number(text: &str) -> Result<f64, String> {
    let plain = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
        && text.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    if !plain && !["+Inf", "-Inf", "NaN"].contains(&text) {
        return Err(format!("{text:?} is no number"));
    }
    text.parse().map_err(|_| format!("{text:?} is no number"))
}
