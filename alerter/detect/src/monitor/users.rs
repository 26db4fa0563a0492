//! The owners of runs and jobs, as far as sources declare them.

use super::run::Run;
use crate::node::Claim;

/// Whether these runs are of several users, as far as is known. A run without a declared user does
/// not count as a run of a user who was declared; otherwise a source that declares no user would
/// pass for any user.
pub(super) fn of_several_users<'a>(runs: impl IntoIterator<Item = &'a Run>) -> bool {
    let mut users = runs.into_iter().map(|run| run.reporters.uid);
    let first = users.next();
    users.any(|user| Some(user) != first)
}

/// The claim that decides who owns a job. A control group takes precedence over the environment of
/// a process, where anybody can name a job; of those, the first claim counts. `None` without a
/// claim, or if control groups show several users: clusters may have jobs of one number. Root does
/// not count, because only root's programs run when a job has just begun.
pub(super) fn claim_of_owner<'a>(claims: &[&'a Claim]) -> Option<&'a Claim> {
    let is_users = |claim: &&&Claim| claim.attested && claim.uid.is_some_and(|uid| uid != 0);
    let mut attested = claims.iter().filter(is_users);
    match attested.next() {
        Some(first) => attested.all(|other| other.uid == first.uid).then_some(*first),
        None => claims.iter().min_by_key(|claim| (!claim.attested, claim.since)).copied(),
    }
}
