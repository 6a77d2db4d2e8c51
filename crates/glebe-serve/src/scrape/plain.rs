//! [`plain`] turns OpenMetrics text into Prometheus' text format 0.0.4, which tools without
//! OpenMetrics read. There a counter's metadata names its samples, with `_total`, and there are no
//! units and no end mark.

pub(super) fn plain(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len());
    let mut counter = "";
    for line in openmetrics.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "UNIT", ..] | ["#", "EOF"] => continue,
            ["#", "TYPE", family, "counter"] => {
                counter = family;
                out += &format!("# TYPE {family}_total counter");
            }
            ["#", "HELP", family, what] if family == counter => {
                out += &format!("# HELP {family}_total {}", what.replace("\\\"", "\""));
            }
            // This format escapes no quotes in a help text.
            ["#", "HELP", ..] => out += &line.replace("\\\"", "\""),
            _ => out += line,
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn counters_are_named_like_their_samples_and_units_are_left_out() {
        let given = "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes an \\\"a\\\"\n\
                     a_bytes_total{l=\"\\\"\"} 1\n# TYPE b gauge\n# HELP b two words\nb 2\n\
                     # TYPE c_seconds histogram\n# HELP c_seconds c\nc_seconds_sum 0.5\n# EOF\n";
        let wanted = "# TYPE a_bytes_total counter\n# HELP a_bytes_total an \"a\"\n\
                      a_bytes_total{l=\"\\\"\"} 1\n# TYPE b gauge\n# HELP b two words\nb 2\n\
                      # TYPE c_seconds histogram\n# HELP c_seconds c\nc_seconds_sum 0.5\n";
        assert_eq!(plain(given), wanted);
    }
}
