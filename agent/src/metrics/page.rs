//! The page's text, put in order.

use super::Name;

/// Sorts families by name and the series of counters and gauges by label, leaves out what is unknown (NaN), and
/// families without a series. The exporter's own order changes from scrape to scrape. Series of the engines in `hidden`
/// are left out: the exporter forgets none.
pub(super) fn tidy(text: &str, hidden: &[String]) -> String {
    let hidden: Vec<String> = hidden.iter().map(|engine| format!("engine=\"{engine}\"")).collect();
    let is_hidden = |line: &str| hidden.iter().any(|label| line.contains(label.as_str()));
    let fractional: Vec<&str> =
        Name::ALL.into_iter().filter(|name| name.is_fractional()).map(Name::as_str).collect();
    let mut families: Vec<(&str, String)> = Vec::new();
    for family in text.split("\n\n") {
        let mut series: Vec<&str> = Vec::new();
        let mut head = String::new();
        let (mut name, mut is_histogram) = ("", false);
        for line in family.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                name = kind.split(' ').next().unwrap_or_default();
                is_histogram = kind.ends_with(" histogram");
            }
            if line.starts_with('#') {
                match line.strip_suffix(" gauge").filter(|_| fractional.contains(&name)) {
                    Some(counter) => head.push_str(&format!("{counter} counter")),
                    None => head.push_str(line),
                }
                head.push('\n');
            } else if !line.is_empty() && !line.ends_with(" NaN") && !is_hidden(line) {
                series.push(line);
            }
        }
        if series.is_empty() {
            continue;
        }
        if is_histogram {
            // The buckets of one series belong together, in their order; the sort is stable.
            series.sort_by_key(|line| labels_without_bound(line));
        } else {
            series.sort_unstable();
        }
        for line in series {
            head.push_str(line);
            head.push('\n');
        }
        families.push((name, head));
    }
    families.sort_by_key(|(name, _)| *name);
    families.into_iter().map(|(_, text)| text).collect()
}

/// The labels of a histogram's line, but for the bucket's bound, which the exporter writes last.
fn labels_without_bound(line: &str) -> &str {
    let labels = line.split_once('{').map_or("", |(_, labels)| labels);
    let labels = labels.rsplit_once("} ").map_or("", |(labels, _)| labels);
    labels.rsplit_once("le=\"").map_or(labels, |(labels, _)| labels.trim_end_matches(','))
}
