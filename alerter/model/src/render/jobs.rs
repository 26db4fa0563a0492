//! The text of what is observed of jobs.

use core::fmt;

/// The most processes that are named.
const NAMED: usize = 3;

/// Text of the training processes that are left of a job.
pub(super) fn processes_left(job: &str, user: &str, pids: &[u32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let named: Vec<String> = pids.iter().take(NAMED).map(u32::to_string).collect();
    let noun = if pids.len() == 1 { "process" } else { "processes" };
    let of = if user.is_empty() { String::new() } else { format!(" of {user}") };
    match (&named[..], pids.len().saturating_sub(NAMED)) {
        ([], _) => write!(f, "training processes{of} still run")?,
        (named, 0) => write!(f, "{noun} {}{of} still run{}", named.join(", "), third(pids.len()))?,
        (named, more) => write!(f, "{noun} {} and {more} more{of} still run", named.join(", "))?,
    }
    write!(f, ", though job {job} is over on this node")
}

fn third(count: usize) -> &'static str {
    if count == 1 { "s" } else { "" }
}

#[cfg(test)]
mod tests {
    use crate::evidence::Observation;

    fn left(user: &str, pids: &[u32]) -> String {
        Observation::ProcessesLeft { job: "4712".into(), user: user.into(), pids: pids.to_vec() }.to_string()
    }

    #[test]
    fn it_names_processes_their_user_and_their_job() {
        assert_eq!(left("ann", &[41]), "process 41 of ann still runs, though job 4712 is over on this node");
        assert_eq!(
            left("ann", &[41, 42, 43, 44, 45]),
            "processes 41, 42, 43 and 2 more of ann still run, though job 4712 is over on this node"
        );
        assert_eq!(left("", &[]), "training processes still run, though job 4712 is over on this node");
    }
}
