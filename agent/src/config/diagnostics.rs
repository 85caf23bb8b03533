//! Everything that is wrong with a file, at once, each with its place.
//!
//! Checks push [`Problem`]s with byte spans; [`Diagnostics`] adds lines and columns and prints them as rustc prints its
//! own: the line, a mark under the culprit, the reason and what to write instead. The same list serves programs as
//! JSON.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Element, Group, Level, Renderer, Snippet};
use serde::Serialize;

/// Whether a problem refuses the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file is refused.
    Error,
    /// The file is taken.
    Warning,
}

/// A place in a file, counted from 1; the column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Whether it refuses the file.
    pub severity: Severity,
    /// Stable, snake_case: `unknown_key`, `duplicate_port`, …
    pub code: &'static str,
    /// Path of the key that it concerns, `engine[1].port`; empty for the file as a whole.
    pub key: String,
    /// Where; `None` where the file could not be read.
    #[serde(flatten)]
    pub position: Option<Position>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
    /// A few words under the mark.
    #[serde(skip)]
    label: Option<String>,
    #[serde(skip)]
    span: Option<Range<usize>>,
    #[serde(skip)]
    related: Vec<(Range<usize>, String)>,
}

impl Problem {
    /// Says what to do.
    pub(super) fn help(&mut self, text: impl Into<String>) -> &mut Self {
        self.help = Some(text.into());
        self
    }

    /// Puts a few words under the mark.
    pub(super) fn label(&mut self, text: impl Into<String>) -> &mut Self {
        self.label = Some(text.into());
        self
    }

    /// Marks a second place.
    pub(super) fn related(&mut self, span: &Range<usize>, text: impl Into<String>) -> &mut Self {
        self.related.push((span.clone(), text.into()));
        self
    }

    /// Where it begins, in bytes.
    pub(super) fn offset(&self) -> Option<usize> {
        self.span.as_ref().map(|span| span.start)
    }
}

/// Problems while they are being collected.
#[derive(Debug, Default)]
pub(super) struct Problems {
    list: Vec<Problem>,
}

impl Problems {
    /// Adds a problem that refuses the file.
    pub(super) fn error(
        &mut self,
        code: &'static str,
        span: &Range<usize>,
        key: impl Into<String>,
        message: impl Into<String>,
    ) -> &mut Problem {
        self.push(Severity::Error, code, Some(span.clone()), key.into(), message.into())
    }

    /// Adds a problem that does not.
    pub(super) fn warning(
        &mut self,
        code: &'static str,
        span: &Range<usize>,
        key: impl Into<String>,
        message: impl Into<String>,
    ) -> &mut Problem {
        self.push(Severity::Warning, code, Some(span.clone()), key.into(), message.into())
    }

    /// Adds a problem of the file as a whole.
    pub(super) fn file_error(&mut self, code: &'static str, message: impl Into<String>) -> &mut Problem {
        self.push(Severity::Error, code, None, String::new(), message.into())
    }

    /// Whether anything refuses the file.
    pub(super) fn has_errors(&self) -> bool {
        self.list.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Takes over another list.
    pub(super) fn append(&mut self, mut other: Problems) {
        self.list.append(&mut other.list);
    }

    /// Drops what `keep` does not hold.
    pub(super) fn retain(&mut self, keep: impl FnMut(&Problem) -> bool) {
        self.list.retain(keep);
    }

    fn push(
        &mut self,
        severity: Severity,
        code: &'static str,
        span: Option<Range<usize>>,
        key: String,
        message: String,
    ) -> &mut Problem {
        self.list.push(Problem {
            severity,
            code,
            key,
            position: None,
            message,
            help: None,
            label: None,
            span,
            related: Vec::new(),
        });
        let last = self.list.len() - 1;
        &mut self.list[last]
    }

    /// Sorts them by place and adds lines and columns.
    pub(super) fn finish(self, file: &Path, text: &str) -> Diagnostics {
        let mut problems = self.list;
        for problem in &mut problems {
            problem.span = problem.span.take().map(|span| clamp(span, text));
            for (span, _) in &mut problem.related {
                *span = clamp(span.clone(), text);
            }
            problem.position = problem.span.as_ref().map(|span| position(text, span.start));
        }
        problems
            .sort_by(|a, b| (a.position, a.severity, &a.message).cmp(&(b.position, b.severity, &b.message)));
        Diagnostics { file: file.to_owned(), text: text.to_owned(), problems }
    }
}

/// Everything that is wrong with one file. Its `Display` is the plain rendering.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub struct Diagnostics {
    file: PathBuf,
    text: String,
    problems: Vec<Problem>,
}

impl Diagnostics {
    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// All problems, by place.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Number of problems that refuse the file.
    pub fn errors(&self) -> usize {
        self.problems.iter().filter(|problem| problem.severity == Severity::Error).count()
    }

    /// As rustc prints its own, with escape codes for colours where `colour` is true. Ends with a newline unless there
    /// is nothing to say.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let renderer = renderer.decor_style(DecorStyle::Ascii);
        let mut out = String::new();
        for problem in &self.problems {
            out.push_str(&renderer.render(&[self.group(problem)]));
            out.push_str("\n\n");
        }
        let errors = self.errors();
        let warnings = self.problems.len() - errors;
        if let Some(summary) = summary(errors, warnings) {
            out.push_str(&format!("{}: {summary}\n", self.file.display()));
        }
        out
    }

    fn group<'a>(&'a self, problem: &'a Problem) -> Group<'a> {
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(problem.message.as_str());
        let mut elements: Vec<Element<'a>> = Vec::new();
        if let Some(span) = &problem.span {
            let mut mark = AnnotationKind::Primary.span(span.clone());
            if let Some(label) = &problem.label {
                mark = mark.label(label.as_str());
            }
            let mut snippet =
                Snippet::source(self.text.as_str()).path(self.file.display().to_string()).annotation(mark);
            for (span, label) in &problem.related {
                snippet =
                    snippet.annotation(AnnotationKind::Context.span(span.clone()).label(label.as_str()));
            }
            elements.push(snippet.into());
        }
        if let Some(help) = &problem.help {
            elements.push(Level::HELP.message(help.as_str()).into());
        }
        title.elements(elements)
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl fmt::Debug for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}", self.render(false))
    }
}

fn summary(errors: usize, warnings: usize) -> Option<String> {
    let count = |n: usize, word: &str| match n {
        0 => None,
        1 => Some(format!("1 {word}")),
        n => Some(format!("{n} {word}s")),
    };
    match (count(errors, "error"), count(warnings, "warning")) {
        (Some(errors), Some(warnings)) => Some(format!("{errors}, {warnings}")),
        (one, other) => one.or(other),
    }
}

/// Brings a span inside the text and onto the boundaries of characters, without which the renderer would panic.
fn clamp(span: Range<usize>, text: &str) -> Range<usize> {
    let mut start = span.start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut end = span.end.clamp(start, text.len());
    while !text.is_char_boundary(end) {
        end += 1;
    }
    start..end
}

fn position(text: &str, offset: usize) -> Position {
    let before = &text[..offset];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    Position {
        line: before.bytes().filter(|&b| b == b'\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
    }
}
