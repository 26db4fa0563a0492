//! Scalars that `add_scalars` of PyTorch puts into directories beside the file of their run.
//!
//! `add_scalars("loss", {"train": .., "val": ..})` writes `loss_train/` and `loss_val/`, and in
//! both files the tag is `loss`: only the directory distinguishes training from validation.

use std::borrow::Cow;
use std::path::Path;

/// Names within a group whose numbers are an evaluation's; the beginning of a tag that marks a lone
/// scalar as one.
const EVALUATIONS: &[&str] = &["val", "valid", "validation", "test", "eval"];
/// Names within a group whose numbers are what the tag means.
const TRAINING: &[&str] = &["train", "training"];

/// The directory of a file, which may be one of a group.
#[derive(Debug, Default)]
pub(super) struct Group {
    directory: Box<str>,
}

impl Group {
    pub(super) fn from_path(path: &Path) -> Self {
        let name = path.parent().and_then(Path::file_name).and_then(|n| n.to_str());
        Self { directory: name.filter(|n| n.contains('_')).unwrap_or_default().into() }
    }

    /// What a scalar of this file would be called, had it been logged alone.
    pub(super) fn alone<'a>(&self, tag: &'a str) -> Cow<'a, str> {
        let Some(name) = self.name(tag) else { return Cow::Borrowed(tag) };
        let is = |names: &[&str]| names.iter().any(|n| n.eq_ignore_ascii_case(name));
        if is(EVALUATIONS) {
            Cow::Owned(format!("{}/{tag}", name.to_ascii_lowercase()))
        } else if is(TRAINING) {
            Cow::Borrowed(tag)
        } else {
            Cow::Owned(format!("{tag}_{name}"))
        }
    }

    /// `val` of the tag `loss` in `loss_val`. A directory cannot have the slashes of a tag.
    fn name(&self, tag: &str) -> Option<&str> {
        let (head, name) = self.directory.split_at_checked(tag.len())?;
        let same = |(d, t): (u8, u8)| d == if t == b'/' { b'_' } else { t };
        let grouped = !tag.is_empty() && head.bytes().zip(tag.bytes()).all(same);
        name.strip_prefix('_').filter(|name| grouped && !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_directory_of_a_group_renames() {
        for (directory, tag, alone) in [
            ("loss_train", "loss", "loss"),
            ("loss_val", "loss", "val/loss"),
            ("Loss_Validation", "Loss", "validation/Loss"),
            ("a_loss_test", "a/loss", "test/a/loss"),
            ("losses_policy", "losses", "losses_policy"),
            ("loss_val", "lr", "lr"),
            ("loss_val", "loss_val", "loss_val"),
            ("loss_", "loss", "loss"),
            ("my_run_val", "loss", "loss"),
            ("val", "", ""),
            ("é_val", "x", "x"),
        ] {
            let path = Path::new("/runs/a").join(directory).join("events.out.tfevents.1.h.2.0");
            assert_eq!(Group::from_path(&path).alone(tag), alone, "{directory} {tag}");
        }
        assert_eq!(Group::from_path(Path::new("events.out.tfevents.1")).alone("loss"), "loss");
    }
}
